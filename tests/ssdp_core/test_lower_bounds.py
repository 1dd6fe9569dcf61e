from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from ssdp_core import bounds
from ssdp_core.lower_bounds import (
    SelectionInstance,
    selection_instance,
    strongly_convex_selection_instance,
)

quick = settings(derandomize=True, deadline=None, max_examples=50)


def draw(strongly: bool, *, num_rows=12, num_codes=5, epsilon=0.5, seed=0) -> SelectionInstance:
    generator = np.random.default_rng(seed)
    if strongly:
        return strongly_convex_selection_instance(
            num_rows, num_codes, epsilon, generator, lipschitz=2.0, strong_convexity=0.8
        )
    return selection_instance(num_rows, num_codes, epsilon, generator, lipschitz=2.0, radius=1.5)


def loss(instance: SelectionInstance, weights: np.ndarray, group: int, code: int) -> float:
    """One row's loss, as the paper defines it."""
    target = np.zeros(instance.dimension)
    target[group * instance.num_codes + code] = 1.0
    if instance.strong_convexity is None:
        return -instance.lipschitz * float(weights @ target)
    difference = weights - instance.radius * target
    return instance.strong_convexity / 2 * float(difference @ difference)


def brute_force_risk(instance: SelectionInstance, weights: np.ndarray) -> float:
    rows = zip(instance.group_ids, instance.codes, strict=True)
    return float(np.mean([loss(instance, weights, group, code) for group, code in rows]))


def point_in_ball(instance: SelectionInstance, generator: np.random.Generator) -> np.ndarray:
    weights = generator.normal(size=instance.dimension)
    return weights * instance.radius * generator.random() / np.linalg.norm(weights)


def shuffle_codes(instance: SelectionInstance, seed: int) -> SelectionInstance:
    """A dataset whose groups no longer agree on their code."""
    codes = np.random.default_rng(seed).integers(instance.num_codes, size=instance.num_rows)
    return dataclasses.replace(instance, codes=codes)


# --- shape


@pytest.mark.parametrize("strongly", [False, True])
def test_every_group_has_r_rows_that_share_a_code(strongly):
    # r = floor(ln 5 / 0.5) = 3; of 14 rows 2 are left over.
    instance = draw(strongly, num_rows=14)
    assert (instance.num_groups, instance.replication, instance.num_rows) == (4, 3, 12)
    assert instance.dimension == 20
    np.testing.assert_array_equal(instance.group_ids, np.repeat([0, 1, 2, 3], 3))
    np.testing.assert_array_equal(instance.codes, np.repeat(instance.codes[::3], 3))
    assert instance.group_ids.dtype == instance.codes.dtype == np.int32
    assert instance.radius == (1.25 if strongly else 1.5)


def test_fewer_rows_than_a_group_make_one_smaller_group():
    instance = draw(False, num_rows=2, epsilon=0.1)
    assert (instance.num_groups, instance.replication) == (1, 2)


def test_codes_are_uniform_over_groups():
    instance = draw(False, num_rows=40000, num_codes=4, epsilon=1.3, seed=5)
    assert instance.replication == 1
    counts = np.bincount(instance.codes, minlength=4)
    assert abs(counts - 10000).max() < 5 * math.sqrt(40000 * 3 / 16)


# --- closed forms


@quick
@given(
    strongly=st.booleans(),
    num_rows=st.integers(3, 40),
    num_codes=st.integers(2, 7),
    share=st.floats(0.2, 1),
    seed=st.integers(0, 10**6),
    agreeing=st.booleans(),
)
def test_closed_forms_match_brute_force(strongly, num_rows, num_codes, share, seed, agreeing):
    epsilon = share * math.log(num_codes)
    instance = draw(strongly, num_rows=num_rows, num_codes=num_codes, epsilon=epsilon, seed=seed)
    if not agreeing:
        instance = shuffle_codes(instance, seed)
    generator = np.random.default_rng(seed + 1)
    weights, optimum = point_in_ball(instance, generator), instance.optimum()
    risk, best = brute_force_risk(instance, weights), brute_force_risk(instance, optimum)
    assert instance.risk(weights) == pytest.approx(risk, abs=1e-12)
    assert instance.excess_risk(weights) == pytest.approx(risk - best, abs=1e-12)
    assert instance.excess_risk(weights) > 0
    assert instance.excess_risk(optimum) == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(optimum) <= instance.radius * (1 + 1e-12)
    # The gradient, by differences of the risk (exact for a quadratic, up to rounding).
    direction = generator.normal(size=instance.dimension)
    difference = brute_force_risk(instance, weights + direction) - brute_force_risk(
        instance, weights - direction
    )
    assert instance.gradient(weights) @ direction == pytest.approx(difference / 2, abs=1e-10)
    public = 0 if instance.strong_convexity is None else instance.strong_convexity * weights
    np.testing.assert_allclose(
        instance.gradient_data_part(), instance.gradient(weights) - public, atol=1e-15
    )


def test_the_data_part_of_the_gradient_by_hand():
    instance = SelectionInstance(
        num_groups=2,
        replication=2,
        num_codes=3,
        group_ids=np.array([0, 0, 1, 1]),
        codes=np.array([2, 2, 0, 0]),
        lipschitz=4.0,
        radius=5.0,
    )
    np.testing.assert_array_equal(instance.gradient_data_part(), [0, 0, -2, -2, 0, 0])
    squared = dataclasses.replace(instance, radius=5.0, strong_convexity=0.4)
    np.testing.assert_allclose(squared.gradient_data_part(), [0, 0, -1, -1, 0, 0])


@pytest.mark.parametrize("strongly", [False, True])
def test_optimum_matches_a_general_solver(strongly):
    instance = shuffle_codes(draw(strongly, num_rows=6, num_codes=3, epsilon=0.5), seed=4)
    solved = optimize.minimize(
        lambda weights: brute_force_risk(instance, weights),
        np.zeros(instance.dimension),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: instance.radius**2 - w @ w},
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(instance.optimum(), solved.x, atol=1e-5)


@pytest.mark.parametrize("strongly", [False, True])
def test_loss_is_lipschitz_and_no_more_than_needed(strongly):
    instance = draw(strongly, num_rows=3, num_codes=5, epsilon=0.5)  # one group, one target
    target = instance.optimum()
    worst = np.linalg.norm(instance.gradient(-target))
    assert worst == pytest.approx(instance.lipschitz)


def test_excess_risk_of_zero():
    # Four groups: R G / sqrt(4), and mu R^2 / (2 * 4).
    zero = np.zeros(20)
    assert draw(False).excess_risk(zero) == pytest.approx(1.5 * 2.0 / 2)
    assert draw(True).excess_risk(zero) == pytest.approx(0.8 * 1.25**2 / 8)


def test_neighbours_change_the_gradient_by_the_queries_sensitivity():
    instance = draw(False)
    codes = instance.codes.copy()
    codes[0] = (codes[0] + 1) % instance.num_codes
    neighbour = dataclasses.replace(instance, codes=codes)
    change = np.linalg.norm(instance.gradient_data_part() - neighbour.gradient_data_part())
    assert change == pytest.approx(math.sqrt(2) * instance.lipschitz / instance.num_rows)


# --- the lower bounds


def exponential_mechanism_guesses(
    instance: SelectionInstance, epsilon: float, generator: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Guesses each group's code, and the chance that a guess is right.

    Scores are counts within the group. Changing one row moves two counts by one each, one up and
    one down, so weights exp(epsilon count / 2) give pure epsilon-DP; groups hold different rows.
    """
    weight = math.exp(epsilon * instance.replication / 2)
    hit = weight / (weight + instance.num_codes - 1)
    truth = instance.codes[:: instance.replication]
    wrong = (
        truth + generator.integers(1, instance.num_codes, size=len(truth))
    ) % instance.num_codes
    return np.where(generator.random(len(truth)) < hit, truth, wrong), hit


def bet_on(instance: SelectionInstance, guesses: np.ndarray, stake: float) -> np.ndarray:
    weights = np.zeros((instance.num_groups, instance.num_codes))
    weights[np.arange(instance.num_groups), guesses] = stake
    return weights.ravel()


def lower_bound(instance: SelectionInstance, epsilon: float) -> float:
    problem = {
        "num_rows": instance.num_rows,
        "num_codes": instance.num_codes,
        "epsilon": epsilon,
        "delta": 0.0,
        "lipschitz": instance.lipschitz,
    }
    if instance.strong_convexity is None:
        return bounds.convex_lower_bound(radius=instance.radius, **problem)
    mu = instance.strong_convexity
    return bounds.strongly_convex_lower_bound(strong_convexity=mu, **problem)


def average_excess(strongly: bool, num_codes: int, epsilon: float) -> tuple[float, float, float]:
    """The mean excess of a private algorithm, its standard error, and the lower bound."""
    generator = np.random.default_rng(num_codes)
    excesses = []
    for seed in range(30):
        instance = draw(
            strongly, num_rows=600, num_codes=num_codes, epsilon=epsilon, seed=1000 + seed
        )
        guesses, hit = exponential_mechanism_guesses(instance, epsilon, generator)
        if strongly:  # R / n' times the chance of being right is the best bet under squared loss
            stake = instance.radius / instance.num_groups * hit
        else:
            stake = instance.radius / math.sqrt(instance.num_groups)
        excesses.append(instance.excess_risk(bet_on(instance, guesses, stake)))
    error = float(np.std(excesses)) / math.sqrt(len(excesses))
    return float(np.mean(excesses)), error, lower_bound(instance, epsilon)


@pytest.mark.parametrize("strongly", [False, True])
@pytest.mark.parametrize(("num_codes", "epsilon"), [(2, 0.3), (2, 0.69), (10, 0.5), (200, 1.0)])
def test_a_private_algorithm_does_not_beat_the_lower_bound(strongly, num_codes, epsilon):
    excess, error, bound = average_excess(strongly, num_codes, epsilon)
    # One-sided; five standard errors. It is not far above either: within a factor of 8.
    assert excess + 5 * error >= bound
    assert excess - 5 * error <= 8 * bound


@pytest.mark.parametrize("strongly", [False, True])
def test_the_simulated_excess_matches_its_closed_form(strongly):
    instance = draw(strongly, num_rows=600, num_codes=10, epsilon=0.5)
    _, hit = exponential_mechanism_guesses(instance, 0.5, np.random.default_rng(0))
    excess, error, _ = average_excess(strongly, 10, 0.5)
    if strongly:  # mu R^2 / (2 n') (1 - 2 hit * hit + hit^2)
        exact = 0.4 * 1.25**2 / instance.num_groups * (1 - hit**2)
    else:
        exact = 1.5 * 2 / math.sqrt(instance.num_groups) * (1 - hit)
    assert abs(excess - exact) < 5 * error


@pytest.mark.parametrize("strongly", [False, True])
def test_an_algorithm_that_is_not_private_enough_does_beat_it(strongly):
    instance = draw(strongly, num_rows=600, num_codes=10, epsilon=0.5)
    bound = lower_bound(instance, 0.5)
    assert instance.excess_risk(instance.optimum()) < bound / 100
    # Twenty times the budget: nearly every guess is right.
    guesses, hit = exponential_mechanism_guesses(instance, 10.0, np.random.default_rng(1))
    assert hit > 0.999
    root = instance.num_groups if strongly else math.sqrt(instance.num_groups)
    weights = bet_on(instance, guesses, instance.radius / root)
    assert instance.excess_risk(weights) < bound / 2


def test_randomised_response_attains_the_success_bound():
    # One row per group: answering truthfully with chance e^eps / (e^eps + k - 1) is eps-DP.
    num_codes, epsilon = 7, 1.5
    truthful = math.exp(epsilon) / (math.exp(epsilon) + num_codes - 1)
    lie = (1 - truthful) / (num_codes - 1)
    assert truthful / lie == pytest.approx(math.exp(epsilon))
    assert truthful == pytest.approx(
        bounds.selection_success_bound(
            num_codes=num_codes, epsilon=epsilon, delta=0.0, replication=1
        )
    )


# --- arguments


def test_bad_arguments_are_refused():
    instance = draw(False)
    with pytest.raises(ValueError, match=r"weights must have shape \(20,\), got \(19,\)"):
        instance.risk(np.zeros(19))
    with pytest.raises(ValueError, match=r"weights must lie in the ball of radius 1\.5"):
        instance.excess_risk(2 * instance.optimum())
    with pytest.raises(ValueError, match=r"epsilon must be at most ln\(num_codes\)"):
        draw(False, epsilon=2.0)
    with pytest.raises(ValueError, match="group_ids must be 12 integers"):
        dataclasses.replace(instance, group_ids=np.zeros(11, dtype=np.int32))
    with pytest.raises(ValueError, match=r"group_ids must lie in 0\.\.3"):
        dataclasses.replace(instance, group_ids=np.full(12, 4))
    with pytest.raises(ValueError, match=r"private codes must lie in 0\.\.4"):
        dataclasses.replace(instance, codes=np.full(12, 5))
    with pytest.raises(ValueError, match="strong_convexity must be a positive finite number"):
        dataclasses.replace(instance, strong_convexity=0.0)
    assert "codes=" not in repr(instance).replace("num_codes=", "")
