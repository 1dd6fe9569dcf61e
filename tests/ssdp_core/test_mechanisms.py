"""Scales, rounding and edge cases of the mechanisms; the audit of their privacy is test_audit.py.

Statistical tests are seeded. The p-value threshold beside an assertion is the probability that the
test would fail for a fresh seed although the code is right.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from ssdp_core import mechanisms
from ssdp_core.exact_sums import Lattice
from ssdp_core.mechanisms import (
    STEPS_PER_SENSITIVITY,
    AboveThreshold,
    GaussianPlan,
    ThresholdAnswer,
    laplace_release,
)
from ssdp_core.noise import NoiseSource, WordStream
from ssdp_core.noise.samplers import MAX_STDDEV

BELOW = ThresholdAnswer(above=False, gap=None)

values = st.floats(-1e9, 1e9)
sensitivities = st.floats(1e-6, 1e6)


def stream_of(seed: int, label: str = "question") -> WordStream:
    return NoiseSource.seeded(seed).stream(label)


def open_instance(epsilon: float, seed: int = 0) -> AboveThreshold:
    return AboveThreshold(epsilon=epsilon, threshold_stream=stream_of(seed, "threshold"))


def ask_without_noise(value: float, threshold: float, sensitivity: float = 1.0) -> ThresholdAnswer:
    return open_instance(math.inf).ask(
        value, sensitivity=sensitivity, threshold=threshold, stream=stream_of(0)
    )


def assert_only_the_right_scale_fits(noise, cdf) -> None:
    """``noise``, in units of its stated scale, fits ``cdf``; at 2/3 and 3/2 of the scale not."""
    assert stats.kstest(noise, cdf).pvalue > 1e-3  # flakiness 1e-3
    assert stats.kstest(noise / (2 / 3), cdf).pvalue < 1e-9
    assert stats.kstest(noise / (3 / 2), cdf).pvalue < 1e-9


@pytest.fixture
def recorded_scales(monkeypatch) -> list[Fraction]:
    """The scales the mechanisms ask Laplace noise of; the noise itself is switched off."""
    scales: list[Fraction] = []

    def record(stream: WordStream, scale: Fraction) -> int:
        scales.append(scale)
        return 0

    monkeypatch.setattr(mechanisms, "discrete_laplace", record)
    return scales


# --- rounding to integer steps


@given(value=values, sensitivity=sensitivities, share=st.floats(-1, 1))
@example(value=0.1, sensitivity=0.1, share=1.0)
@example(value=1e9, sensitivity=1e-6, share=-1.0)
@example(value=-0.0, sensitivity=2.0**-20, share=1.0)
def test_neighbouring_values_are_at_most_one_sensitivity_of_steps_apart(value, sensitivity, share):
    neighbour = value + share * sensitivity
    while abs(Fraction(neighbour) - Fraction(value)) > Fraction(sensitivity):
        neighbour = math.nextafter(neighbour, value)  # the float sum was rounded outwards
    steps = math.floor(mechanisms._steps(value, sensitivity))
    neighbour_steps = math.floor(mechanisms._steps(neighbour, sensitivity))
    assert abs(steps - neighbour_steps) <= STEPS_PER_SENSITIVITY


def test_one_sensitivity_is_exactly_all_its_steps():
    assert mechanisms._steps(0.3, 0.3) == STEPS_PER_SENSITIVITY == 1 << 20
    assert mechanisms._steps(-0.6, 0.3) == -2 * STEPS_PER_SENSITIVITY


# --- AboveThreshold without noise


@given(
    value=st.integers(-(10**9), 10**9),
    threshold=st.integers(-(10**9), 10**9),
    exponent=st.integers(-30, 30),
)
@example(value=5, threshold=5, exponent=0)
@example(value=0, threshold=0, exponent=3)
@example(value=5, threshold=6, exponent=-2)
def test_without_noise_whole_steps_are_compared_exactly(value, threshold, exponent):
    sensitivity = 2.0**exponent
    step = sensitivity / STEPS_PER_SENSITIVITY
    answer = ask_without_noise(value * step, threshold * step, sensitivity)
    assert answer.above == (value >= threshold)
    assert answer.gap == ((value - threshold) * step if answer.above else None)


@given(value=values, threshold=values, sensitivity=sensitivities)
def test_without_noise_any_values_are_compared_up_to_one_step(value, threshold, sensitivity):
    answer = ask_without_noise(value, threshold, sensitivity)
    step = Fraction(sensitivity) / STEPS_PER_SENSITIVITY
    difference = Fraction(value) - Fraction(threshold)
    if difference >= 0:
        assert answer.above
    if difference <= -step:
        assert answer == BELOW
    if answer.above:
        rounding = abs(difference) * Fraction(1, 2**50)
        assert abs(Fraction(answer.gap) - difference) <= step + rounding


@pytest.mark.parametrize("threshold", [math.nextafter(0.1, 1.0), 0.1 + 1e-8])
def test_without_noise_a_value_just_below_the_threshold_is_below(threshold):
    assert ask_without_noise(0.1, threshold) == BELOW


@pytest.mark.parametrize(("number", "sensitivity"), [(0.1, 1.0), (1.0, 0.3), (1 / 3, 1.0)])
def test_without_noise_a_value_equal_to_the_threshold_is_above(number, sensitivity):
    answer = ask_without_noise(number, number, sensitivity)
    assert answer.above
    assert answer.gap == pytest.approx(0.0, abs=sensitivity / STEPS_PER_SENSITIVITY)


def test_without_noise_thresholds_may_fall_until_one_is_reached():
    instance = open_instance(math.inf)
    answers = []
    for threshold in (8.0, 4.0, 2.0, 1.0, 0.5):
        if instance.is_open:
            answers.append(
                instance.ask(2.5, sensitivity=1.0, threshold=threshold, stream=stream_of(0))
            )
    assert answers == [BELOW, BELOW, ThresholdAnswer(above=True, gap=0.5)]


@pytest.mark.parametrize(
    ("threshold", "answer", "stays_open"),
    [
        (math.inf, BELOW, True),
        (-math.inf, ThresholdAnswer(above=True, gap=None), False),
        (-3.0, ThresholdAnswer(above=True, gap=4.0), False),
    ],
)
@pytest.mark.parametrize("epsilon", [math.inf, 1e9])
def test_negative_and_infinite_thresholds_are_valid(epsilon, threshold, answer, stays_open):
    instance = open_instance(epsilon)
    asked = instance.ask(1.0, sensitivity=1.0, threshold=threshold, stream=stream_of(0))
    assert (asked, instance.is_open) == (answer, stays_open)


def test_closes_after_the_first_above_and_says_so():
    instance = open_instance(1.0)
    answer = instance.ask(1e6, sensitivity=1.0, threshold=0.0, stream=stream_of(1))
    assert answer.above
    assert repr(instance) == "AboveThreshold(epsilon=1, is_open=False)"
    with pytest.raises(ValueError, match="has answered 'above' and is closed") as caught:
        instance.ask(123.456, sensitivity=1.0, threshold=0.0, stream=stream_of(2))
    assert "123" not in str(caught.value)


# --- AboveThreshold with noise


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3, 1 / 3, np.float64(0.7)])
def test_threshold_and_query_noise_have_the_stated_exact_scales(epsilon, recorded_scales):
    instance = open_instance(epsilon)
    for sensitivity in (1.0, 0.3, 1e4):  # the scale is in units of the question's sensitivity
        instance.ask(-1.0, sensitivity=sensitivity, threshold=5.0, stream=stream_of(0))
    one_sensitivity = Fraction(1 << 20)
    assert recorded_scales == [
        2 * one_sensitivity / Fraction(epsilon),
        *[4 * one_sensitivity / Fraction(epsilon)] * 3,
    ]
    assert all(isinstance(scale, Fraction) for scale in recorded_scales)


def test_without_noise_all_scales_are_zero(recorded_scales):
    open_instance(math.inf).ask(0.0, sensitivity=1.0, threshold=1.0, stream=stream_of(0))
    laplace_release(1.0, sensitivity=1.0, epsilon=math.inf, stream=stream_of(0))
    assert recorded_scales == [Fraction(0)] * 3


def gap_noise(epsilon: float, sensitivity: float, seed: int) -> float:
    """What noise adds to a gap, in sensitivities, where "above" is certain."""
    value, threshold = 7.0 * sensitivity, -1000.0 * sensitivity
    stream = stream_of(seed)
    instance = AboveThreshold(epsilon=epsilon, threshold_stream=stream)
    answer = instance.ask(value, sensitivity=sensitivity, threshold=threshold, stream=stream)
    return (answer.gap - (value - threshold)) / sensitivity


def test_gap_noise_is_the_difference_of_query_and_threshold_noise():
    epsilon = 2.0
    b, c = 4 / epsilon, 2 / epsilon  # scales of query and threshold noise

    def cdf(x):
        # The density (b exp(-|x|/b) - c exp(-|x|/c)) / (2 (b^2 - c^2)), integrated.
        tail = (b**2 * np.exp(-np.abs(x) / b) - c**2 * np.exp(-np.abs(x) / c)) / (b**2 - c**2) / 2
        return np.where(x < 0, tail, 1 - tail)

    noise = np.array([gap_noise(epsilon, 1.0, seed) for seed in range(5_000)])
    assert_only_the_right_scale_fits(noise, cdf)


@given(seed=st.integers(0, 10**6), sensitivity=sensitivities)
def test_gap_noise_grows_with_the_sensitivity_of_its_question(seed, sensitivity):
    # The same words give the same number of steps; a step is sensitivity / 2^20.
    expected = gap_noise(1.0, 1.0, seed)
    assert gap_noise(1.0, sensitivity, seed) == pytest.approx(expected, abs=3 * 2.0**-20)


def test_threshold_noise_is_drawn_once_and_query_noise_for_every_question():
    """The first "above" after a long wait shows one threshold noise and many query noises."""
    epsilon, instance = 1.0, open_instance(1.0, seed=5)
    assert isinstance(instance._threshold_noise, int)
    noise = []
    for question in range(3_000):
        answer = instance.ask(
            0.0, sensitivity=1.0, threshold=-1000.0, stream=stream_of(5, f"question {question}")
        )
        noise.append(answer.gap - 1000.0 + instance._threshold_noise / STEPS_PER_SENSITIVITY)
        instance.is_open = True  # not private: a look at many gaps of one instance
    assert_only_the_right_scale_fits(np.array(noise) / (4 / epsilon), "laplace")


def test_threshold_noise_has_scale_two_over_epsilon():
    epsilon, stream = 0.5, stream_of(6)
    noise = np.array(
        [
            AboveThreshold(epsilon=epsilon, threshold_stream=stream)._threshold_noise
            for _ in range(3_000)
        ]
    )
    assert_only_the_right_scale_fits(noise / (2 / epsilon * STEPS_PER_SENSITIVITY), "laplace")


def test_same_streams_give_the_same_answers():
    def answers(seed):
        source = NoiseSource.seeded(seed)
        instance = AboveThreshold(epsilon=1.0, threshold_stream=source.stream("open"))
        asked = []
        for question in range(200):
            if instance.is_open:
                asked.append(
                    instance.ask(
                        0.0, sensitivity=1.0, threshold=15.0, stream=source.stream(f"q{question}")
                    )
                )
        return asked

    assert answers(1) == answers(1)
    assert len({len(answers(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": math.nan}, "the value of a threshold question must be finite$"),
        ({"value": math.inf}, "the value of a threshold question must be finite$"),
        ({"value": -math.inf}, "the value of a threshold question must be finite$"),
        ({"threshold": math.nan}, "threshold must be a number, got nan"),
        ({"sensitivity": -1.0}, "sensitivity must be a positive finite number, got -1.0"),
        ({"sensitivity": 0.0}, "sensitivity must be a positive finite number, got 0.0"),
        ({"sensitivity": math.inf}, "sensitivity must be a positive finite number, got inf"),
        ({"sensitivity": math.nan}, "sensitivity must be a positive finite number, got nan"),
    ],
)
def test_bad_questions_are_refused_without_showing_the_value(change, message):
    instance = open_instance(1.0)
    question = {"value": 123.456, "sensitivity": 1.0, "threshold": 2.0} | change
    with pytest.raises(ValueError, match=message) as caught:
        instance.ask(question.pop("value"), **question, stream=stream_of(0))
    assert "123" not in str(caught.value)
    assert instance.is_open  # nothing was answered


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        open_instance(epsilon)
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        laplace_release(1.0, sensitivity=1.0, epsilon=epsilon, stream=stream_of(0))


# --- laplace_release


@given(value=values, sensitivity=sensitivities)
def test_laplace_release_without_noise_is_the_value_rounded_down_to_a_step(value, sensitivity):
    released = laplace_release(
        value, sensitivity=sensitivity, epsilon=math.inf, stream=stream_of(0)
    )
    rounding = abs(value) * 2.0**-52
    assert -rounding <= value - released <= sensitivity / STEPS_PER_SENSITIVITY + rounding


def test_laplace_release_without_noise_keeps_whole_steps():
    for value in (-3.0, 0.0, 2.0**-20, 12345.75):
        assert value == laplace_release(
            value, sensitivity=1.0, epsilon=math.inf, stream=stream_of(0)
        )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1 / 3])
def test_laplace_release_asks_for_the_stated_exact_scale(epsilon, recorded_scales):
    laplace_release(5.0, sensitivity=0.3, epsilon=epsilon, stream=stream_of(0))
    assert recorded_scales == [Fraction(1 << 20) / Fraction(epsilon)]


def test_laplace_release_has_scale_sensitivity_over_epsilon():
    value, sensitivity, epsilon, stream = 11.0, 3.0, 0.5, stream_of(8)
    noise = np.array(
        [
            laplace_release(value, sensitivity=sensitivity, epsilon=epsilon, stream=stream) - value
            for _ in range(4_000)
        ]
    )
    assert_only_the_right_scale_fits(noise / (sensitivity / epsilon), "laplace")


def test_laplace_release_lies_on_a_lattice_that_ignores_the_value():
    """The low bits of a release come from a public lattice, whatever the value's low bits are."""
    sensitivity, stream = 0.75, stream_of(9)
    for value in (0.0, 1 / 3, math.pi, 1e-17):
        released = laplace_release(value, sensitivity=sensitivity, epsilon=1.0, stream=stream)
        steps = Fraction(released) / Fraction(sensitivity) * STEPS_PER_SENSITIVITY
        assert steps.denominator == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_laplace_release_refuses_values_that_are_not_finite(value):
    with pytest.raises(ValueError, match=r"the value of a Laplace release must be finite$"):
        laplace_release(value, sensitivity=1.0, epsilon=1.0, stream=stream_of(0))


@pytest.mark.parametrize("sensitivity", [0.0, -2.0, math.nan, math.inf])
def test_laplace_release_refuses_bad_sensitivities(sensitivity):
    with pytest.raises(ValueError, match="sensitivity must be a positive finite number") as caught:
        laplace_release(123.456, sensitivity=sensitivity, epsilon=1.0, stream=stream_of(0))
    assert "123" not in str(caught.value)


# --- GaussianPlan


def make_plan(
    *, exponent: int = -40, dimension: int = 4, l2_sensitivity: float = 2.0, noise_stddev: float
) -> GaussianPlan:
    return GaussianPlan.make(
        lattice=Lattice(exponent=exponent),
        dimension=dimension,
        l2_sensitivity=l2_sensitivity,
        noise_stddev=noise_stddev,
    )


@pytest.fixture
def recorded_stddevs(monkeypatch) -> list[float]:
    """The standard deviations asked for, in coarse steps; the noise itself is switched off."""
    stddevs: list[float] = []

    def record(stream: WordStream, stddev: float, size: int):
        stddevs.append(stddev)
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(mechanisms, "discrete_gaussian_vector", record)
    return stddevs


def test_gaussian_release_without_noise_is_exact_and_costs_infinity():
    plan = make_plan(noise_stddev=0.0)
    units = np.array([0, 1, -(2**40), 2**52 + 1], dtype=np.int64)
    released = plan.release(units, stream_of(0))
    assert released.tolist() == [0.0, 2.0**-40, -1.0, (2**52 + 1) * 2.0**-40]
    assert released.dtype == np.float64
    assert plan.rho == math.inf


@given(
    l2_sensitivity=st.floats(1e-6, 1e6),
    noise_stddev=st.floats(1e-6, 1e6),
)
def test_rho_is_half_the_squared_ratio_rounded_up(l2_sensitivity, noise_stddev):
    plan = make_plan(exponent=-30, l2_sensitivity=l2_sensitivity, noise_stddev=noise_stddev)
    assert plan.coarsening == 0
    exact = (Fraction(l2_sensitivity) / Fraction(noise_stddev)) ** 2 / 2
    assert exact <= Fraction(plan.rho) <= exact * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize("exponent", [-54, -20, 0, 3])
def test_gaussian_noise_has_the_planned_stddev(exponent):
    plan = make_plan(exponent=exponent, noise_stddev=1000.0)
    units = np.full(20_000, 12345, dtype=np.int64)
    noise = plan.release(units, stream_of(10)) - np.ldexp(12345.0, exponent)
    assert_only_the_right_scale_fits(noise / 1000.0, "norm")


def test_coordinates_get_independent_noise():
    plan = make_plan(noise_stddev=3.0)
    first, second = plan.release(np.zeros(40_000, dtype=np.int64), stream_of(11)).reshape(2, -1)
    assert stats.pearsonr(first, second).pvalue > 1e-3  # flakiness 1e-3


def test_release_is_a_whole_number_of_steps():
    plan = make_plan(exponent=-10, noise_stddev=5.0)
    released = plan.release(np.arange(100, dtype=np.int64), stream_of(12))
    np.testing.assert_array_equal(released * 2.0**10, np.rint(released * 2.0**10))


@pytest.mark.parametrize("excess", [1e-9, 0.5, 1.0, 1.5, 10.0, 40.0])
def test_large_noise_is_drawn_on_a_coarser_lattice(excess, recorded_stddevs):
    """``excess``: by how many powers of two the noise exceeds what int64 steps can carry."""
    exponent, dimension = -54, 9
    stddev = math.ldexp(MAX_STDDEV * 2.0**excess, exponent)
    plan = make_plan(exponent=exponent, dimension=dimension, noise_stddev=stddev)
    assert excess <= plan.coarsening <= excess + 1
    assert plan.noise_stddev == stddev
    coarse_step = math.ldexp(1.0, exponent + plan.coarsening)
    # Rounding to the coarse lattice moves every coordinate by half a step in either dataset.
    least = Fraction(2) + 3 * Fraction(coarse_step)
    assert least <= Fraction(plan.l2_sensitivity) <= least * (1 + Fraction(1, 10**9))
    plan.release(np.zeros(dimension, dtype=np.int64), stream_of(0))
    assert recorded_stddevs == [stddev / coarse_step]
    assert MAX_STDDEV / 2 <= recorded_stddevs[0] <= MAX_STDDEV


@pytest.mark.parametrize("stddev_steps", [1.0, MAX_STDDEV / 2, math.nextafter(MAX_STDDEV, 0.0)])
def test_noise_that_fits_is_not_coarsened(stddev_steps, recorded_stddevs):
    plan = make_plan(exponent=-54, noise_stddev=math.ldexp(stddev_steps, -54))
    assert (plan.coarsening, plan.l2_sensitivity) == (0, 2.0)
    plan.release(np.zeros(3, dtype=np.int64), stream_of(0))
    assert recorded_stddevs == [stddev_steps]


@given(
    coarsening=st.integers(1, 12),
    units=st.lists(st.integers(-(2**54), 2**54), min_size=1, max_size=6),
    moves=st.lists(st.integers(-(2**10), 2**10), min_size=6, max_size=6),
)
def test_coarse_neighbours_stay_within_the_planned_sensitivity(coarsening, units, moves):
    """The exact sums move by at most l2_sensitivity; their rounded versions by the plan's."""
    moves = moves[: len(units)]
    sensitivity = math.sqrt(sum(move * move for move in moves))
    assume(sensitivity > 0)
    plan = make_plan(
        exponent=0,
        dimension=len(units),
        l2_sensitivity=sensitivity * (1 + 2.0**-50),
        noise_stddev=math.ldexp(0.75 * MAX_STDDEV, coarsening),
    )
    assert plan.coarsening == coarsening
    first = np.array(units, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:  # no noise: what is left are the rounded sums
        patch.setattr(mechanisms, "discrete_gaussian_vector", lambda stream, stddev, size: 0)
        released = [plan.release(sums, stream_of(0)) for sums in (first, first + np.array(moves))]
    assert np.linalg.norm(released[0] - released[1]) <= plan.l2_sensitivity


@pytest.mark.parametrize("excess", [0.7, 5.3, 30.0])
def test_coarse_noise_has_the_planned_stddev_and_does_not_overflow(excess):
    exponent = -54
    stddev = math.ldexp(MAX_STDDEV * 2.0**excess, exponent)
    plan = make_plan(exponent=exponent, noise_stddev=stddev)
    # The largest totals a lattice is made for, of both signs.
    units = np.tile(np.array([2**54, -(2**54)], dtype=np.int64), 10_000)
    released = plan.release(units, stream_of(14))
    noise = released - np.ldexp(units.astype(float), exponent)
    assert_only_the_right_scale_fits(noise / stddev, "norm")


def test_coarse_rounding_is_to_the_nearest_coarse_step(recorded_stddevs):
    plan = make_plan(exponent=0, noise_stddev=math.ldexp(0.75 * MAX_STDDEV, 3))
    units = np.array([-13, -12, -5, -4, -3, 0, 3, 4, 11, 12, 2**54 + 5], dtype=np.int64)
    released = plan.release(units, stream_of(0))
    assert plan.coarsening == 3
    assert released.tolist() == [-16, -8, -8, 0, 0, 0, 0, 8, 8, 16, 2**54 + 8]


@pytest.mark.parametrize("exponent", [0, 1, 4, 20, 59, 60, 61, 63, 64, 100])
@pytest.mark.parametrize("factor", [1 - 2.0**-53, 1.0, 1 + 2.0**-52])
def test_noise_next_to_a_power_of_two_can_be_released(exponent, factor):
    """Also where a coarse step is larger than any sum, and half of it than any int64."""
    stddev = math.ldexp(factor * MAX_STDDEV, exponent)
    plan = make_plan(exponent=0, noise_stddev=stddev)
    units = np.tile(np.array([2**54, -(2**54), 1], dtype=np.int64), 100)
    released = plan.release(units, stream_of(15))
    assert np.isfinite(released).all()
    # The sample deviation of 300 draws is off by 4 % on average; 20 % has probability 1e-6.
    assert released.std() == pytest.approx(stddev, rel=0.2)


def test_the_same_stream_gives_the_same_release():
    plan, units = make_plan(noise_stddev=1.0), np.arange(50, dtype=np.int64)
    first = plan.release(units, stream_of(17))
    np.testing.assert_array_equal(first, plan.release(units, stream_of(17)))
    assert (first != plan.release(units, stream_of(18))).all()


def test_release_does_not_change_its_input():
    units = np.arange(5, dtype=np.int64)
    for stddev in (1.0, math.ldexp(MAX_STDDEV, -30)):
        make_plan(noise_stddev=stddev).release(units, stream_of(19))
        assert units.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"l2_sensitivity": 0.0}, "l2_sensitivity must be a positive finite number, got 0.0"),
        ({"l2_sensitivity": -1.0}, "l2_sensitivity must be a positive finite number, got -1.0"),
        ({"l2_sensitivity": math.nan}, "l2_sensitivity must be a positive finite number, got nan"),
        ({"noise_stddev": -1.0}, "noise_stddev must be a non-negative finite number, got -1.0"),
        ({"noise_stddev": math.inf}, "noise_stddev must be a non-negative finite number, got inf"),
        ({"noise_stddev": math.nan}, "noise_stddev must be a non-negative finite number, got nan"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**({"noise_stddev": 1.0} | change))


def test_a_plan_whose_noise_does_not_fit_its_lattice_is_refused_at_release():
    plan = dataclasses.replace(make_plan(exponent=0, noise_stddev=1.0), noise_stddev=2.0**57)
    with pytest.raises(ValueError, match=r"stddev must be at most 2\*\*56 lattice steps") as caught:
        plan.release(np.array([123456], dtype=np.int64), stream_of(0))
    assert "123456" not in str(caught.value)


def test_plans_and_answers_cannot_be_changed():
    plan = make_plan(noise_stddev=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.noise_stddev = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        BELOW.above = True
