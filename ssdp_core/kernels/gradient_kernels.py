"""Passes over the (row, code) grid for gradients of margin losses.

A gradient factors: f(i, y) = s(i, y) * [x_i ; E_y]. So its sum over rows needs only two reductions
of the grid of scores, one over codes for every row (to be multiplied with X) and one over rows for
every code (to be multiplied with E): n*(d + k) work instead of n*k*d.

Cost of :func:`belief_reduce_logistic` per cell: 4 bytes read (the belief), one division, two
multiplications and four additions; nothing is written but the two sums.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ssdp_core.kernels.elementary import exp32
from ssdp_core.kernels.score_kernels import FAST_LOGISTIC_RANGE, fill_scores, score

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_FLUSH_ROWS = 128  # column sums are float32 for at most this many rows, then go into float64


@njit(nogil=True, cache=True, error_model="numpy")
def prepare_logistic(
    margins: Float64,
    row_targets: Float64,
    largest_offset: float,
    exp_minus_margins: Float32,
    targets: Float32,
) -> bool:
    """Fills exp(-z_i) and the targets in float32; False if a product might leave float32."""
    limit = FAST_LOGISTIC_RANGE - largest_offset
    within = True
    for i in range(margins.shape[0]):
        within = within & (abs(margins[i]) <= limit)
        targets[i] = np.float32(row_targets[i])
    if within:
        for i in range(margins.shape[0]):
            exp_minus_margins[i] = exp32(-np.float32(margins[i]))
    return within


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"}, error_model="numpy")
def belief_reduce_logistic(
    exp_minus_margins: Float32,
    row_targets: Float32,
    exp_minus_offsets: Float32,
    code_targets: Float32,
    beliefs: Float32,
    row_sums: Float64,
    code_sums: Float64,
) -> None:
    """:func:`belief_reduce` for the logistic loss, where exp(-z) exp(-b) stays inside float32.

    Its own loop, because here the score is cheap enough to be computed in registers.
    """
    num_rows, num_codes = beliefs.shape
    partial = np.zeros(num_codes, np.float32)
    for start in range(0, num_rows, _FLUSH_ROWS):
        for i in range(start, min(start + _FLUSH_ROWS, num_rows)):
            exp_minus_margin = exp_minus_margins[i]
            target = row_targets[i]
            total = _ZERO
            for y in range(num_codes):
                sigmoid = _ONE / (_ONE + exp_minus_margin * exp_minus_offsets[y])
                term = beliefs[i, y] * ((sigmoid - target) - code_targets[y])
                partial[y] += term
                total += term
            row_sums[i] = total
        for y in range(num_codes):
            code_sums[y] += partial[y]
            partial[y] = _ZERO


@njit(nogil=True, cache=True, fastmath={"nsz", "contract"}, error_model="numpy")
def inner_products_logistic(
    exp_minus_margins: Float32,
    row_targets: Float32,
    exp_minus_offsets: Float32,
    code_targets: Float32,
    row_products: Float32,
    code_products: Float32,
    out: Float32,
) -> None:
    """:func:`inner_products` for the logistic loss, under the same condition."""
    num_rows, num_codes = out.shape
    for i in range(num_rows):
        exp_minus_margin = exp_minus_margins[i]
        target = row_targets[i]
        product = row_products[i]
        for y in range(num_codes):
            sigmoid = _ONE / (_ONE + exp_minus_margin * exp_minus_offsets[y])
            score_here = (sigmoid - target) - code_targets[y]
            out[i, y] = score_here * (product + code_products[y])


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz", "contract"}, error_model="numpy")
def belief_reduce(
    code: int,
    parameter: np.float32,
    margins: Float32,
    row_targets: Float32,
    offsets: Float32,
    code_targets: Float32,
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
            row_targets[i],
            offsets,
            code_targets,
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
    row_targets: Float32,
    offsets: Float32,
    code_targets: Float32,
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
            row_targets[i],
            offsets,
            code_targets,
            row,
        )
        product = row_products[i]
        for y in range(num_codes):
            row[y] *= product + code_products[y]


@njit(nogil=True, cache=True)
def _pair_bound(
    squared_norm: float,
    first: float,
    second: float,
    squared_private: float,
    inner_min: float,
    inner_max: float,
) -> float:
    """|x|^2 (s - s')^2 + B^2 (s^2 + s'^2) - 2 c s s' at the worse end of c's range."""
    cross = 2.0 * first * second
    return (
        squared_norm * (first - second) ** 2
        + squared_private * (first * first + second * second)
        - min(inner_min * cross, inner_max * cross)
    )


@njit(nogil=True, cache=True)
def largest_squared_distance(
    code: int,
    parameter: float,
    margins: Float64,
    row_targets: Float64,
    squared_norms: Float64,
    target_values: Float64,
    extreme_offsets: Float64,
    squared_private: float,
    inner_min: float,
    inner_max: float,
) -> float:
    """The largest bound on |s phi - s' phi'|^2 over rows and pairs of different codes.

    :meth:`ssdp_core.queries.margin_grid.MarginGrid.squared_distance` has the derivation: per row
    only three pairs matter, made of the two smallest and two largest scores. A convex loss has a
    derivative that never falls as the margin grows, so among the codes that share a private target
    these are at the extreme offsets. Most rows are settled with one smallest and one largest score,
    which bound the other two pairs.

    Args:
        code: the loss.
        parameter: its parameter.
        margins: (rows,) public margins.
        row_targets: (rows,) public targets.
        squared_norms: (rows,) |x_i|^2.
        target_values: (v,) distinct private targets.
        extreme_offsets: (v, 4) smallest, largest, second smallest and second largest offset of the
            codes with each target; NaN where a target has fewer codes.
        squared_private: B^2.
        inner_min: lower end of c's range.
        inner_max: upper end of c's range.
    """
    largest = 0.0
    for i in range(margins.shape[0]):
        low = np.inf
        high = -np.inf
        for v in range(target_values.shape[0]):
            target = row_targets[i] + target_values[v]
            low = min(low, score(code, parameter, margins[i] + extreme_offsets[v, 0], target))
            high = max(high, score(code, parameter, margins[i] + extreme_offsets[v, 1], target))
        norm = squared_norms[i]
        across = _pair_bound(norm, low, high, squared_private, inner_min, inner_max)
        both_low = _pair_bound(norm, low, low, squared_private, inner_min, inner_max)
        both_high = _pair_bound(norm, high, high, squared_private, inner_min, inner_max)
        if not (across < np.inf and both_low < np.inf and both_high < np.inf):
            return np.inf  # also for NaN, which every comparison would drop
        largest = max(largest, across)
        if max(both_low, both_high) <= largest:
            continue
        # The second smallest and second largest: all candidates but one copy of each extreme.
        next_low = np.inf
        next_high = -np.inf
        seen_low = False
        seen_high = False
        for v in range(target_values.shape[0]):
            target = row_targets[i] + target_values[v]
            for e in range(4):
                offset = extreme_offsets[v, e]
                if np.isnan(offset):
                    continue
                value = score(code, parameter, margins[i] + offset, target)
                if e % 2 == 0:
                    if value == low and not seen_low:
                        seen_low = True
                    else:
                        next_low = min(next_low, value)
                elif value == high and not seen_high:
                    seen_high = True
                else:
                    next_high = max(next_high, value)
        if next_low < np.inf:
            second = _pair_bound(norm, low, next_low, squared_private, inner_min, inner_max)
            largest = max(largest, second)
        if next_high > -np.inf:
            second = _pair_bound(norm, high, next_high, squared_private, inner_min, inner_max)
            largest = max(largest, second)
    return largest
