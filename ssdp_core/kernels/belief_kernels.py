"""Multiplicative weights on float32 beliefs, given the grid of inner products.

Cost of :func:`multiply_weights` per cell: 8 bytes read, 4 written, one exponential.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ssdp_core.kernels.elementary import EXP32_LIMIT, exp32

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LOWEST = np.float32(-EXP32_LIMIT)
BELIEF_FLOOR = 2.0**-100
"""Added to every weight before normalising: no code ever becomes impossible by underflow."""
_FLOOR = np.float32(BELIEF_FLOOR)
SAFE_EXPONENT = 40.0
"""|step * truncation| up to which exp needs no shift by the row's maximum."""


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "nnan"}, error_model="numpy")
def multiply_weights(
    beliefs: Float32, products: Float32, step: np.float32, truncation: np.float32
) -> None:
    """p_i(y) <- p_i(y) exp(step * trunc(products[i, y])) / Z_i, for |step * truncation| <= 40."""
    num_rows, num_codes = beliefs.shape
    limit = abs(step) * truncation
    for i in range(num_rows):
        total = _ZERO
        for y in range(num_codes):
            exponent = min(max(step * products[i, y], -limit), limit)
            weight = beliefs[i, y] * exp32(exponent) + _FLOOR
            beliefs[i, y] = weight
            total += weight
        scale = _ONE / total
        for y in range(num_codes):
            beliefs[i, y] *= scale


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "nnan"}, error_model="numpy")
def multiply_weights_shifted(
    beliefs: Float32, products: Float32, step: np.float32, truncation: np.float32
) -> None:
    """The same for any step: exponents are taken relative to the row's largest."""
    num_rows, num_codes = beliefs.shape
    for i in range(num_rows):
        largest = np.float32(-np.inf)
        for y in range(num_codes):
            clipped = min(max(products[i, y], -truncation), truncation)
            largest = max(largest, step * clipped)
        total = _ZERO
        for y in range(num_codes):
            clipped = min(max(products[i, y], -truncation), truncation)
            exponent = max(step * clipped - largest, _LOWEST)
            weight = beliefs[i, y] * exp32(exponent) + _FLOOR
            beliefs[i, y] = weight
            total += weight
        scale = _ONE / total
        for y in range(num_codes):
            beliefs[i, y] *= scale


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "nnan"}, error_model="numpy")
def add_log_partition(
    beliefs: Float32,
    products: Float32,
    steps: Float32,
    truncation: np.float32,
    totals: Float64,
) -> None:
    """totals[g] += sum_i log sum_y p_i(y) exp(steps[g] * trunc(products[i, y]))."""
    num_rows, num_codes = beliefs.shape
    for i in range(num_rows):
        for g in range(steps.shape[0]):
            step = steps[g]
            largest = np.float32(-np.inf)
            for y in range(num_codes):
                clipped = min(max(products[i, y], -truncation), truncation)
                largest = max(largest, step * clipped)
            total = _ZERO
            for y in range(num_codes):
                clipped = min(max(products[i, y], -truncation), truncation)
                total += beliefs[i, y] * exp32(max(step * clipped - largest, _LOWEST))
            totals[g] += math.log(total) + largest


@njit(nogil=True, cache=True)
def add_group_mass(groups: npt.NDArray[np.int32], beliefs: Float32, mass: Float64) -> None:
    """mass[g, y] += sum of p_i(y) over the rows i of group g."""
    for i in range(beliefs.shape[0]):
        row = mass[groups[i]]
        for y in range(beliefs.shape[1]):
            row[y] += beliefs[i, y]
