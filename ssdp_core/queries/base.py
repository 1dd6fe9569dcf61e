"""Linear vector queries: what may be asked about the table.

A query f maps a row's public part and a private code to a vector, f(i, y). Its value on the data is
the sum (or mean) of f(i, a_i) over rows, and under beliefs p the sum of sum_y p_i(y) f(i, y). Both
are linear in the rows, so blocks of rows can be evaluated anywhere and added up.

A query is public: it knows weights, tables and column names, never private codes. Codes are an
argument of :meth:`LinearVectorQuery.evaluate`, handed over by the engine in a private pass and not
at all in a public one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ssdp_core.features import PublicRows

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]

SENSITIVITY_RELATIVE_SLACK = 2.0**-30
SENSITIVITY_ABSOLUTE_SLACK = 2.0**-45
_SQUARE_SLACK = 2.0**-40


def widen_sensitivity(l2_distance: float, norm_bound: float) -> float:
    """Rounds a distance that was computed directly up, by more than its rounding error.

    Entries carry relative errors of a few 2^-53 of the query's norm bound; the absolute term covers
    them where the distance itself is tiny, the relative one where it is large.
    """
    return (
        l2_distance * (1.0 + SENSITIVITY_RELATIVE_SLACK) + norm_bound * SENSITIVITY_ABSOLUTE_SLACK
    )


def widen_squared_sensitivity(squared_distance: float, norm_bound: float) -> float:
    """The root of a squared distance that was computed by subtracting squares, rounded up.

    Such a square is off by a few 2^-53 of norm_bound^2 for every private feature of a code, however
    small it is. 2^-40, eight thousand times that unit, is added before the root is taken. Anything
    that is not finite becomes infinity, which no mechanism takes.
    """
    if not squared_distance < math.inf:
        return math.inf
    widened = squared_distance + _SQUARE_SLACK * norm_bound * norm_bound
    return widen_sensitivity(math.sqrt(widened), norm_bound)


@dataclass(frozen=True, kw_only=True)
class BlockEvaluation:
    """One query on one block of rows.

    Attributes:
        data_sum: PRIVATE. float64 (dimension,), sum of f(i, a_i); None in a public pass.
        belief_sum: float64 (dimension,), sum of E_{p_i} f(i, .); None if no beliefs were given.
        row_sensitivity: sound bound on |f(i, y) - f(i, y')| over the block's rows and all codes.
    """

    data_sum: Float64 | None = field(repr=False)
    belief_sum: Float64 | None
    row_sensitivity: float


@dataclass(frozen=True)
class Tile:
    """Inner products of some consecutive rows: ``products`` is float32 (stop - start, k)."""

    start: int
    stop: int
    products: Float32


class LinearVectorQuery(Protocol):
    """A vector-valued query that is a sum over rows."""

    @property
    def dimension(self) -> int:
        """Length of f(i, y)."""

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""

    @property
    def norm_bound(self) -> float:
        """Public bound on |f(i, y)| over all rows and codes (1 for a query of the paper)."""

    def evaluate(
        self, rows: PublicRows, *, beliefs: Float32 | None = None, codes: Codes | None = None
    ) -> BlockEvaluation:
        """Sums over ``rows``: under the beliefs if given, on the data if codes are given."""

    def inner_products(self, rows: PublicRows, direction: Float64) -> Iterator[Tile]:
        """<direction, f(i, y)> for every row and code, a cache-sized tile of rows at a time."""


def tile_bounds(num_rows: int, cells_per_row: int) -> Iterator[tuple[int, int]]:
    """Splits rows into tiles of about 2^19 cells: two megabytes of float32, a core's cache."""
    step = max(64, min(8192, (1 << 19) // max(1, cells_per_row)))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)
