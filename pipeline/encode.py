"""Public columns to features, in two phases so that it scales.

Phase one, per block and merged: `ColumnStatistics`. Phase two, per block: `EncoderPlan.encode`,
whose plan is fixed once from the merged statistics and kept with the model, because predictions
need the same encoding. Everything here is public data.

A block's columns are NumPy arrays of one entry per row: float64 with NaN for nulls, or objects that
are strings or bools, with None for nulls. Each column gives a row at most one non-zero feature:

| kind    | features of a column                  | entry of a row                              |
|---------|---------------------------------------|---------------------------------------------|
| numeric | ``col``                               | clip((v - mean) / sd, -5, 5) / 5            |
| log     | ``col``                               | the same with log(1 + v) for v              |
| bins    | ``col=[e0, e1)``, ...                 | 1 in the bin of v, none outside the edges   |
| one_hot | ``col=a``, ``col=b``, ...             | 1 at v, none if v is not among the values   |
| hashed  | ``col#0`` ... ``col#(2^bits - 1)``    | 1 at the hash of v                          |

A null gives nothing of these. If nulls occurred anywhere, one more feature ``col?null`` is 1 there.
The first feature is the intercept, 1. At the end each row is scaled by min(1, feature_norm / norm),
a little less in fact, so that rounding to float32 cannot lift its norm above ``feature_norm``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.spec import ColumnEncoding, Spec
from ssdp_core.columns import BinnedColumn, Value
from ssdp_core.features import CsrFeatures, DenseFeatures

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

INTERCEPT = "intercept"
MAX_VALUES = 10_000
MAX_DENSE_COLUMNS = 2_048
_CLIP = 5.0
# Rounding to float32 lifts an entry, and so the norm, by at most a factor 1 + 2^-24.
_BELOW_NORM = 1.0 - 2.0**-22
_SUM_EXPONENT = 1126  # every finite float is an integer multiple of 2^-1126, mantissa and all
_LOW_BITS = 27
_LOW_MASK = (1 << _LOW_BITS) - 1
_CHUNK = 1 << 20
_FORMAT = 1
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "bool": (bool, np.bool_),
    "number": (int, float, np.integer, np.floating),
}


@dataclasses.dataclass(kw_only=True)
class ColumnStatistics:
    """What a plan needs to know about a column: mergeable, picklable and exact.

    Sums and sums of squares are kept as integers, in units of 2^-1126 and 2^-2252, without any
    rounding; everything else is a count, an extremum or a set. So the result is the same bit for
    bit however rows are cut into blocks and in whatever order blocks are merged.

    Attributes:
        encoding: How the column is to be encoded; it decides what is collected.
        max_values: Most distinct values that one-hot features may stand for.
        count: Rows seen, and ``nulls`` among them.
        type: ``number``, ``string`` or ``bool``, or None before the first entry that is not null.
        minimum: Smallest number, or infinity; of log(1 + v) for kind log, like what follows.
        maximum: Largest number, or minus infinity.
        total: Sum of the numbers times 2^1126; ``total_squares``, of their squares times 2^2252.
        values: Distinct values, where a plan needs them.
    """

    encoding: ColumnEncoding
    max_values: int = MAX_VALUES
    count: int = 0
    nulls: int = 0
    type: str | None = None
    minimum: float = math.inf
    maximum: float = -math.inf
    total: int = 0
    total_squares: int = 0
    values: set[Value] = dataclasses.field(default_factory=set)

    @property
    def num_values(self) -> int:
        """Rows whose entry is not null."""
        return self.count - self.nulls

    @property
    def mean(self) -> float:
        """Mean of the numbers, correctly rounded; 0 without numbers."""
        return float(self._mean())

    @property
    def standard_deviation(self) -> float:
        """Population standard deviation of the numbers; exactly 0 for a constant."""
        squares = Fraction(self.total_squares, max(self.num_values, 1) << (2 * _SUM_EXPONENT))
        return _square_root(squares - self._mean() ** 2)

    def update(self, array: npt.NDArray[Any]) -> None:
        """Adds the entries of a block, or raises ValueError if they cannot be encoded."""
        is_null, entries, found = _read(self.encoding.column, self.encoding.kind, array)
        self.count += is_null.size
        self.nulls += int(is_null.sum())
        if found is None:
            return
        self._set_type(found)
        if self._resolved_kind() in ("numeric", "log"):
            self.minimum = min(self.minimum, float(entries.min()))
            self.maximum = max(self.maximum, float(entries.max()))
            for start in range(0, entries.size, _CHUNK):
                total, squares = _exact_sums(entries[start : start + _CHUNK])
                self.total += total
                self.total_squares += squares
        elif self._resolved_kind() == "one_hot" and self.encoding.values is None:
            self._add_values(set(entries.tolist()))

    def merge(self, other: ColumnStatistics) -> None:
        """Adds what another instance for the same column has seen; ``other`` stays as it is."""
        if (self.encoding, self.max_values) != (other.encoding, other.max_values):
            raise ValueError(f"other must be of {self.encoding!r}, got {other.encoding!r}")
        if other.type is not None:
            self._set_type(other.type)
        self.count += other.count
        self.nulls += other.nulls
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.total += other.total
        self.total_squares += other.total_squares
        self._add_values(other.values)

    def plan(self) -> ColumnPlan:
        """Returns how to encode the column, or raises ValueError if that is impossible."""
        name = self.encoding.column
        if self.type is None:
            raise ValueError(
                f"column {name!r} must hold at least one value, found only nulls or no rows: "
                "remove it from features"
            )
        kind = self._resolved_kind()
        values: tuple[Value, ...] | None = None
        if kind == "one_hot":
            values = self.encoding.values
            if values is None:
                values = tuple(sorted(self.values))
            elif any(isinstance(value, str) != (self.type == "string") for value in values):
                raise ValueError(
                    f"column {name!r} holds {self.type}s, so the values declared for its encoding "
                    f"must be {self.type}s"
                )
        is_standardised = kind in ("numeric", "log")
        return ColumnPlan(
            column=name,
            kind=kind,
            type=self.type,
            has_nulls=self.nulls > 0,
            mean=self.mean if is_standardised else None,
            standard_deviation=self.standard_deviation if is_standardised else None,
            edges=self.encoding.edges,
            values=values,
            bits=self.encoding.bits,
        )

    def _mean(self) -> Fraction:
        return Fraction(self.total, max(self.num_values, 1) << _SUM_EXPONENT)

    def _resolved_kind(self) -> str:
        if self.encoding.kind != "auto":
            return self.encoding.kind
        return "numeric" if self.type == "number" else "one_hot"

    def _set_type(self, found: str) -> None:
        if self.type not in (None, found) and self.encoding.kind != "hashed":
            raise ValueError(
                f"column {self.encoding.column!r} must hold one type of values in all files, found "
                f"{found}s and {self.type}s"
            )
        # A hashed column may hold several types; the smallest name makes the order irrelevant.
        self.type = found if self.type is None else min(found, self.type)

    def _add_values(self, values: set[Value]) -> None:
        self.values |= values
        if len(self.values) > self.max_values:
            raise ValueError(
                f"column {self.encoding.column!r} has more than {self.max_values} distinct values, "
                'too many for one-hot features: set kind = "hashed" in its encoding, or declare '
                "the values that matter"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """How one column is encoded; see the module's table.

    ``kind`` is one of that table, ``type`` is ``number``, ``string`` or ``bool``, and ``has_nulls``
    says whether nulls have a feature. The other fields are set for the kinds that need them. A
    ``standard_deviation`` of 0 means that the column was constant: its feature is always 0.
    """

    column: str
    kind: str
    type: str
    has_nulls: bool
    mean: float | None = None
    standard_deviation: float | None = None
    edges: tuple[float, ...] | None = None
    values: tuple[Value, ...] | None = None
    bits: int | None = None

    def __post_init__(self) -> None:
        for name in ("edges", "values"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def width(self) -> int:
        """Number of features, without the one for nulls."""
        if self.bits is not None:
            return 1 << self.bits
        if self.values is not None:
            return len(self.values)
        return 1 if self.edges is None else len(self.edges) - 1

    def labels(self) -> tuple[str, ...]:
        """Returns the names of the features, without the one for nulls."""
        if self.kind == "hashed":
            return tuple(f"{self.column}#{index}" for index in range(self.width))
        if self.kind == "one_hot":
            return tuple(f"{self.column}={_text(value)}" for value in self.values or ())
        if self.kind == "bins":
            return tuple(f"{self.column}={label}" for label in self._bins().labels()[:-1])
        return (self.column,)

    def entries(self, array: npt.NDArray[Any]) -> tuple[Int64, Float64]:
        """Returns, for each row, the feature that is not zero and its value (0 if all are)."""
        is_null, entries, found = _read(self.column, self.kind, array)
        if found not in (None, self.type) and self.kind != "hashed":
            raise ValueError(
                f"column {self.column!r} must hold {self.type}s, as it did when the encoding was "
                f"fixed, found {found}s"
            )
        index = np.zeros(is_null.size, dtype=np.int64)
        value = np.zeros(is_null.size, dtype=np.float64)
        index[~is_null], value[~is_null] = self._found(entries)
        if self.has_nulls:
            index[is_null], value[is_null] = self.width, 1.0
        return index, value

    def _found(self, entries: npt.NDArray[Any]) -> tuple[Int64, Float64]:
        """The same for entries that are not null."""
        if self.kind in ("numeric", "log"):
            return np.zeros(entries.size, dtype=np.int64), self._standardised(entries)
        if self.kind == "bins":
            index = np.asarray(self._bins().indices(entries), dtype=np.int64)
        else:
            listed = entries.tolist()
            lookup = {value: i for i, value in enumerate(self.values or ())}
            if self.kind == "hashed":
                lookup = {entry: self._hash(entry) for entry in set(listed)}
            indices = (lookup.get(entry, -1) for entry in listed)
            index = np.fromiter(indices, dtype=np.int64, count=len(listed))
        return np.maximum(index, 0), (index >= 0).astype(np.float64)

    def _standardised(self, numbers: Float64) -> Float64:
        if not self.standard_deviation:
            return np.zeros(numbers.size)
        with np.errstate(over="ignore"):  # an infinity is clipped
            deviations = (numbers - (self.mean or 0.0)) / self.standard_deviation
        return np.clip(deviations, -_CLIP, _CLIP) / _CLIP

    def _bins(self) -> BinnedColumn:
        # With "other" a single bin is allowed: that column type is meant for private values.
        return BinnedColumn(name=self.column, edges=self.edges or (), other=True)

    def _hash(self, entry: Value) -> int:
        key = hashlib.blake2b(self.column.encode("utf-8", "surrogatepass"), digest_size=32)
        text = _text(entry).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8, key=key.digest()).digest()
        return int.from_bytes(digest, "little") % self.width


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderPlan:
    """The encoding of all public features.

    Attributes:
        columns: One plan per column, in the order of the specification's features.
        feature_norm: Bound on the l2 norm of each row.
    """

    columns: tuple[ColumnPlan, ...]
    feature_norm: float

    def __post_init__(self) -> None:
        # Names of hashed features differ unless their columns' names do.
        names = self._names(plan for plan in self.columns if plan.kind != "hashed")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"features must have distinct names, found {twice!r} more than once: rename the "
                "column that causes it"
            )

    @classmethod
    def fit(cls, spec: Spec, statistics_by_column: Mapping[str, ColumnStatistics]) -> EncoderPlan:
        """Fixes the encoding from the merged statistics of every feature."""
        missing = set(spec.data.features) - set(statistics_by_column)
        if missing:
            raise ValueError(f"statistics must cover every feature, found none for {missing!r}")
        plans = tuple(statistics_by_column[name].plan() for name in spec.data.features)
        return cls(columns=plans, feature_norm=spec.data.feature_norm)

    @property
    def num_columns(self) -> int:
        """Number of features, counting the intercept."""
        return 1 + sum(plan.width + plan.has_nulls for plan in self.columns)

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are stored as compressed rows: hashed columns, or very many features."""
        hashed = any(plan.kind == "hashed" for plan in self.columns)
        return hashed or self.num_columns > MAX_DENSE_COLUMNS

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature, built on every call; 2^bits of them for a hashed column."""
        return tuple(self._names(self.columns))

    def encode(
        self, columns: Mapping[str, npt.NDArray[Any]], *, num_rows: int | None = None
    ) -> DenseFeatures | CsrFeatures:
        """Encodes a block to shape (num_rows, num_columns), rows of norm at most `feature_norm`.

        Args:
            columns: At least every feature column, of one entry per row.
            num_rows: Number of rows; only needed when ``columns`` is empty.
        """
        for plan in self.columns:
            if plan.column not in columns:
                raise ValueError(f"table must have the public column {plan.column!r}")
        lengths = {len(array) for array in columns.values()}
        lengths |= set() if num_rows is None else {num_rows}
        if len(lengths) != 1:
            raise ValueError(f"columns must have one length, or num_rows, got {sorted(lengths)}")
        (rows,) = lengths
        # Columns own disjoint, rising ranges of features, so these indices rise in each row.
        index = np.zeros((rows, 1 + len(self.columns)), dtype=np.int32)
        data = np.ones((rows, 1 + len(self.columns)), dtype=np.float32)
        offset = 1
        for position, plan in enumerate(self.columns, start=1):
            local, data[:, position] = plan.entries(columns[plan.column])
            index[:, position] = offset + local
            offset += plan.width + plan.has_nulls
        norms = np.sqrt(np.einsum("ij,ij->i", data, data, dtype=np.float64))
        factors = np.minimum(1.0, self.feature_norm * _BELOW_NORM / norms)
        np.multiply(data, factors[:, np.newaxis], out=data, casting="same_kind")
        if not self.is_sparse:
            dense = np.zeros((rows, self.num_columns), dtype=np.float32)
            np.put_along_axis(dense, index, data, axis=1)
            return DenseFeatures(dense)
        is_used = data != 0.0
        pointers = np.concatenate([[0], np.cumsum(is_used.sum(axis=1))])
        return CsrFeatures(data[is_used], index[is_used], pointers, self.num_columns)

    @staticmethod
    def _names(plans: Iterable[ColumnPlan]) -> list[str]:
        names = [INTERCEPT]
        for plan in plans:
            names += plan.labels()
            names += [f"{plan.column}?null"] if plan.has_nulls else []
        return names

    def to_json(self) -> str:
        """Returns the plan as JSON text; `from_json` gives an equal plan back."""
        columns = [
            {key: value for key, value in dataclasses.asdict(plan).items() if value is not None}
            for plan in self.columns
        ]
        plan = {"format": _FORMAT, "feature_norm": self.feature_norm, "columns": columns}
        return json.dumps(plan, indent=1, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EncoderPlan:
        """Builds a plan from the text of `to_json`, or raises ValueError if it is none."""
        try:
            plan = json.loads(text)
            if plan["format"] != _FORMAT:
                raise ValueError(f"format must be {_FORMAT}, got {plan['format']!r}")
            columns = tuple(ColumnPlan(**column) for column in plan["columns"])
            return cls(columns=columns, feature_norm=float(plan["feature_norm"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"text must be the JSON of an encoder plan: {error}") from None


def statistics_for(spec: Spec) -> dict[str, ColumnStatistics]:
    """Returns empty statistics for every public feature."""
    return {encoding.column: ColumnStatistics(encoding=encoding) for encoding in spec.data.encode}


def _read(
    name: str, kind: str, array: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any], str | None]:
    """Returns which rows are null, the others' entries, and the type of these, if any, checked."""
    array = np.asarray(array)
    if array.ndim != 1 or array.dtype.kind not in "biufUO":
        raise ValueError(
            f"column {name!r} must be one-dimensional and hold numbers, strings or bools, found "
            f"an array of {array.dtype} with {array.ndim} dimension(s)"
        )
    if array.dtype.kind == "O":
        listed = array.tolist()
        nulls = (entry is None or entry != entry for entry in listed)
        is_null = np.fromiter(nulls, dtype=np.bool_, count=len(listed))
    else:
        is_null = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.size, dtype=bool)
    entries = array[~is_null]
    if entries.size == 0:
        return is_null, np.zeros(0), None
    found = _type_of(entries if entries.dtype.kind == "O" else entries[:1])
    if found is None:
        raise ValueError(f"column {name!r} must hold one type of values: numbers, strings or bools")
    if kind in ("numeric", "log", "bins"):
        if found == "string":
            raise ValueError(f"column {name!r} must hold numbers to be encoded as {kind}")
        found = "number"
    if found == "bool":
        entries = entries.astype(np.bool_)
    elif found == "number" and kind != "hashed":  # whose integers may need more than 53 bits
        # Adding zero turns -0.0 into 0.0, so that which of them comes first cannot matter.
        entries = entries.astype(np.float64) + 0.0
        if not np.isfinite(entries).all():
            raise ValueError(f"column {name!r} must hold finite numbers, found an infinity")
    if kind == "log":
        if entries.min() < 0.0:
            raise ValueError(f"column {name!r} must hold no negative number to be encoded as log")
        entries = np.log1p(entries)
    return is_null, entries, found


def _type_of(entries: npt.NDArray[Any]) -> str | None:
    types = set(map(type, entries.tolist()))
    for name, classes in _TYPES.items():
        if all(issubclass(found, classes) for found in types):
            # To Python a bool is an integer, but a column that mixes them is a mistake.
            return None if name == "number" and types & {bool, np.bool_} else name
    return None


def _text(value: Value) -> str:
    """The text of a value; the same for 7, 7.0 and "7", as formats disagree about types."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _exact_sums(numbers: Float64) -> tuple[int, int]:
    """Returns sum(x) * 2^1126 and sum(x^2) * 2^2252, exactly, for at most 2^20 finite numbers.

    x is m * 2^(e - 53) with an integer |m| < 2^53. Numbers of one exponent e are added as integers:
    m = high * 2^27 + low, and a product of these has at most 54 bits, so `_sum` cannot overflow.
    """
    mantissas, exponents = np.frexp(numbers)
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    total = squares = 0
    for exponent in np.unique(exponents):
        m = integers[exponents == exponent]
        high, low = m >> _LOW_BITS, m & _LOW_MASK
        shift = int(exponent) - 53 + _SUM_EXPONENT
        total += _sum(m) << shift
        squares += _sum(high * high) << (2 * shift + 2 * _LOW_BITS)
        squares += _sum(high * low) << (2 * shift + _LOW_BITS + 1)
        squares += _sum(low * low) << (2 * shift)
    return total, squares


def _sum(integers: Int64) -> int:
    high, low = integers >> _LOW_BITS, integers & _LOW_MASK
    return (int(high.sum()) << _LOW_BITS) + int(low.sum())


def _square_root(value: Fraction) -> float:
    """Square root of an exact number that may be far outside the range of floats."""
    shift = (value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 64
    scaled = value * Fraction(2) ** (2 * shift)
    return math.ldexp(math.isqrt(int(scaled)), -shift)
