"""Sums that do not depend on who adds them up, and what that costs in sensitivity.

Rows are added in float64 inside a block of fixed rows and fixed order; the block's sum is rounded
to an integer number of lattice steps; blocks are added as integers. Integer addition is associative
and commutative, so the total is the same bit for bit whatever the number of workers, the order of
blocks or the shape of the reduction tree.

**Slack.** Write ``T`` for the total a curator sees, in real units, and let two datasets differ in
the private code of one row of block b. In exact arithmetic the sum moves by at most the query's
row sensitivity. What is computed differs from that in two ways:

1. *Adding in float64.* A sum of N rounded products, in any order, is off by at most
   gamma_N * sum|terms| with gamma_N = N u/(1 - N u), u = 2^-53 (Higham, "Accuracy and Stability of
   Numerical Algorithms", 2002, section 3.1). Coordinate by coordinate the sums of |terms| form a
   vector of l2 norm at most block_rows * norm_bound, by the triangle inequality. No coordinate
   takes more than block_rows + num_codes + 8 operations (the rows, then the codes when private
   features are applied to per-code sums, then scaling). Both datasets' sums carry such an error:
   twice.
2. *Rounding to the lattice* moves every coordinate by at most half a step, for both datasets: at
   most ``step`` per coordinate, ``sqrt(dimension) * step`` in l2 norm.

All other blocks are equal in both datasets and cancel exactly. Hence

    |T(D) - T(D')| <= row_sensitivity + 2 gamma block_rows norm_bound + sqrt(dimension) step.

For a privacy unit of r rows apply this r times. The step is 2^-54 of the largest possible total, so
the slack is about 1e-6 of the sensitivity for blocks of 65,536 rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate

_LATTICE_BITS = 54
_UNIT_ROUNDOFF = 2.0**-53
_NORM_CHUNK = 64
_CHUNK = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Lattice:
    """The integer multiples of ``2**exponent``; a function of public numbers only."""

    exponent: int

    @classmethod
    def for_sum(cls, num_rows: int, norm_bound: float) -> Lattice:
        """The lattice on which a sum of ``num_rows`` vectors of norm <= ``norm_bound`` lives.

        Its step is 2^-54 of the largest possible total, rounded up to a power of two; that leaves
        512 times the largest total for noise before an int64 could overflow.
        """
        _validate.integer_at_least(1, num_rows=num_rows)
        if not 1e-100 < _validate.positive(norm_bound=norm_bound) < 1e100:
            raise ValueError(f"norm_bound must be between 1e-100 and 1e100, got {norm_bound!r}")
        _, exponent = math.frexp(num_rows * norm_bound)
        return cls(exponent=exponent - _LATTICE_BITS)

    @property
    def step(self) -> float:
        """The distance between neighbouring lattice points."""
        return math.ldexp(1.0, self.exponent)

    def round(self, block_sum: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Rounds one block's sum to the nearest lattice points, in steps."""
        return self.round_in_place(block_sum.copy())

    def round_in_place(self, block_sum: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The same in the memory of ``block_sum``, whose content is lost.

        At a million features every copy of a sum counts.
        """
        # ldexp by a power of two is exact, so rint is the only rounding.
        np.ldexp(block_sum, -self.exponent, out=block_sum)
        np.rint(block_sum, out=block_sum)
        units = block_sum.view(np.int64)
        for start in range(0, units.size, _CHUNK):
            units[start : start + _CHUNK] = block_sum[start : start + _CHUNK].astype(np.int64)
        return units

    def to_float(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Lattice steps as real numbers (relative rounding 2^-53; post-processing)."""
        return np.ldexp(units.astype(np.float64), self.exponent)


def sum_slack(
    *, dimension: int, block_rows: int, num_codes: int, norm_bound: float, lattice: Lattice
) -> float:
    """What rounding adds to the l2 sensitivity of one row; derived in the module docstring."""
    operations = (block_rows + num_codes + 8) * _UNIT_ROUNDOFF
    gamma = operations / (1.0 - operations)
    slack = 2.0 * gamma * block_rows * norm_bound + math.sqrt(dimension) * lattice.step
    return slack * (1.0 + 2.0**-40)


def l2_norm(units: npt.NDArray[np.int64]) -> float:
    """The l2 norm of an integer vector, within a relative error of 2^-46.

    Chunks of 64 squares are added by NumPy in whatever order it likes (error at most 63 u), chunk
    sums exactly by ``math.fsum``; conversion, squaring and the root add a few u more.
    """
    values = units.astype(np.float64)
    squares = values * values
    whole = squares.size // _NORM_CHUNK * _NORM_CHUNK
    chunks = squares[:whole].reshape(-1, _NORM_CHUNK).sum(axis=1)
    return math.sqrt(math.fsum(chunks.tolist()) + math.fsum(squares[whole:].tolist()))


L2_NORM_RELATIVE_ERROR = 2.0**-46
"""The stated error of :func:`l2_norm`."""
