"""Scores: derivatives of a margin loss over the (row, code) grid.

The score of row i under code y is s(i, y) = loss'(z_i + b_y, t_i + T_y), where z_i is the row's
public margin, b_y the private features' contribution, and exactly one of t (public target) and T
(private target) is non-zero. :mod:`ssdp_core.losses` defines every derivative; these functions
repeat them for compiled code, and tests compare the two.

Two precisions. What touches private codes, and what bounds their influence, is float64
(:func:`score`). What is averaged under the beliefs is public and float32 (:func:`fill_scores`).

For the logistic loss the grid needs no exponential per cell: exp(-(z_i + b_y)) is the outer product
exp(-z_i) exp(-b_y), so a cell costs one division. Kernels of their own use that wherever the
product stays inside float32 (:mod:`ssdp_core.kernels.gradient_kernels`); :func:`fill_scores` is the
general way.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from ssdp_core.kernels.elementary import EXP32_LIMIT, exp32
from ssdp_core.kernels.loss_codes import (
    ABSOLUTE,
    HINGE,
    HUBER,
    LOGISTIC,
    PINBALL,
    SMOOTH_HINGE,
    SQUARED,
)

Float32 = npt.NDArray[np.float32]

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_TWO = np.float32(2.0)
_LIMIT = np.float32(EXP32_LIMIT)
FAST_LOGISTIC_RANGE = 80.0
"""|z_i| + max|b_y| up to which exp(-z_i) exp(-b_y) stays inside float32."""


@njit(nogil=True, cache=True)
def score(code: int, parameter: float, margin: float, target: float) -> float:
    """The derivative of loss ``code`` at one margin, in float64."""
    if code == LOGISTIC:
        if margin >= 0:
            return 1.0 / (1.0 + math.exp(-margin)) - target
        grown = math.exp(margin)
        return grown / (1.0 + grown) - target
    if code == SQUARED:
        return margin - target
    if code == HUBER:
        return min(max(margin - target, -parameter), parameter)
    if code == ABSOLUTE:
        return float(np.sign(margin - target))
    if code == PINBALL:
        if margin < target:
            return -parameter
        return 1.0 - parameter if margin > target else 0.0
    side = 2.0 * target - 1.0
    agreement = side * margin
    if code == HINGE:
        return -side if agreement < 1.0 else 0.0
    return -side * min(max((1.0 - agreement) / parameter, 0.0), 1.0)  # SMOOTH_HINGE


@njit(nogil=True, cache=True, fastmath={"nsz", "nnan"}, error_model="numpy")
def fill_scores(
    code: int,
    parameter: np.float32,
    margin: np.float32,
    target: np.float32,
    offsets: Float32,
    targets: Float32,
    out: Float32,
) -> None:
    """Fills ``out[y]`` with s(i, y) for one row i, in float32."""
    num_codes = offsets.shape[0]
    if code == LOGISTIC:
        for y in range(num_codes):
            exponent = min(max(-(margin + offsets[y]), -_LIMIT), _LIMIT)
            out[y] = _ONE / (_ONE + exp32(exponent)) - (target + targets[y])
    elif code == SQUARED:
        for y in range(num_codes):
            out[y] = (margin + offsets[y]) - (target + targets[y])
    elif code == HUBER:
        for y in range(num_codes):
            residual = (margin + offsets[y]) - (target + targets[y])
            out[y] = min(max(residual, -parameter), parameter)
    elif code == ABSOLUTE:
        for y in range(num_codes):
            residual = (margin + offsets[y]) - (target + targets[y])
            out[y] = np.float32(residual > _ZERO) - np.float32(residual < _ZERO)
    elif code == PINBALL:
        for y in range(num_codes):
            residual = (margin + offsets[y]) - (target + targets[y])
            above = np.float32(residual > _ZERO) * (_ONE - parameter)
            out[y] = above - np.float32(residual < _ZERO) * parameter
    elif code == HINGE:
        for y in range(num_codes):
            side = _TWO * (target + targets[y]) - _ONE
            agreement = side * (margin + offsets[y])
            out[y] = -side * np.float32(agreement < _ONE)
    elif code == SMOOTH_HINGE:
        for y in range(num_codes):
            side = _TWO * (target + targets[y]) - _ONE
            slope = (_ONE - side * (margin + offsets[y])) / parameter
            out[y] = -side * min(max(slope, _ZERO), _ONE)
