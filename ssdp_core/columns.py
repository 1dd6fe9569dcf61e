"""Sensitive columns: a declared domain, and the features and numbers its values stand for.

A column is public: it says what values *may* occur. Private entries pass through ``indices`` only,
on their way into :meth:`ssdp_core.domain.PrivateDomain.encode`.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate

_OTHER = "other"
_COLUMN_KINDS = "biufUOT"  # NumPy kinds of bools, numbers, strings and objects

Value: TypeAlias = str | int | float | bool


class Role(str, enum.Enum):
    """What a sensitive column is used for; `BOTH` serves several problems over one table."""

    FEATURE = "feature"
    TARGET = "target"
    BOTH = "both"


class Encoding(str, enum.Enum):
    """How a sensitive column becomes features."""

    ONE_HOT = "one_hot"
    NUMERIC = "numeric"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Column(abc.ABC):
    """Adds other to a declared domain, and gives its indices labels, numbers and features."""

    name: str
    other: bool = False
    role: Role = Role.FEATURE
    encoding: Encoding = Encoding.ONE_HOT
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.other, bool) or not self.name:
            got = f"{self.name!r} and {self.other!r}"
            raise ValueError(f"name must be a non-empty string and other a bool, got {got}")
        object.__setattr__(self, "role", _member(Role, "role", self.role))
        object.__setattr__(self, "encoding", _member(Encoding, "encoding", self.encoding))
        object.__setattr__(self, "scale", _validate.positive(scale=self.scale))
        self._check_domain()
        if self.size < 2:
            raise ValueError(
                f"column {self.name!r} must have at least 2 possible values (counting other), "
                f"got {self.size}: a constant is not private"
            )
        if self.encoding is Encoding.NUMERIC:
            numbers = self.numbers()
            span = float(numbers.max()) - float(numbers.min())
            if not 0 < span < math.inf:
                raise ValueError(
                    f"column {self.name!r} must span a positive finite range to be encoded as a "
                    f"number, got {span!r}"
                )

    @abc.abstractmethod
    def _check_domain(self) -> None:
        """Checks and normalises the fields that declare the domain."""

    @abc.abstractmethod
    def _declared(self) -> tuple[tuple[Value, ...], tuple[float, ...] | None]:
        """Labels of the declared values, and their numbers or None if some are not numbers."""

    @abc.abstractmethod
    def indices(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
        """Index of each entry, -1 if null or undeclared; None if an entry is no plain value."""

    @property
    def size(self) -> int:
        """Number of possible values, counting other."""
        return len(self.labels())

    def labels(self) -> tuple[Value, ...]:
        """Returns what `PrivateDomain.decode` shows for each index."""
        return (*self._declared()[0], _OTHER) if self.other else self._declared()[0]

    def numbers(self) -> npt.NDArray[np.float64]:
        """Returns the number each index stands for, float64 of shape (size,); bools are 0 and 1."""
        numbers = self._declared()[1]
        if numbers is None or self.other:
            raise ValueError(
                f"column {self.name!r} must declare numbers only and no other, because a numeric "
                "encoding or target needs a number for every value: use one_hot encoding, or a "
                "multinomial loss for a target"
            )
        return np.array(numbers, dtype=np.float64)

    def features(self) -> npt.NDArray[np.float64]:
        """Returns the features of each index, float64 of shape (size, width).

        One-hot is ``scale`` times the identity. Numeric is one column, ``scale * (v - min) /
        (max - min)``. Both are non-negative on purpose: no two rows then have a negative inner
        product, which makes sensitivities smaller.
        """
        if self.encoding is Encoding.ONE_HOT:
            return np.diag(np.full(self.size, self.scale))
        numbers = self.numbers()[:, np.newaxis]
        low, high = float(numbers.min()), float(numbers.max())
        return self.scale * ((numbers - low) / (high - low))

    def example(self) -> Value:
        """Some value of the declared domain, the same every time."""
        labels, numbers = self._declared()
        return labels[0] if numbers is None else numbers[0]

    def feature_names(self) -> tuple[str, ...]:
        """Returns one name per column of `features`."""
        if self.encoding is Encoding.NUMERIC:
            return (self.name,)
        return tuple(f"{self.name}={label}" for label in self.labels())


@dataclasses.dataclass(frozen=True, kw_only=True)
class CategoricalColumn(_Column):
    """A sensitive column with a declared list of values.

    An entry matches a declared value when Python says they are equal: ``1``, ``1.0`` and ``True``
    match each other, ``1`` and ``"1"`` do not. Entries of a float32 or float16 column are compared
    in its precision.

    Attributes:
        name: Name of the column in the table.
        values: Strings, finite numbers or bools, distinct also when written as text.
        other: Whether one more value, the last, stands for nulls and everything undeclared. Without
            it such an entry is an error.
        role: Whether models use the column as a feature, predict it, or (different ones) both.
        encoding: How it becomes features; `Encoding.NUMERIC` needs numbers and no other.
        scale: Length of its largest feature row.
    """

    values: tuple[Value, ...]

    def _check_domain(self) -> None:
        if not isinstance(self.values, (tuple, list)):
            raise TypeError(f"values of column {self.name!r} must be a tuple, got {self.values!r}")
        values = tuple(v.item() if isinstance(v, np.generic) else v for v in self.values)
        for value in values:
            if not isinstance(value, str) and not (
                isinstance(value, (int, float)) and math.isfinite(_float_or_nan(value))
            ):
                raise ValueError(
                    f"values of column {self.name!r} must be strings, finite numbers or bools, got "
                    f"{value!r}: nulls are covered by other=True"
                )
        object.__setattr__(self, "values", values)
        if len(set(values)) < len(values) or len(set(map(str, self.labels()))) < self.size:
            raise ValueError(
                f"values of column {self.name!r} must be distinct, as values (True, 1 and 1.0 are "
                "equal) and as text (1 and '1' look the same, other is called 'other'), got "
                f"{values!r} with other={self.other}"
            )

    def _declared(self) -> tuple[tuple[Value, ...], tuple[float, ...] | None]:
        if any(isinstance(value, str) for value in self.values):
            return self.values, None
        return self.values, tuple(float(value) for value in self.values)

    def indices(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
        """PRIVATE ``array``. Index of every entry; see the base class."""
        lookup = {v: i for i, v in enumerate(_in_precision_of(array.dtype, self.values))}
        # Objects of mixed types cannot be sorted, so only arrays of one type are made distinct.
        is_mixed = array.dtype.kind not in "biufU"
        distinct, inverse = (array, ...) if is_mixed else np.unique(array, return_inverse=True)
        found = (lookup.get(entry, -1) for entry in distinct.tolist())  # no null is declared
        try:
            return np.fromiter(found, dtype=np.int64, count=distinct.size)[inverse]
        except TypeError:  # an entry cannot be hashed, so it is a container
            return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinnedColumn(_Column):
    """A sensitive numeric column cut into declared bins.

    The bins are ``[e0, e1), [e1, e2), ...``; the last one also contains its right edge. A number
    outside, a null, an infinity or a string goes to other, or is an error. Entries of a float32 or
    float16 column are compared with the edges in its precision.

    Attributes:
        edges: Finite and strictly increasing. As a number, a bin stands for its midpoint.

    The other attributes are those of `CategoricalColumn`.
    """

    edges: tuple[float, ...]

    def _check_domain(self) -> None:
        edges = _validate.public_array(1, edges=self.edges)
        if edges.size < 2 or not (edges[1:] > edges[:-1]).all():
            raise ValueError(
                f"edges of column {self.name!r} must be at least two strictly increasing numbers, "
                f"got {self.edges!r}"
            )
        object.__setattr__(self, "edges", tuple(edges.tolist()))

    def _declared(self) -> tuple[tuple[Value, ...], tuple[float, ...] | None]:
        texts = [str(int(e)) if e.is_integer() and abs(e) < 1e15 else repr(e) for e in self.edges]
        bins = [f"[{low}, {high})" for low, high in itertools.pairwise(texts)]
        bins[-1] = bins[-1][:-1] + "]"
        # Halving first keeps the midpoint of huge edges finite.
        return tuple(bins), tuple(a / 2 + b / 2 for a, b in itertools.pairwise(self.edges))

    def indices(self, array: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
        """PRIVATE ``array``. Bin of every entry; see the base class."""
        if array.dtype.kind in "biuf":
            numbers = array.astype(np.float64)
        else:
            floats = (_float_or_nan(entry) for entry in array.tolist())
            numbers = np.fromiter(floats, dtype=np.float64, count=array.size)
        edges = np.array(_in_precision_of(array.dtype, self.edges), dtype=np.float64)
        bins = np.searchsorted(edges[:-1], numbers, side="right") - 1
        inside = (numbers >= edges[0]) & (numbers <= edges[-1])  # false for NaN
        return np.where(inside, bins, -1)


Column: TypeAlias = CategoricalColumn | BinnedColumn


def _member(enumeration: type[enum.Enum], name: str, value: object) -> enum.Enum:
    for member in enumeration:
        if value == member.value:
            return member
    allowed = ", ".join(repr(member.value) for member in enumeration)
    raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def column_array(column: Any) -> npt.NDArray[Any] | None:
    """Returns entries as a one-dimensional array that keeps their types, or None if impossible."""
    if isinstance(column, np.ma.MaskedArray):
        array = np.ma.filled(column.astype(object), None)
    elif hasattr(column, "__array__"):
        array = np.asarray(column)
    elif isinstance(column, Sequence) and not isinstance(column, (str, bytes)):
        # As objects: left to itself NumPy would turn [1, "a"] into two strings.
        array = np.fromiter(column, dtype=object, count=len(column))
    else:
        return None
    return array if array.ndim == 1 and array.dtype.kind in _COLUMN_KINDS else None


def _float_or_nan(entry: Any) -> float:
    if isinstance(entry, (str, bytes)):
        return math.nan  # float("3") would succeed, but text never matches a number
    try:
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _in_precision_of(dtype: np.dtype[Any], declared: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns declared values as a column of ``dtype`` holds them; float32 has no 0.1, say.

    They stay as declared if the column's precision would overflow or confuse two of them.
    """
    if dtype.kind != "f" or dtype.itemsize >= 8:
        return declared
    with np.errstate(over="ignore"):
        rounded = tuple(v if isinstance(v, str) else float(dtype.type(v)) for v in declared)
    usable = len({*rounded, math.inf, -math.inf}) == len(declared) + 2
    return rounded if usable else declared
