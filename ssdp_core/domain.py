"""Declared domains of the sensitive columns, and the private codes and features they give.

The sensitive columns of a row are private; what values they *may* take is declared by the user
and public. Every column has ``size`` possible values (one of them may be "other"), and a row's
private values together are one integer, its *code*, in mixed radix with the last column fastest::

    code = (... (index_0 * size_1 + index_1) * size_2 + index_2 ...)    0 <= code < num_codes

Everything stored in the classes below is public. Private data enters only as the argument of
`PrivateDomain.encode`; its errors name the column and the number of declared values, and never
show a value, a row or a count of rows, neither in the message nor in a chained exception.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.columns import (
    Column,
    Encoding,
    Role,
    Value,
    column_array,
)

MAX_CODES = 10_000  # beliefs hold one number per row and code
_MAX_EXACT_PAIRS = 2_000  # from_matrix compares all pairs up to this many codes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PrivateFeatures:
    """The private part E_y of a row's features, for every private code y.

    Build it with `PrivateDomain.private_features` or `from_matrix`, which know sound bounds. Every
    sensitive column gives a code one entry that is not zero, so E is kept as positions and entries:
    10,000 codes of one one-hot column take 120 kB and not 800 MB.

    Attributes:
        positions: Features that code y sets, int32 (num_codes, entries per code), read only.
        entries: Their values, float64 of the same shape, read only.
        names: One name per feature; none when only targets are private.
        inner_min: Lower bound on <E_y, E_y'> over all pairs of codes y != y'.
        inner_max: Upper bound on <E_y, E_y'> over all pairs of codes y != y'.
        max_norm: Largest l2 norm of E_y. Like the bounds, it is correct up to float64 rounding.
    """

    positions: npt.NDArray[np.int32]
    entries: npt.NDArray[np.float64]
    names: tuple[str, ...]
    inner_min: float
    inner_max: float
    max_norm: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        positions = _read_only(np.array(self.positions, dtype=np.int32))
        entries = _read_only(_validate.public_array(2, entries=self.entries).copy())
        if entries.shape[0] < 2 or positions.shape != entries.shape:
            raise ValueError(
                "entries and positions must have one row per code, at least 2, and one shape, got "
                f"{entries.shape} and {positions.shape}"
            )
        if positions.size and not 0 <= positions.min() <= positions.max() < len(self.names):
            raise ValueError(f"positions must lie in 0..{len(self.names) - 1}")
        squared = float(np.einsum("ij,ij->i", entries, entries).max(initial=0.0))
        slack = 1e-9 * squared
        if not -squared - slack <= self.inner_min <= self.inner_max <= squared + slack < math.inf:
            raise ValueError(
                "inner_min and inner_max must be ordered and within the largest squared norm of a "
                f"row, {squared!r}, got {self.inner_min!r} and {self.inner_max!r}"
            )
        object.__setattr__(self, "positions", positions)
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "max_norm", math.sqrt(squared))

    @classmethod
    def from_matrix(cls, matrix: npt.ArrayLike) -> PrivateFeatures:
        """Builds the features of an arbitrary encoding, of shape (num_codes, num_features).

        The bounds are exact up to 2,000 codes. Above that they follow from Cauchy-Schwarz, with 0
        as the lower bound when no entry is negative. The names are ``private_0``, ``private_1``...
        """
        array = _validate.public_array(2, matrix=matrix)
        num_codes, num_features = array.shape
        if 2 <= num_codes <= _MAX_EXACT_PAIRS:
            products = (array @ array.T)[~np.eye(num_codes, dtype=bool)]
            inner_min, inner_max = float(products.min()), float(products.max())
        else:
            inner_max = float(np.einsum("ij,ij->i", array, array).max(initial=0.0))
            inner_min = 0.0 if (array >= 0).all() else -inner_max
        return cls(
            positions=np.tile(np.arange(num_features, dtype=np.int32), (num_codes, 1)),
            entries=array,
            names=tuple(f"private_{j}" for j in range(num_features)),
            inner_min=inner_min,
            inner_max=inner_max,
        )

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return int(self.entries.shape[0])

    @property
    def num_features(self) -> int:
        """Length of E_y."""
        return len(self.names)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        """E as a dense matrix, float64 (num_codes, num_features), built on every call."""
        dense = np.zeros((self.num_codes, self.num_features))
        np.add.at(dense, (np.arange(self.num_codes)[:, None], self.positions), self.entries)
        return dense

    def apply(self, vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """E @ vector, float64 (num_codes,); NumPy's own sums, so the same bits on any thread."""
        return np.asarray((self.entries * vector[self.positions]).sum(axis=1))

    def pull_back(self, per_code: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """E.T @ per_code, float64 (num_features,), codes in order."""
        weights = (self.entries * per_code[:, None]).reshape(-1)
        sums = np.bincount(self.positions.reshape(-1), weights, minlength=self.num_features)
        return sums.astype(np.float64)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateDomain:
    """The declared joint domain of all sensitive columns.

    Attributes:
        columns: The sensitive columns; the last one varies fastest in the code.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns must be at least one, with distinct names, got {names!r}")
        if self.num_codes > MAX_CODES:
            raise ValueError(
                f"columns must have at most {MAX_CODES} joint values, got {self.num_codes}: "
                "declare fewer values, wider bins, or merge rare values into other"
            )

    @property
    def num_codes(self) -> int:
        """Number of joint values k of the sensitive columns."""
        return math.prod(column.size for column in self.columns)

    def encode(self, table: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.int32]:
        """Encodes the private columns of a table.

        Args:
            table: Maps at least every declared column to its entries, one per row: a sequence or
                array of strings, numbers, bools and nulls (None, NaN, masked). Other columns are
                not looked at.

        Returns:
            One code per row, int32 of shape (n,).

        Raises:
            ValueError: If a column is missing, or holds a null or a value that is not declared and
                it has no other. The message shows nothing of the data.
        """
        codes: npt.NDArray[np.int64] | None = None
        for column in self.columns:
            if column.name not in table:
                raise ValueError(f"table must have the sensitive column {column.name!r}")
            array = column_array(table[column.name])
            indices = None if array is None else column.indices(array)
            if indices is None:
                raise ValueError(
                    f"column {column.name!r} must be one-dimensional and hold strings, numbers, "
                    "bools or nulls"
                )
            if codes is None:
                codes = np.zeros(indices.size, dtype=np.int64)
            if indices.size == 0:
                raise ValueError(f"table must have at least one row, {column.name!r} is empty")
            if indices.size != codes.size:
                raise ValueError(
                    f"table must have columns of one length: {column.name!r} has {indices.size} "
                    f"rows, {self.columns[0].name!r} has {codes.size}"
                )
            undeclared = indices < 0
            if undeclared.any() and not column.other:
                raise ValueError(
                    f"column {column.name!r} holds a null or a value outside its {column.size} "
                    "declared values: declare every value it may hold, or set other=True to give "
                    "nulls and undeclared values a code of their own"
                )
            codes = codes * column.size + np.where(undeclared, column.size - 1, indices)
        return np.asarray(codes, dtype=np.int32)

    def decode(self, code: int) -> dict[str, Value]:
        """Returns the value of every column for one code; a bin is text such as ``[18, 30)``."""
        is_integer = isinstance(code, (int, np.integer)) and not isinstance(code, bool)
        if not is_integer or not 0 <= code < self.num_codes:
            raise ValueError(f"code must be an integer in 0..{self.num_codes - 1}")
        indices = np.unravel_index(int(code), [column.size for column in self.columns])
        return {c.name: c.labels()[int(i)] for c, i in zip(self.columns, indices, strict=True)}

    def column_codes(self, name: str) -> npt.NDArray[np.int64]:
        """Returns the index of one column's value for each code, int64 of shape (num_codes,)."""
        column = self._column(name)
        position = self.columns.index(column)
        stride = math.prod(faster.size for faster in self.columns[position + 1 :])
        return np.arange(self.num_codes, dtype=np.int64) // stride % column.size

    def target_values(self, name: str) -> npt.NDArray[np.float64]:
        """Returns a numeric target for each code, float64 of shape (num_codes,).

        Values are as declared, never scaled; a bin stands for its midpoint, bools for 0 and 1.

        Raises:
            ValueError: If the column is no target, declares other, or declares more than numbers.
        """
        return self._target(name).numbers()[self.column_codes(name)]

    def target_classes(self, name: str) -> npt.NDArray[np.int64]:
        """Returns a target's class index 0..size-1 for each code, int64 of shape (num_codes,)."""
        return self.column_codes(self._target(name).name)

    def private_features(self, exclude: Sequence[str] = ()) -> PrivateFeatures:
        """Returns the features of every code, from the columns with role feature or both.

        Args:
            exclude: Names of columns to leave out, for example the problem's own target when its
                role is both.

        Returns:
            Features with exact bounds on the inner products, up to rounding.
        """
        excluded = [self._column(name) for name in exclude]
        used = [c for c in self.columns if c.role is not Role.TARGET and c not in excluded]
        positions = np.zeros((self.num_codes, len(used)), dtype=np.int32)
        entries = np.zeros((self.num_codes, len(used)))
        width = 0
        for j, column in enumerate(used):
            indices = self.column_codes(column.name)
            if column.encoding is Encoding.ONE_HOT:
                positions[:, j], entries[:, j] = width + indices, column.scale
            else:
                positions[:, j], entries[:, j] = width, column.features()[indices, 0]
            width += len(column.feature_names())
        # Two codes differ when at least one column does, and columns vary independently. So the
        # largest product has one column at two different values and the others at their largest
        # value twice; a column without features differs at no cost. The smallest product is 0
        # because every encoding has two different rows whose product is 0.
        all_largest = sum(column.scale * column.scale for column in used)
        cost = min(map(_cost_of_differing, used)) if len(used) == len(self.columns) else 0.0
        return PrivateFeatures(
            positions=positions,
            entries=entries,
            names=tuple(name for column in used for name in column.feature_names()),
            inner_min=0.0,
            inner_max=all_largest - cost,
        )

    def _column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(repr(column.name) for column in self.columns)
        raise ValueError(f"name must be one of the declared columns {names}, got {name!r}")

    def _target(self, name: str) -> Column:
        column = self._column(name)
        if column.role is Role.FEATURE:
            raise ValueError(
                f"column {name!r} must have role 'target' or 'both' to be predicted, got 'feature'"
            )
        return column


def _cost_of_differing(column: Column) -> float:
    """Largest product of a column's feature rows minus the largest of two different indices."""
    largest = column.scale * column.scale
    if column.encoding is Encoding.ONE_HOT:
        return largest
    return largest - column.scale * float(np.sort(column.features()[:, 0])[-2])
