"""The three mechanisms of the paper, on integers.

Neighbouring relation throughout: two datasets that differ in the sensitive columns of one row (or
of the rows of one privacy unit, if the stated sensitivity covers them). Sensitivities are inputs:
the caller states a bound that holds for every pair of neighbours; it must include the rounding
slack of :mod:`ssdp_core.exact_sums`.

**Scalars.** A real value v with sensitivity D is turned into the integer floor(v/D * 2^20),
computed with rational numbers. If |v - v'| <= D then v'/D <= v/D + 1, and since floor(r + 2^20) =
floor(r) + 2^20, the integers differ by at most 2^20: rounding costs nothing. Noise is an integer
Laplace variate, so no floating-point number carries information about v except through the stated
integer (no Mironov-style attack).

Scale 0 (epsilon = infinity) means no noise; such runs are for comparison and marked as not private.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.accounting import gaussian_rho
from ssdp_core.exact_sums import Lattice
from ssdp_core.noise import WordStream, discrete_gaussian_vector, discrete_laplace
from ssdp_core.noise.samplers import MAX_STDDEV

STEPS_PER_SENSITIVITY = 1 << 20
_LARGEST_SHIFT = 60  # sums stay below 2^55 lattice steps


def _noise_scale(multiplier: int, epsilon: float) -> Fraction:
    """``multiplier`` sensitivities divided by epsilon, in integer steps."""
    if math.isinf(epsilon):
        return Fraction(0)
    return Fraction(multiplier * STEPS_PER_SENSITIVITY) / Fraction(float(epsilon))


def _steps(value: float, sensitivity: float) -> Fraction:
    return Fraction(float(value)) / Fraction(float(sensitivity)) * STEPS_PER_SENSITIVITY


def _real(steps: int, sensitivity: float) -> float:
    """Steps as a real number; beyond the range of floats the largest one, never an exception."""
    exact = Fraction(steps) * Fraction(float(sensitivity)) / STEPS_PER_SENSITIVITY
    limit = Fraction(sys.float_info.max)
    return float(min(max(exact, -limit), limit))


@dataclass(frozen=True, kw_only=True)
class ThresholdAnswer:
    """The public answer to one threshold question.

    Attributes:
        above: whether the noisy value reached the noisy threshold.
        gap: by how much, in the units of the value; None if below.
    """

    above: bool
    gap: float | None


class AboveThreshold:
    """Sparse vector: any number of questions until the first "above", for one epsilon.

    Question t has a value v_t of sensitivity D_t and a public threshold tau_t. It is answered
    *above* when v_t/D_t + nu_t >= tau_t/D_t + chi with chi ~ Lap(2/epsilon), drawn once, and
    nu_t ~ Lap(4/epsilon), drawn for every question. With all D_t = D these are the scales
    2D/epsilon and 4D/epsilon of Dwork and Roth (2014), Algorithm 1. After the first "above" the
    instance is closed.

    Guarantee:
        The sequence of answers *and the gap* v_t + D_t nu_t - tau_t - D_t chi of the last one are
        epsilon-DP, hence (epsilon^2/2)-zCDP. D_t and tau_t may depend on earlier answers.
        Proof. Write u_t = floor((v_t - tau_t)/D_t), in steps, for the value above its threshold in
        units of the question's own sensitivity, and "one" for 2^20 steps; u_t moves by at most one
        between neighbours D, D'. Question t is above when u_t + nu_t >= chi. Fix all answers and
        the gap. Map a noise outcome (chi, nu_1..nu_T) under D to one under D' that gives the same
        output: chi' = chi + 1, nu_t' = nu_t for t < T (below), nu_T' = nu_T + (u_T - u_T') + 1. For
        t < T: u_t' + nu_t <= u_t + 1 + nu_t < chi + 1 = chi', still below. For T the gap u_T + nu_T
        - chi is unchanged, so the answer and the gap are the same. The map is one-to-one, moves chi
        by one and nu_T by at most two, and costs 1/(2/epsilon) + 2/(4/epsilon) = epsilon. (The gap:
        Ding et al., "Free gap information from the differentially private sparse vector and noisy
        max mechanisms", VLDB 2019.)

    Edge cases: a negative or infinite threshold is a valid public number; a value of NaN is an
    error.
    """

    def __init__(self, *, epsilon: float, threshold_stream: WordStream) -> None:
        self.epsilon = _validate.positive_or_infinite(epsilon=epsilon)
        self._threshold_noise = discrete_laplace(threshold_stream, _noise_scale(2, epsilon))
        self._query_scale = _noise_scale(4, epsilon)
        self.is_open = True

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        """PRIVATE ``value``. Answers one question; ``stream`` must be used for it alone."""
        if not self.is_open:
            raise ValueError("this AboveThreshold has answered 'above' and is closed; open another")
        _validate.positive(sensitivity=sensitivity)
        if math.isnan(threshold):
            raise ValueError("threshold must be a number, got nan")
        if not math.isfinite(value):
            raise ValueError("the value of a threshold question must be finite")
        if math.isinf(threshold):
            self.is_open = threshold > 0
            return ThresholdAnswer(above=threshold < 0, gap=None)
        # The threshold is public, so subtracting it before rounding leaves the proof as it is; and
        # without noise the comparison is then exact.
        difference = math.floor(_steps(value, sensitivity) - _steps(threshold, sensitivity))
        difference += discrete_laplace(stream, self._query_scale) - self._threshold_noise
        if difference < 0:
            return ThresholdAnswer(above=False, gap=None)
        self.is_open = False
        return ThresholdAnswer(above=True, gap=_real(difference, sensitivity))

    def __repr__(self) -> str:
        return f"AboveThreshold(epsilon={self.epsilon:g}, is_open={self.is_open})"


def laplace_release(
    value: float, *, sensitivity: float, epsilon: float, stream: WordStream
) -> float:
    """PRIVATE ``value``. Releases a scalar with Laplace noise of scale sensitivity/epsilon.

    Guarantee:
        epsilon-DP, hence (epsilon^2/2)-zCDP: the integer moves by at most 2^20 between neighbours
        and the noise has scale 2^20/epsilon (Dwork et al. 2006; discrete form in
        :mod:`ssdp_core.noise.samplers`).
    """
    _validate.positive(sensitivity=sensitivity)
    _validate.positive_or_infinite(epsilon=epsilon)
    if not math.isfinite(value):
        raise ValueError("the value of a Laplace release must be finite")
    steps = math.floor(_steps(value, sensitivity))
    steps += discrete_laplace(stream, _noise_scale(1, epsilon))
    return _real(steps, sensitivity)


@dataclass(frozen=True, kw_only=True)
class GaussianPlan:
    """How a vector of lattice sums will be released, and what it costs; public numbers only.

    Guarantee:
        Independent discrete Gaussian noise of ``noise_stddev`` on every coordinate of an integer
        vector whose l2 sensitivity is at most ``l2_sensitivity`` (both in real units) is
        rho-zCDP with rho = l2_sensitivity^2 / (2 noise_stddev^2) (Canonne, Kamath and Steinke
        2020). Noise too large for 64-bit integers is drawn on a lattice coarser by 2^coarsening;
        sums are rounded to it first, which moves each coordinate by at most one coarse step between
        neighbours and is added to the sensitivity.
    """

    lattice: Lattice
    l2_sensitivity: float
    noise_stddev: float
    coarsening: int

    @classmethod
    def make(
        cls, *, lattice: Lattice, dimension: int, l2_sensitivity: float, noise_stddev: float
    ) -> GaussianPlan:
        """Plans a release; ``noise_stddev`` 0 switches noise off and costs infinity."""
        _validate.positive(l2_sensitivity=l2_sensitivity)
        _validate.non_negative(noise_stddev=noise_stddev)
        # frexp gives the smallest power of two above the ratio exactly; log2 would round.
        _, exponent = math.frexp(noise_stddev / lattice.step / MAX_STDDEV)
        coarsening = max(0, exponent)
        if coarsening > 0:
            l2_sensitivity += math.sqrt(dimension) * math.ldexp(lattice.step, coarsening)
            l2_sensitivity *= 1.0 + 2.0**-40
        return cls(
            lattice=lattice,
            l2_sensitivity=l2_sensitivity,
            noise_stddev=noise_stddev,
            coarsening=coarsening,
        )

    @property
    def rho(self) -> float:
        """The tight zCDP cost."""
        if self.noise_stddev == 0:
            return math.inf
        return gaussian_rho(self.l2_sensitivity, self.noise_stddev)

    def release(self, units: npt.NDArray[np.int64], stream: WordStream) -> npt.NDArray[np.float64]:
        """PRIVATE ``units`` (lattice steps). Returns the noisy sums in real units, float64."""
        coarse = math.ldexp(self.lattice.step, self.coarsening)
        noise = discrete_gaussian_vector(stream, self.noise_stddev / coarse, units.size)
        if self.coarsening > _LARGEST_SHIFT:
            units = np.zeros_like(units)  # every sum is less than half a coarse step
        elif self.coarsening > 0:
            # Round to nearest by integer arithmetic: floor division after adding half a step.
            units = (units + (1 << (self.coarsening - 1))) >> self.coarsening
        # The integer sum is the release; its conversion to float64 is post-processing.
        return np.ldexp((units + noise).astype(np.float64), self.lattice.exponent + self.coarsening)
