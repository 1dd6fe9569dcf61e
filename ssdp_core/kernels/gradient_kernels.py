"""Passes over the (row, code) grid for gradients of margin losses.

A gradient factors: f(i, y) = s(i, y) * [x_i ; E_y]. So its sum over rows needs only two reductions
of the grid of scores, one over codes for every row (to be multiplied with X) and one over rows for
every code (to be multiplied with E): n*(d + k) work instead of n*k*d.

Cost of :func:`belief_reduce` per cell: 4 bytes read (the belief), one division, two multiplications
and four additions for the logistic loss; nothing is written but the two sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ssdp_core.kernels.score_kernels import fill_scores, score

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_ZERO = np.float32(0.0)
_FLUSH_ROWS = 128  # column sums are float32 for at most this many rows, then go into float64


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"}, error_model="numpy")
def belief_reduce(
    code: int,
    parameter: np.float32,
    margins: Float32,
    exp_minus_margins: Float32,
    row_targets: Float32,
    offsets: Float32,
    exp_minus_offsets: Float32,
    code_targets: Float32,
    outer_product: npt.NDArray[np.bool_],
    beliefs: Float32,
    row_sums: Float64,
    code_sums: Float64,
) -> None:
    """row_sums[i] = sum_y p_i(y) s(i, y);  code_sums[y] += sum_i p_i(y) s(i, y)."""
    num_rows, num_codes = beliefs.shape
    scores = np.empty(num_codes, np.float32)
    partial = np.zeros(num_codes, np.float32)
    for i in range(num_rows):
        fill_scores(
            code,
            parameter,
            margins[i],
            exp_minus_margins[i],
            row_targets[i],
            offsets,
            exp_minus_offsets,
            code_targets,
            outer_product[i],
            scores,
        )
        total = _ZERO
        for y in range(num_codes):
            term = beliefs[i, y] * scores[y]
            partial[y] += term
            total += term
        row_sums[i] = total
        if (i + 1) % _FLUSH_ROWS == 0 or i + 1 == num_rows:
            for y in range(num_codes):
                code_sums[y] += partial[y]
                partial[y] = _ZERO


@njit(nogil=True, cache=True)
def data_reduce(
    code: int,
    parameter: float,
    margins: Float64,
    row_targets: Float64,
    offsets: Float64,
    code_targets: Float64,
    codes: npt.NDArray[np.int32],
    row_scores: Float64,
    code_sums: Float64,
) -> None:
    """row_scores[i] = s(i, a_i);  code_sums[a_i] += s(i, a_i). PRIVATE: reads the codes."""
    for i in range(margins.shape[0]):
        y = codes[i]
        value = score(code, parameter, margins[i] + offsets[y], row_targets[i] + code_targets[y])
        row_scores[i] = value
        code_sums[y] += value


@njit(nogil=True, cache=True, fastmath={"nsz", "contract"}, error_model="numpy")
def inner_products(
    code: int,
    parameter: np.float32,
    margins: Float32,
    exp_minus_margins: Float32,
    row_targets: Float32,
    offsets: Float32,
    exp_minus_offsets: Float32,
    code_targets: Float32,
    outer_product: npt.NDArray[np.bool_],
    row_products: Float32,
    code_products: Float32,
    out: Float32,
) -> None:
    """out[i, y] = s(i, y) * (row_products[i] + code_products[y]) = <direction, f(i, y)>."""
    num_rows, num_codes = out.shape
    for i in range(num_rows):
        row = out[i]
        fill_scores(
            code,
            parameter,
            margins[i],
            exp_minus_margins[i],
            row_targets[i],
            offsets,
            exp_minus_offsets,
            code_targets,
            outer_product[i],
            row,
        )
        product = row_products[i]
        for y in range(num_codes):
            row[y] *= product + code_products[y]


@njit(nogil=True, cache=True)
def extreme_scores(
    code: int,
    parameter: float,
    margins: Float64,
    row_targets: Float64,
    target_values: Float64,
    extreme_offsets: Float64,
    out: Float64,
) -> None:
    """The two smallest and two largest scores of every row over all codes.

    A convex loss has a derivative that never falls as the margin grows. So among the codes that
    share a private target, the extreme scores are at the extreme offsets.

    Args:
        code: the loss.
        parameter: its parameter.
        margins: (rows,) public margins.
        row_targets: (rows,) public targets.
        target_values: (v,) distinct private targets.
        extreme_offsets: (v, 4) smallest, second smallest, second largest and largest offset of the
            codes with each target; NaN where a target has fewer codes.
        out: (rows, 4) scores in the same order.
    """
    for i in range(margins.shape[0]):
        low = np.inf
        next_low = np.inf
        high = -np.inf
        next_high = -np.inf
        for v in range(target_values.shape[0]):
            target = row_targets[i] + target_values[v]
            for e in range(4):
                offset = extreme_offsets[v, e]
                if np.isnan(offset):
                    continue
                value = score(code, parameter, margins[i] + offset, target)
                if e < 2:
                    if value < low:
                        low, next_low = value, low
                    elif value < next_low:
                        next_low = value
                elif value > high:
                    high, next_high = value, high
                elif value > next_high:
                    next_high = value
        out[i, 0] = low
        out[i, 1] = next_low
        out[i, 2] = next_high
        out[i, 3] = high
