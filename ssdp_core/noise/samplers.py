"""Exact discrete Laplace and discrete Gaussian noise on the integers.

Distributions, for an integer y:

* discrete Laplace of scale S:           P(y) proportional to exp(-|y| / S)
* discrete Gaussian of parameter sigma:  P(y) proportional to exp(-y^2 / (2 sigma^2))

Guarantees, for integer-valued queries (Canonne, Kamath and Steinke, "The Discrete Gaussian for
Differential Privacy", 2020):

* adding discrete Laplace noise to a query of integer sensitivity D is (D / S)-DP;
* adding independent discrete Gaussian noise to every coordinate of an integer vector of l2
  sensitivity D is (D^2 / (2 sigma^2))-zCDP, exactly as for the continuous Gaussian.

Method. A Laplace magnitude is split as t*V + U with U uniform below t, kept with probability
exp(-U/S), and V geometric with ratio exp(-t/S). A Gaussian is a Laplace of scale t = 2^b near sigma
kept with probability exp(-(|y| - sigma^2/t)^2 / (2 sigma^2)). Every step is one question: *is a
uniform real below exp(-gamma)* for a rational gamma? The first 64 bits of the uniform real are one
word. Double precision answers unless the word lies within a relative 2^-36 of exp(-gamma), far
more than its rounding errors; then decimal arithmetic of growing precision, and more random bits,
settle it. The outcome is therefore exactly that of real-number arithmetic.

The vector sampler runs the same steps on the same words in a compiled loop, stops where double
precision cannot tell, and lets the scalar sampler finish that variate: the two agree word for word
(a test compares them). It exists because a million Gaussians must take less than a second; exact
samplers of public libraries draw one variate at a time with multi-precision rationals.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.noise.gaussian_kernel import (
    ABSOLUTE_BAND,
    DONE,
    LARGEST_RATIO,
    OUT_OF_WORDS,
    RELATIVE_BAND,
    fill_gaussian,
)
from ssdp_core.noise.source import WordStream

_SIGN_BIT = 1 << 63
MAX_STDDEV = 2.0**56
"""Larger noise would not fit an int64 lattice; coarsen the lattice instead."""


def discrete_laplace(stream: WordStream, scale: Fraction) -> int:
    """Draws one exact discrete Laplace variate of the given scale (0 means no noise)."""
    if scale < 0:
        raise ValueError("scale must not be negative")
    if scale == 0:
        return 0
    unit = max(1, scale.numerator // scale.denominator)
    while True:
        below = _uniform_below(stream, unit)
        if not _less_than_exp(stream, Fraction(below) / scale):
            continue
        magnitude = below
        while _less_than_exp(stream, unit / scale):
            magnitude += unit
        negative = bool(stream.word() & _SIGN_BIT)
        if negative and magnitude == 0:
            continue  # otherwise zero would be twice as likely
        return -magnitude if negative else magnitude


def discrete_gaussian(stream: WordStream, stddev: float) -> int:
    """Draws one exact discrete Gaussian variate (0 means no noise)."""
    _check_stddev(stddev)
    if stddev == 0:
        return 0
    bits = _unit_bits(stddev)
    unit = 1 << bits
    sigma = Fraction(stddev)
    while True:
        word = stream.word()
        below = word & (unit - 1)
        if not _less_than_exp(stream, Fraction(below, unit)):
            continue
        magnitude = below
        while _less_than_exp(stream, Fraction(1)):
            magnitude += unit
        negative = bool(word & _SIGN_BIT)
        if negative and magnitude == 0:
            continue
        if _less_than_exp(stream, (magnitude / sigma - sigma / unit) ** 2 / 2):
            return -magnitude if negative else magnitude


def discrete_gaussian_vector(stream: WordStream, stddev: float, size: int) -> npt.NDArray[np.int64]:
    """Draws ``size`` independent exact discrete Gaussian variates as int64."""
    _check_stddev(stddev)
    noise = np.zeros(size, dtype=np.int64)
    if stddev == 0:
        return noise
    bits = _unit_bits(stddev)
    filled = 0
    words = stream.take(0)
    while filled < size:
        # Twelve words a variate on average; the surplus goes back to the stream at the end.
        words = np.concatenate([words, stream.take(64 + 13 * min(size - filled, 1 << 16))])
        used, filled, status = fill_gaussian(words, bits, stddev, noise, filled)
        words = words[used:]
        if status not in (DONE, OUT_OF_WORDS):
            stream.give_back(words)
            noise[filled] = discrete_gaussian(stream, stddev)
            filled += 1
            words = stream.take(0)
    stream.give_back(words)
    return noise


def _check_stddev(stddev: float) -> None:
    if _validate.non_negative(stddev=stddev) > MAX_STDDEV:
        raise ValueError(f"stddev must be at most 2**56 lattice steps, got {stddev!r}")


def _unit_bits(stddev: float) -> int:
    """The power of two nearest to ``stddev`` (at least 1), which keeps two thirds of proposals."""
    return max(0, round(math.log2(stddev)))


def _uniform_below(stream: WordStream, bound: int) -> int:
    """A uniform integer in ``[0, bound)``, by rejection."""
    bits = (bound - 1).bit_length()
    while True:
        value = 0
        for _ in range(-(-bits // 64)):
            value = (value << 64) | stream.word()
        value &= (1 << bits) - 1
        if value < bound:
            return value


def _less_than_exp(stream: WordStream, gamma: Fraction) -> bool:
    """Whether a fresh uniform real in [0, 1) is below exp(-gamma), decided exactly."""
    word = stream.word()
    if gamma == 0:
        return True
    if gamma < LARGEST_RATIO:
        probability = math.exp(-float(gamma))
        uniform = word * 2.0**-64
        margin = probability * RELATIVE_BAND + ABSOLUTE_BAND
        if uniform < probability - margin:
            return True
        if uniform > probability + margin:
            return False
    return _less_than_exp_exactly(stream, word, gamma)


def _less_than_exp_exactly(stream: WordStream, word: int, gamma: Fraction) -> bool:
    """Settles ``uniform < exp(-gamma)`` by intervals that shrink until they no longer overlap."""
    low, bits = word, 64  # the uniform real lies in [low, low + 1) / 2^bits
    # exp(-gamma) < 2^-bits <= low / 2^bits settles a huge gamma without computing anything huge.
    while bits <= gamma:
        if low > 0:
            return False
        low, bits = stream.word(), bits + 64
    digits = 40
    while True:
        exp_low, exp_high = _exp_bounds(gamma, digits)
        if Fraction(low + 1, 1 << bits) <= exp_low:
            return True
        if Fraction(low, 1 << bits) >= exp_high:
            return False
        low, bits = (low << 64) | stream.word(), bits + 64
        digits += 20


def _exp_bounds(gamma: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Rational lower and upper bounds on exp(-gamma). ``Decimal.exp`` is correctly rounded."""
    with decimal.localcontext() as context:
        context.prec = digits
        context.Emin, context.Emax = decimal.MIN_EMIN, decimal.MAX_EMAX
        context.rounding = decimal.ROUND_FLOOR
        gamma_low = decimal.Decimal(gamma.numerator) / decimal.Decimal(gamma.denominator)
        context.rounding = decimal.ROUND_CEILING
        gamma_high = decimal.Decimal(gamma.numerator) / decimal.Decimal(gamma.denominator)
        low = (-gamma_high).exp().next_minus()
        high = (-gamma_low).exp().next_plus()
        return Fraction(low), Fraction(high)
