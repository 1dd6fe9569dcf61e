"""The compiled loop of the vector Gaussian sampler; see :mod:`ssdp_core.noise.samplers`.

Error budget of the double-precision decisions. With q = |y|/sigma below 64 every quantity is
computed with a handful of roundings of relative size 2^-53 each: q and sigma/t have relative error
at most 2^-52, their difference an absolute error below 2^-45, gamma = (q - sigma/t)^2/2 one below
2^-39, and the system's exp adds less than 2^-52. So exp(-gamma) is known to a relative 2^-38; the
band below is four times that. Where q is 64 or more (probability exp(-64)) the exact path decides.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

RELATIVE_BAND = 2.0**-36
ABSOLUTE_BAND = 2.0**-60  # the width of one word, and its rounding to a double
LARGEST_RATIO = 64.0

DONE = 0
OUT_OF_WORDS = 1
UNDECIDED = 2

_YES = 1
_NO = 0
_EXP_MINUS_ONE = math.exp(-1.0)


@njit(nogil=True, cache=True)
def _decide(word: np.uint64, probability: float) -> int:
    """1 or 0 where double precision is certain about word/2^64 < probability, else 2."""
    uniform = float(word) * 2.0**-64
    margin = probability * RELATIVE_BAND + ABSOLUTE_BAND
    if uniform < probability - margin:
        return _YES
    if uniform > probability + margin:
        return _NO
    return UNDECIDED


@njit(nogil=True, cache=True)
def _one_variate(
    words: npt.NDArray[np.uint64], position: int, bits: int, sigma: float
) -> tuple[np.int64, int, int]:
    """Draws one variate from ``words[position:]``; returns (value, next position, status)."""
    unit = np.int64(1) << np.int64(bits)
    mask = np.uint64(unit - 1)
    centre = sigma / float(unit)
    num_words = words.shape[0]
    while True:
        if position + 2 > num_words:
            return np.int64(0), position, OUT_OF_WORDS
        word = words[position]
        # Numba keeps uint64 mixed with int64 as a float: all integers here are int64.
        below = np.int64(word & mask)
        # gamma = 0 is certain acceptance; its word is consumed all the same.
        verdict = _YES
        if below != 0:
            verdict = _decide(words[position + 1], math.exp(-float(below) / float(unit)))
        position += 2
        if verdict == UNDECIDED:
            return np.int64(0), position, UNDECIDED
        if verdict == _NO:
            continue
        magnitude = below
        while True:
            if position >= num_words:
                return np.int64(0), position, OUT_OF_WORDS
            verdict = _decide(words[position], _EXP_MINUS_ONE)
            position += 1
            if verdict != _YES:
                break
            if float(magnitude) > LARGEST_RATIO * sigma:
                return np.int64(0), position, UNDECIDED  # before an int64 could overflow
            magnitude += unit
        if verdict == UNDECIDED:
            return np.int64(0), position, UNDECIDED
        negative = word >> np.uint64(63) == np.uint64(1)
        if negative and magnitude == 0:
            continue
        if position >= num_words:
            return np.int64(0), position, OUT_OF_WORDS
        ratio = float(magnitude) / sigma
        if ratio >= LARGEST_RATIO:
            return np.int64(0), position, UNDECIDED
        gamma = 0.5 * (ratio - centre) * (ratio - centre)
        verdict = _decide(words[position], math.exp(-gamma))
        position += 1
        if verdict == UNDECIDED:
            return np.int64(0), position, UNDECIDED
        if verdict == _YES:
            return (-magnitude if negative else magnitude), position, DONE


@njit(nogil=True, cache=True)
def fill_gaussian(
    words: npt.NDArray[np.uint64],
    bits: int,
    sigma: float,
    noise: npt.NDArray[np.int64],
    start: int,
) -> tuple[int, int, int]:
    """Fills ``noise[start:]``; returns (words used, next index, status).

    Unless DONE, the words of the unfinished variate do not count as used.
    """
    position = 0
    for index in range(start, noise.shape[0]):
        value, after, status = _one_variate(words, position, bits, sigma)
        if status != DONE:
            return position, index, status
        noise[index] = value
        position = after
    return position, noise.shape[0], DONE
