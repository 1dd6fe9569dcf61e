"""Products with the feature matrix, dense and sparse, in float64.

``reassoc`` lets the compiler keep several partial sums of a row product in one vector register. The
result then depends on the vector width of the machine, not on threads or blocks: equal CPUs give
equal bits. (In a mixed fleet, set Numba's ``NUMBA_CPU_NAME`` to one common baseline.) Any order of
summation obeys the error bound that :mod:`ssdp_core.exact_sums` relies on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_REASSOCIATE = {"reassoc", "nsz", "contract"}


@njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def dense_margins(values: Float32, weights: Float64, out: Float64) -> None:
    """``out = values @ weights``."""
    for i in range(values.shape[0]):
        total = 0.0
        for j in range(values.shape[1]):
            total += values[i, j] * weights[j]
        out[i] = total


@njit(nogil=True, cache=True)
def dense_accumulate(values: Float32, row_weights: Float64, total: Float64) -> None:
    """``total += values.T @ row_weights``, four rows at a time to load and store totals less."""
    num_rows = values.shape[0]
    whole = num_rows // 4 * 4
    for i in range(0, whole, 4):
        w0, w1, w2, w3 = row_weights[i], row_weights[i + 1], row_weights[i + 2], row_weights[i + 3]
        for j in range(values.shape[1]):
            total[j] += (w0 * values[i, j] + w1 * values[i + 1, j]) + (
                w2 * values[i + 2, j] + w3 * values[i + 3, j]
            )
    for i in range(whole, num_rows):
        weight = row_weights[i]
        for j in range(values.shape[1]):
            total[j] += weight * values[i, j]


@njit(nogil=True, cache=True, fastmath=_REASSOCIATE)
def dense_squared_norms(values: Float32, out: Float64) -> None:
    """Squared l2 norm of every row."""
    for i in range(values.shape[0]):
        total = 0.0
        for j in range(values.shape[1]):
            entry = np.float64(values[i, j])
            total += entry * entry
        out[i] = total


@njit(nogil=True, cache=True)
def csr_margins(
    data: Float32,
    indices: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    weights: Float64,
    out: Float64,
) -> None:
    """``out = X @ weights`` for a compressed-row X."""
    for i in range(indptr.shape[0] - 1):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            total += data[e] * weights[indices[e]]
        out[i] = total


@njit(nogil=True, cache=True)
def csr_accumulate(
    data: Float32,
    indices: npt.NDArray[np.int32],
    indptr: npt.NDArray[np.int64],
    row_weights: Float64,
    total: Float64,
) -> None:
    """``total += X.T @ row_weights`` for a compressed-row X, in row order."""
    for i in range(indptr.shape[0] - 1):
        weight = row_weights[i]
        for e in range(indptr[i], indptr[i + 1]):
            total[indices[e]] += weight * data[e]


@njit(nogil=True, cache=True)
def csr_squared_norms(data: Float32, indptr: npt.NDArray[np.int64], out: Float64) -> None:
    """Squared l2 norm of every row of a canonical compressed-row matrix."""
    for i in range(indptr.shape[0] - 1):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            entry = np.float64(data[e])
            total += entry * entry
        out[i] = total


@njit(nogil=True, cache=True)
def csr_is_canonical(indices: npt.NDArray[np.int32], indptr: npt.NDArray[np.int64]) -> bool:
    """Whether column indices rise strictly within every row."""
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i] + 1, indptr[i + 1]):
            if indices[e] <= indices[e - 1]:
                return False
    return True
