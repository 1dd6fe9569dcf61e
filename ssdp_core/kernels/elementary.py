"""A float32 exponential that compilers can vectorise.

Numba calls the system's ``expf`` once per element, which no loop can vectorise. This one is
straight-line arithmetic: it splits x = n ln 2 + r with |r| <= ln(2)/2 (ln 2 in two parts, so that
n*ln 2 is exact), evaluates a polynomial of degree 7 in r and adds n to the exponent bits. Its error
stays below 2 units in the last place (tested over the whole range).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

# Typed as Any: its own annotations do not describe calls from compiled code.
_intrinsic: Any = intrinsic

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # 9 bits: its product with n is exact
_LN2_LOW = np.float32(-2.12194440e-4)
# Adding and subtracting 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
_ROUNDER = np.float32(12582912.0)
_ROUNDER_BITS = np.int32(np.frombuffer(np.float32(12582912.0).tobytes(), dtype=np.int32)[0])

_C2 = np.float32(5.0000001201e-1)
_C3 = np.float32(1.6666665459e-1)
_C4 = np.float32(4.1665795894e-2)
_C5 = np.float32(8.3334519073e-3)
_C6 = np.float32(1.3981999507e-3)
_C7 = np.float32(1.9875691500e-4)
_ONE = np.float32(1.0)

EXP32_LIMIT = 87.0
"""Arguments of :func:`exp32` must lie within plus or minus this number; callers clamp."""


@_intrinsic
def _float_from_bits(typing_context: Any, bits: Any) -> Any:
    """Reinterprets an int32 as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


@_intrinsic
def _bits_from_float(typing_context: Any, value: Any) -> Any:
    """Reinterprets a float32 as an int32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), codegen


# Contraction (fused multiply-add) only: reassociation would undo the two-part ln 2.
@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def exp32(x: np.float32) -> np.float32:
    """exp(x) for |x| <= 87, float32 in and out."""
    shifted = x * _LOG2_E + _ROUNDER
    n = shifted - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    q = _C7
    q = q * r + _C6
    q = q * r + _C5
    q = q * r + _C4
    q = q * r + _C3
    q = q * r + _C2
    q = q * (r * r) + r + _ONE
    exponent = np.int32((_bits_from_float(shifted) - _ROUNDER_BITS) << np.int32(23))
    return _float_from_bits(np.int32(_bits_from_float(q) + exponent))


@njit(nogil=True, cache=True, error_model="numpy")
def exp32_array(x: Any, out: Any) -> None:
    """``out[i] = exp(x[i])`` for one-dimensional float32 arrays with entries in [-87, 87]."""
    for i in range(x.shape[0]):
        out[i] = exp32(x[i])
