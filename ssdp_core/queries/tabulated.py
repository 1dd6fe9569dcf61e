"""Queries given by a table: f(i, y) = table[group_i, y].

Public rows enter only through a group number. This covers counts and means of anything that depends
on a few public groups and the private code. The data side is exact: an integer contingency
table of (group, code), then one product with the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.features import PublicRows
from ssdp_core.kernels import belief_kernels
from ssdp_core.queries.base import (
    BlockEvaluation,
    Codes,
    Float32,
    Float64,
    Tile,
    tile_bounds,
    widen_sensitivity,
)

_EXACT_PAIRS_LIMIT = 1024


class TabulatedQuery:
    """f(i, y) = table[group_i, y], a vector.

    Guarantee:
        ``row_sensitivity`` is the largest distance between two entries of one group that occurs in
        the block: exact for scalar queries and up to 1,024 codes; beyond that twice the radius of a
        ball around the group's entries, which is never below.

    Args:
        table: (groups, k, dimension) public values, or (groups, k) for a scalar query, or (k,) for
            a scalar query without groups.
        group_column: name of the public column with group numbers; None if there is one group.
    """

    def __init__(self, *, table: npt.ArrayLike, group_column: str | None = None) -> None:
        values = np.asarray(table, dtype=np.float64)
        if values.ndim == 1:
            values = values[None, :, None]
        elif values.ndim == 2:
            values = values[:, :, None]
        self._table: Float64 = _validate.public_array(3, np.float64, table=values)
        num_groups, self._num_codes, self._dimension = (int(size) for size in self._table.shape)
        if self._num_codes < 2:
            raise ValueError(
                f"table must have at least 2 codes (its second axis), got {self._num_codes}"
            )
        if group_column is None and num_groups != 1:
            raise ValueError(f"table has {num_groups} groups: name the group_column of the rows")
        self._group_column = group_column
        norms = np.sqrt((self._table**2).sum(axis=2))
        self._norm_bound = float(norms.max()) * (1.0 + 2.0**-40)
        if self._norm_bound == 0.0:
            raise ValueError("table must not be all zero: the answer would be known")
        self._group_diameters = np.array([_diameter(entries) for entries in self._table])

    @property
    def dimension(self) -> int:
        """Length of a table entry."""
        return self._dimension

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return self._num_codes

    @property
    def norm_bound(self) -> float:
        """The largest entry's norm."""
        return self._norm_bound

    def evaluate(
        self, rows: PublicRows, *, beliefs: Float32 | None = None, codes: Codes | None = None
    ) -> BlockEvaluation:
        """Sums over ``rows`` through the (group, code) contingency table."""
        groups = group_numbers(rows, self._group_column, self._table.shape[0])
        data_sum = belief_sum = None
        if codes is not None:
            counts = np.bincount(
                groups.astype(np.int64) * self._num_codes + codes,
                minlength=self._table.shape[0] * self._num_codes,
            )
            data_sum = self._apply(counts.reshape(self._table.shape[:2]).astype(np.float64))
        if beliefs is not None:
            belief_sum = self._apply(group_mass(groups, beliefs, self._table.shape[0]))
        present = np.unique(groups)
        return BlockEvaluation(
            data_sum=data_sum,
            belief_sum=belief_sum,
            row_sensitivity=widen_sensitivity(
                float(self._group_diameters[present].max()), self._norm_bound
            ),
        )

    def inner_products(self, rows: PublicRows, direction: Float64) -> Iterator[Tile]:
        """<direction, table[group_i, y]>."""
        groups = group_numbers(rows, self._group_column, self._table.shape[0])
        products = (self._table * direction).sum(axis=2).astype(np.float32)
        for start, stop in tile_bounds(rows.num_rows, self._num_codes):
            yield Tile(start, stop, products[groups[start:stop]])

    def _apply(self, weights: Float64) -> Float64:
        return np.asarray((self._table * weights[:, :, None]).sum(axis=(0, 1)))


def count_query(
    codes: npt.ArrayLike,
    *,
    num_codes: int,
    groups: npt.ArrayLike | None = None,
    num_groups: int = 1,
    group_column: str | None = None,
) -> TabulatedQuery:
    """How many rows have one of ``codes`` (and, if given, one of the public ``groups``)."""
    table = np.zeros((num_groups, num_codes))
    chosen = np.arange(num_groups) if groups is None else np.asarray(groups, dtype=np.int64)
    table[np.ix_(chosen, np.asarray(codes, dtype=np.int64))] = 1.0
    return TabulatedQuery(table=table, group_column=group_column)


def mean_query(values: npt.ArrayLike) -> TabulatedQuery:
    """The mean over rows of a number attached to every private code: float (k,)."""
    return TabulatedQuery(table=values)


def group_numbers(
    rows: PublicRows, group_column: str | None, num_groups: int
) -> npt.NDArray[np.int32]:
    """The rows' public group numbers, checked to lie in 0..num_groups-1."""
    if group_column is None:
        return np.zeros(rows.num_rows, dtype=np.int32)
    column = rows.column(group_column)
    if not np.issubdtype(column.dtype, np.integer):
        raise ValueError(f"group column {group_column!r} must hold integers, got {column.dtype}")
    groups = np.ascontiguousarray(column, dtype=np.int32)
    if groups.min() < 0 or groups.max() >= num_groups:
        raise ValueError(f"group column {group_column!r} must hold numbers in 0..{num_groups - 1}")
    return groups


def group_mass(groups: npt.NDArray[np.int32], beliefs: Float32, num_groups: int) -> Float64:
    """Total belief of every (group, code): float64 (groups, k)."""
    mass = np.zeros((num_groups, beliefs.shape[1]))
    belief_kernels.add_group_mass(groups, beliefs, mass)
    return mass


def _diameter(entries: Float64) -> float:
    """Largest distance between two of the given points, (k, dimension); see TabulatedQuery."""
    if entries.shape[1] == 1:
        return float(np.ptp(entries))
    if entries.shape[0] > _EXACT_PAIRS_LIMIT:
        centre = (entries.max(axis=0) + entries.min(axis=0)) / 2.0
        return 2.0 * float(np.sqrt(((entries - centre) ** 2).sum(axis=1)).max())
    largest = 0.0
    for point in entries:
        largest = max(largest, float(((entries - point) ** 2).sum(axis=1).max()))
    return float(np.sqrt(largest))
