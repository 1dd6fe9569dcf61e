"""Marginals: how many rows fall into each (public group, private cell).

f(i, y) is the unit vector of cell (group_i, cell_y), so a neighbour moves one row from one cell to
another: the l2 sensitivity is sqrt(2), exactly. Without a cell map the cells are the codes
themselves; a one-column histogram is the case of one group. The lower-bound instances of the paper
are marginals too (:mod:`ssdp_core.lower_bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.features import PublicRows
from ssdp_core.queries.base import (
    BlockEvaluation,
    Codes,
    Float32,
    Float64,
    Tile,
    tile_bounds,
    widen_sensitivity,
)
from ssdp_core.queries.tabulated import group_mass, group_numbers


class MarginalQuery:
    """Counts of rows per (group, cell), flattened as index group * num_cells + cell.

    Args:
        num_codes: size k of the private domain.
        cells: integer (k,) cell of every code; None for one cell per code.
        group_column: public column with group numbers; None for one group.
        num_groups: number of public groups.
    """

    def __init__(
        self,
        *,
        num_codes: int,
        cells: npt.ArrayLike | None = None,
        group_column: str | None = None,
        num_groups: int = 1,
    ) -> None:
        self._num_codes = _validate.integer_at_least(2, num_codes=num_codes)
        self._num_groups = _validate.integer_at_least(1, num_groups=num_groups)
        self._group_column = group_column
        self._cells = (
            np.arange(num_codes)
            if cells is None
            else _validate.public_array(1, np.int64, cells=cells)
        )
        if self._cells.size != num_codes or self._cells.min() < 0:
            raise ValueError(f"cells must give a cell number >= 0 for each of {num_codes} codes")
        self._num_cells = int(self._cells.max()) + 1
        if self._num_cells < 2:
            raise ValueError("cells must be at least 2 different ones: one cell counts all rows")

    @property
    def dimension(self) -> int:
        """num_groups * num_cells."""
        return self._num_groups * self._num_cells

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return self._num_codes

    @property
    def norm_bound(self) -> float:
        """Every row contributes a unit vector."""
        return 1.0

    def evaluate(
        self, rows: PublicRows, *, beliefs: Float32 | None = None, codes: Codes | None = None
    ) -> BlockEvaluation:
        """Counts over ``rows``; integers on the data side, so nothing is rounded."""
        groups = group_numbers(rows, self._group_column, self._num_groups)
        data_sum = belief_sum = None
        if codes is not None:
            index = groups.astype(np.int64) * self._num_cells + self._cells[codes]
            data_sum = np.bincount(index, minlength=self.dimension).astype(np.float64)
        if beliefs is not None:
            mass = group_mass(groups, beliefs, self._num_groups)
            merged = np.zeros((self._num_groups, self._num_cells))
            np.add.at(merged.T, self._cells, mass.T)
            belief_sum = merged.reshape(-1)
        return BlockEvaluation(
            data_sum=data_sum,
            belief_sum=belief_sum,
            row_sensitivity=widen_sensitivity(math.sqrt(2.0), 1.0),
        )

    def inner_products(self, rows: PublicRows, direction: Float64) -> Iterator[Tile]:
        """direction[group_i, cell_y]."""
        groups = group_numbers(rows, self._group_column, self._num_groups)
        per_group = direction.reshape(self._num_groups, self._num_cells)[:, self._cells]
        products = per_group.astype(np.float32)
        for start, stop in tile_bounds(rows.num_rows, self._num_codes):
            yield Tile(start, stop, products[groups[start:stop]])
