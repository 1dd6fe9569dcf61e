"""Beliefs: for every row a distribution over the private codes, float32 (rows, k).

Beliefs are public. They start uniform or from a public prior and move only by released values, so
everything computed from them is post-processing. One update (Algorithm 1 of the paper) is

    p_i(y)  <-  p_i(y) exp(step * trunc_c(<direction, f(i, y)>)) / Z_i.

Rows stay normalised to float32 accuracy, and every weight gets 2^-100 added before normalising, so
that a code which underflows can come back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.features import PublicRows
from ssdp_core.kernels import belief_kernels
from ssdp_core.queries.base import LinearVectorQuery

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


def uniform_beliefs(num_rows: int, num_codes: int) -> Float32:
    """p_i(y) = 1/k."""
    _validate.integer_at_least(1, num_rows=num_rows)
    _validate.integer_at_least(2, num_codes=num_codes)
    return np.full((num_rows, num_codes), 1.0 / num_codes, dtype=np.float32)


def prior_beliefs(num_rows: int, prior: npt.ArrayLike) -> Float32:
    """Every row (or each row its own) starts from a public prior.

    Args:
        num_rows: number of rows.
        prior: non-negative (k,) for all rows or (num_rows, k); rows must have a positive sum and
            are normalised. It must be public: never estimated from private codes without a charge.
    """
    values = np.asarray(prior, dtype=np.float64)
    if values.ndim == 1:
        values = values[None, :]
    values = _validate.public_array(2, np.float64, prior=values)
    if values.shape[0] not in (1, num_rows) or values.shape[1] < 2:
        raise ValueError(
            f"prior must have shape (k,) or ({num_rows}, k) with k >= 2, got {values.shape}"
        )
    if (values < 0).any() or not (values.sum(axis=1) > 0).all():
        raise ValueError("prior must be non-negative with a positive sum in every row")
    values = values + belief_kernels.BELIEF_FLOOR * values.sum(axis=1, keepdims=True)
    normalised = (values / values.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(normalised, (num_rows, values.shape[1])))


def update_beliefs(
    beliefs: Float32,
    query: LinearVectorQuery,
    rows: PublicRows,
    *,
    direction: Float64,
    step: float,
    truncation: float,
) -> None:
    """Moves the rows' beliefs in place along one direction (Algorithm 1)."""
    kernel = (
        belief_kernels.multiply_weights
        if abs(step) * truncation <= belief_kernels.SAFE_EXPONENT
        else belief_kernels.multiply_weights_shifted
    )
    for tile in query.inner_products(rows, direction):
        kernel(
            beliefs[tile.start : tile.stop],
            tile.products,
            np.float32(step),
            np.float32(truncation),
        )


def log_partition(
    beliefs: Float32,
    query: LinearVectorQuery,
    rows: PublicRows,
    *,
    direction: Float64,
    steps: Float64,
    truncation: float,
) -> Float64:
    """sum_i log E_{p_i} exp(step * trunc_c(<direction, f(i, .)>)) for every step of a grid."""
    totals = np.zeros(steps.size)
    for tile in query.inner_products(rows, direction):
        belief_kernels.add_log_partition(
            beliefs[tile.start : tile.stop],
            tile.products,
            steps.astype(np.float32),
            np.float32(truncation),
            totals,
        )
    return totals
