"""Argument checks whose one-sentence messages name the argument, the constraint and the value.

Every function takes exactly one keyword argument, so that the message names the argument for free:
``positive(radius=radius)`` raises ``radius must be a positive finite number, got 0``. Only public
configuration may be passed here, because the value is shown; checks on private data are written
out where they happen and show nothing of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


def _single(argument: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = argument.items()
    return name, value


def _number(name: str, value: Any, constraint: str) -> float:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or math.isnan(value):
        raise ValueError(f"{name} must be {constraint}, got {value!r}")
    return float(value)


def positive(**argument: Any) -> float:
    """Returns the argument as a float if it is finite and above zero."""
    name, value = _single(argument)
    constraint = "a positive finite number"
    number = _number(name, value, constraint)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be {constraint}, got {value!r}")
    return number


def positive_or_infinite(**argument: Any) -> float:
    """Returns the argument as a float if it is above zero; infinity is allowed."""
    name, value = _single(argument)
    constraint = "a positive number (or infinity, to switch noise off)"
    number = _number(name, value, constraint)
    if not number > 0:
        raise ValueError(f"{name} must be {constraint}, got {value!r}")
    return number


def non_negative(**argument: Any) -> float:
    """Returns the argument as a float if it is finite and at least zero."""
    name, value = _single(argument)
    constraint = "a non-negative finite number"
    number = _number(name, value, constraint)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be {constraint}, got {value!r}")
    return number


def open_interval(low: float, high: float, **argument: Any) -> float:
    """Returns the argument as a float if it lies strictly between ``low`` and ``high``."""
    name, value = _single(argument)
    constraint = f"strictly between {low:g} and {high:g}"
    number = _number(name, value, constraint)
    if not low < number < high:
        raise ValueError(f"{name} must be {constraint}, got {value!r}")
    return number


def integer_at_least(minimum: int, **argument: Any) -> int:
    """Returns the argument as an int if it is a whole number of at least ``minimum``."""
    name, value = _single(argument)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)


def public_array(ndim: int, dtype: npt.DTypeLike = np.float64, **argument: Any) -> npt.NDArray[Any]:
    """Returns a public array as C-contiguous ``dtype``, after checking its shape and finiteness."""
    name, value = _single(argument)
    try:
        array = np.ascontiguousarray(value, dtype=dtype)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an array of numbers") from None
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise ValueError(f"{name} must hold finite numbers only, found NaN or infinity")
    return array


def private_codes(codes: Any, num_rows: int, num_codes: int) -> npt.NDArray[np.int32]:
    """Returns private codes as int32 after checking their number, type and range.

    The messages never show which rows are wrong, how many, or what values they hold.
    """
    array = np.asarray(codes)
    if array.ndim != 1 or array.shape[0] != num_rows:
        raise ValueError(
            f"private codes must be one code per row: expected shape ({num_rows},), "
            f"got {array.shape}"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"private codes must be integers, got an array of {array.dtype}")
    if ((array < 0) | (array >= num_codes)).any():
        raise ValueError(
            f"private codes must lie in 0..{num_codes - 1}, the declared domain; at least one "
            "does not: encode the column with PrivateDomain.encode"
        )
    return np.ascontiguousarray(array, dtype=np.int32)
