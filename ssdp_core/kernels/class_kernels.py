"""The grid passes of :mod:`ssdp_core.kernels.gradient_kernels` for the multinomial loss.

Here a score is a vector: s(i, y) = softmax(z_i + b_y) - e_target, one entry per class. A target is
a class number; -1 says that this array does not hold it (public targets come with rows, private
ones with codes).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ssdp_core.kernels.elementary import EXP32_LIMIT, exp32

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_LOWEST = np.float32(-EXP32_LIMIT)


@njit(nogil=True, cache=True)
def class_scores(margins: Float64, offsets: Float64, target: int, out: Float64) -> None:
    """Out = softmax(margins + offsets) - e_target, in float64."""
    largest = -np.inf
    for c in range(out.shape[0]):
        out[c] = margins[c] + offsets[c]
        largest = max(largest, out[c])
    total = 0.0
    for c in range(out.shape[0]):
        out[c] = math.exp(out[c] - largest)
        total += out[c]
    for c in range(out.shape[0]):
        out[c] /= total
    out[target] -= 1.0


@njit(nogil=True, cache=True)
def _class_scores32(margins: Float32, offsets: Float32, target: int, out: Float32) -> None:
    """The same in float32, for public averages."""
    largest = np.float32(-np.inf)
    for c in range(out.shape[0]):
        out[c] = margins[c] + offsets[c]
        largest = max(largest, out[c])
    total = _ZERO
    for c in range(out.shape[0]):
        out[c] = exp32(max(out[c] - largest, _LOWEST))
        total += out[c]
    for c in range(out.shape[0]):
        out[c] /= total
    out[target] -= _ONE


@njit(nogil=True, cache=True)
def belief_reduce_classes(
    margins: Float32,
    row_targets: Int32,
    offsets: Float32,
    code_targets: Int32,
    beliefs: Float32,
    row_sums: Float64,
    code_sums: Float64,
) -> None:
    """row_sums[i] = sum_y p_i(y) s(i, y);  code_sums[y] += sum_i p_i(y) s(i, y)."""
    num_rows, num_codes = beliefs.shape
    num_classes = margins.shape[1]
    scores = np.empty(num_classes, np.float32)
    for i in range(num_rows):
        for c in range(num_classes):
            row_sums[i, c] = 0.0
        for y in range(num_codes):
            target = max(row_targets[i], code_targets[y])
            _class_scores32(margins[i], offsets[y], target, scores)
            for c in range(num_classes):
                term = np.float64(beliefs[i, y] * scores[c])
                row_sums[i, c] += term
                code_sums[y, c] += term


@njit(nogil=True, cache=True)
def data_reduce_classes(
    margins: Float64,
    row_targets: Int32,
    offsets: Float64,
    code_targets: Int32,
    codes: Int32,
    row_scores: Float64,
    code_sums: Float64,
) -> None:
    """row_scores[i] = s(i, a_i);  code_sums[a_i] += s(i, a_i). PRIVATE: reads the codes."""
    for i in range(margins.shape[0]):
        y = codes[i]
        target = max(row_targets[i], code_targets[y])
        class_scores(margins[i], offsets[y], target, row_scores[i])
        for c in range(margins.shape[1]):
            code_sums[y, c] += row_scores[i, c]


@njit(nogil=True, cache=True)
def inner_products_classes(
    margins: Float32,
    row_targets: Int32,
    offsets: Float32,
    code_targets: Int32,
    row_products: Float32,
    code_products: Float32,
    out: Float32,
) -> None:
    """out[i, y] = sum_c s_c(i, y) (row_products[i, c] + code_products[y, c])."""
    num_rows, num_codes = out.shape
    num_classes = margins.shape[1]
    scores = np.empty(num_classes, np.float32)
    for i in range(num_rows):
        for y in range(num_codes):
            target = max(row_targets[i], code_targets[y])
            _class_scores32(margins[i], offsets[y], target, scores)
            total = _ZERO
            for c in range(num_classes):
                total += scores[c] * (row_products[i, c] + code_products[y, c])
            out[i, y] = total


@njit(nogil=True, cache=True)
def score_spread_classes(
    margins: Float64,
    row_targets: Int32,
    offsets: Float64,
    code_targets: Int32,
    squared_spread: Float64,
    largest_squared: Float64,
) -> None:
    """Per row: a bound on max |s(y) - s(y')|^2, and max |s(y)|^2, over codes.

    The first is the squared diagonal of the smallest box around all s(i, y), at most 8 since every
    score has norm at most sqrt(2).
    """
    num_classes = margins.shape[1]
    scores = np.empty(num_classes)
    low = np.empty(num_classes)
    high = np.empty(num_classes)
    for i in range(margins.shape[0]):
        low[:] = np.inf
        high[:] = -np.inf
        largest = 0.0
        for y in range(offsets.shape[0]):
            class_scores(margins[i], offsets[y], max(row_targets[i], code_targets[y]), scores)
            norm = 0.0
            for c in range(num_classes):
                low[c] = min(low[c], scores[c])
                high[c] = max(high[c], scores[c])
                norm += scores[c] * scores[c]
            largest = max(largest, norm)
        diagonal = 0.0
        for c in range(num_classes):
            diagonal += (high[c] - low[c]) * (high[c] - low[c])
        squared_spread[i] = min(diagonal, 4.0 * largest)
        largest_squared[i] = largest
