"""Plain NumPy versions of the grid kernels, written to be obviously right.

Every compiled kernel is compared with its namesake here. They allocate whole (rows, codes) arrays
in float64 and are slow; nothing but tests and benchmarks calls them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ssdp_core.losses import MarginLoss, MultinomialLoss

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]


def grid_scores(
    loss: MarginLoss,
    margins: Float64,
    row_targets: Float64,
    offsets: Float64,
    code_targets: Float64,
) -> Float64:
    """s(i, y): float64 (rows, codes)."""
    return loss.derivative(margins[:, None] + offsets, row_targets[:, None] + code_targets)


def grid_class_scores(
    loss: MultinomialLoss,
    margins: Float64,
    row_targets: npt.NDArray[np.int32],
    offsets: Float64,
    code_targets: npt.NDArray[np.int32],
) -> Float64:
    """s(i, y) for classes: float64 (rows, codes, classes)."""
    targets = np.maximum(row_targets[:, None], code_targets[None, :])
    return loss.derivative(margins[:, None, :] + offsets[None, :, :], targets)


def belief_reduce(scores: Float64, beliefs: Array) -> tuple[Float64, Float64]:
    """Sums of p * s over codes and over rows; scores may have a trailing class axis."""
    weights = beliefs.astype(np.float64).reshape(beliefs.shape + (1,) * (scores.ndim - 2))
    terms = weights * scores
    return terms.sum(axis=1), terms.sum(axis=0)


def data_reduce(scores: Float64, codes: npt.NDArray[np.int32]) -> tuple[Float64, Float64]:
    """Scores at the private codes, and their sums per code."""
    rows = scores[np.arange(codes.size), codes]
    sums = np.zeros(scores.shape[1:])
    np.add.at(sums, codes, rows)
    return rows, sums


def truncate(values: Float64, truncation: float) -> Float64:
    """The paper's trunc_c."""
    return np.clip(values, -truncation, truncation)


def multiply_weights(beliefs: Array, products: Float64, step: float, truncation: float) -> Float64:
    """One multiplicative-weights update (Algorithm 1 of the paper)."""
    exponents = step * truncate(products, truncation)
    exponents = exponents - exponents.max(axis=1, keepdims=True)
    weights = beliefs.astype(np.float64) * np.exp(exponents)
    return weights / weights.sum(axis=1, keepdims=True)


def log_partition(beliefs: Array, products: Float64, steps: Float64, truncation: float) -> Float64:
    """sum_i log sum_y p_i(y) exp(step * trunc(products)), for every step."""
    exponents = np.multiply.outer(steps, truncate(products, truncation))
    largest = exponents.max(axis=2, keepdims=True)
    inner = (beliefs.astype(np.float64) * np.exp(exponents - largest)).sum(axis=2)
    return (np.log(inner) + largest[:, :, 0]).sum(axis=1)
