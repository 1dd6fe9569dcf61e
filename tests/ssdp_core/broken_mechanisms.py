"""Mechanisms that claim the privacy of the real ones and do not have it; the audit must catch them.

Each one has a single mistake, taken from published sparse-vector variants (Lyu, Su and Li,
"Understanding the Sparse Vector Technique for Differential Privacy", 2017) or from bugs of the
kind that reviews of such code find.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ssdp_core.mechanisms import (
    STEPS_PER_SENSITIVITY,
    AboveThreshold,
    GaussianPlan,
    ThresholdAnswer,
    laplace_release,
)
from ssdp_core.noise import WordStream, discrete_laplace

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


class NoThresholdNoise(AboveThreshold):
    """The threshold is not noisy, so every "below" leaks on its own."""

    def __init__(self, *, epsilon: float, threshold_stream: WordStream) -> None:
        super().__init__(epsilon=math.inf, threshold_stream=threshold_stream)
        self._query_scale = Fraction(4 * STEPS_PER_SENSITIVITY) / Fraction(epsilon)


class SameQueryNoise(AboveThreshold):
    """One query noise for all questions, as if they shared a stream: answers reveal an order."""

    def __init__(self, *, epsilon: float, threshold_stream: WordStream) -> None:
        super().__init__(epsilon=epsilon, threshold_stream=threshold_stream)
        noise = discrete_laplace(threshold_stream, self._query_scale)
        self._query_noise = noise / STEPS_PER_SENSITIVITY
        self._query_scale = Fraction(0)

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        noisy = value + self._query_noise * sensitivity
        return super().ask(noisy, sensitivity=sensitivity, threshold=threshold, stream=stream)


class StaysOpen(AboveThreshold):
    """Goes on after an "above" with the same threshold noise, and charges nothing more."""

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        answer = super().ask(value, sensitivity=sensitivity, threshold=threshold, stream=stream)
        self.is_open = True
        return answer


class HalvedGapNoise(AboveThreshold):
    """The answer is right, but the released gap carries only half of its noise."""

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        answer = super().ask(value, sensitivity=sensitivity, threshold=threshold, stream=stream)
        if answer.gap is None:
            return answer
        exact = value - threshold
        return dataclasses.replace(answer, gap=exact + (answer.gap - exact) / 2)


class ExactGap(AboveThreshold):
    """The answer is right, but the released gap has no noise at all."""

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        answer = super().ask(value, sensitivity=sensitivity, threshold=threshold, stream=stream)
        return answer if answer.gap is None else dataclasses.replace(answer, gap=value - threshold)


class HalvedSensitivity(AboveThreshold):
    """Half of the sensitivity, as if changing a row were adding one."""

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        return super().ask(value, sensitivity=sensitivity / 2, threshold=threshold, stream=stream)


class FirstSensitivityForAll(AboveThreshold):
    """Every question gets the noise of the first one, whatever its own sensitivity is."""

    _first: float | None = None

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        if self._first is None:
            self._first = sensitivity
        return super().ask(value, sensitivity=self._first, threshold=threshold, stream=stream)


class NoNoiseWhenBelow(AboveThreshold):
    """Noise is drawn only for values that are truly above, "to save time"."""

    def ask(
        self, value: float, *, sensitivity: float, threshold: float, stream: WordStream
    ) -> ThresholdAnswer:
        if value < threshold:
            return ThresholdAnswer(above=False, gap=None)
        return super().ask(value, sensitivity=sensitivity, threshold=threshold, stream=stream)


def laplace_with_halved_sensitivity(
    value: float, *, sensitivity: float, epsilon: float, stream: WordStream
) -> float:
    """Half of the sensitivity, as if changing a row were adding one."""
    return laplace_release(value, sensitivity=sensitivity / 2, epsilon=epsilon, stream=stream)


def laplace_released_twice(
    value: float, *, sensitivity: float, epsilon: float, stream: WordStream
) -> float:
    """A repeated release draws again instead of repeating the first; the lower one is returned."""
    return min(
        laplace_release(value, sensitivity=sensitivity, epsilon=epsilon, stream=stream)
        for _ in range(2)
    )


def laplace_except_for_zero(
    value: float, *, sensitivity: float, epsilon: float, stream: WordStream
) -> float:
    """Zero is treated as "nothing to protect" and released without noise."""
    if value == 0:
        return 0.0
    return laplace_release(value, sensitivity=sensitivity, epsilon=epsilon, stream=stream)


# Gaussian variants release many runs at once: one run a row, in lattice steps.


def gaussian_with_two_thirds_of_the_noise(
    plan: GaussianPlan, runs: Int64, stream: WordStream
) -> Float64:
    """The standard deviation is 2/3 of the planned one."""
    weaker = dataclasses.replace(plan, noise_stddev=plan.noise_stddev * 2 / 3)
    return weaker.release(runs.ravel(), stream).reshape(runs.shape)


def gaussian_for_four_times_the_cost(
    plan: GaussianPlan, runs: Int64, stream: WordStream
) -> Float64:
    """Calibrated to 4 rho and charged rho, as if variance and deviation were mixed up."""
    weaker = dataclasses.replace(plan, noise_stddev=plan.noise_stddev / math.sqrt(4))
    return weaker.release(runs.ravel(), stream).reshape(runs.shape)


def gaussian_for_one_coordinate(plan: GaussianPlan, runs: Int64, stream: WordStream) -> Float64:
    """Calibrated to what one coordinate can move, not to the l2 norm of the whole vector."""
    weaker = dataclasses.replace(plan, noise_stddev=plan.noise_stddev / math.sqrt(runs.shape[1]))
    return weaker.release(runs.ravel(), stream).reshape(runs.shape)


def gaussian_with_one_noise_for_all_coordinates(
    plan: GaussianPlan, runs: Int64, stream: WordStream
) -> Float64:
    """The right deviation, but one variate for the whole vector: differences are exact."""
    noise = plan.release(np.zeros(runs.shape[0], dtype=np.int64), stream)
    return plan.lattice.to_float(runs) + noise[:, np.newaxis]
