from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdp_core import bounds
from ssdp_core.paper_parameters import solved_eta

quick = settings(derandomize=True, deadline=None, max_examples=50)


def project(weights: np.ndarray, radius: float) -> np.ndarray:
    return weights * min(1.0, radius / max(float(np.linalg.norm(weights)), 1e-300))


def test_answer_error():
    assert bounds.answer_error_bound(eta=0.01) == pytest.approx(0.18)
    with pytest.raises(ValueError, match="eta must be a positive finite number, got 0"):
        bounds.answer_error_bound(eta=0)


# --- convex


def test_convex_bound_by_hand():
    # R G = 6: 6/10 + 2*6*0.05 + 2*6*0.01.
    value = bounds.convex_excess_bound(
        lipschitz=2, radius=3, num_steps=100, answer_error=0.05, failure_probability=0.01
    )
    assert value == pytest.approx(0.6 + 0.6 + 0.12)
    assert bounds.convex_num_steps(num_rows=1000) == 10**6


def subgradient_excess(
    gradients: np.ndarray, radius: float, lipschitz: float, alpha: float, num_steps: int
) -> float:
    """Runs the method on F(w) = max_j <a_j, w>, |a_j| <= G, with errors that push off the optimum.

    The answers are kept inside the ball of radius G, as averages of gradients are.
    """
    best = min_of_max(gradients, radius)
    weights, total = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1])
    for _ in range(num_steps):
        total += weights
        gradient = gradients[np.argmax(gradients @ weights)]
        towards = best - weights
        push = towards / max(float(np.linalg.norm(towards)), 1e-12)
        answer = project(gradient + alpha * lipschitz * push, lipschitz)
        weights = project(weights - radius / (lipschitz * math.sqrt(num_steps)) * answer, radius)
    average = total / num_steps
    return float((gradients @ average).max() - (gradients @ best).max())


def min_of_max(gradients: np.ndarray, radius: float) -> np.ndarray:
    """The minimiser of max_j <a_j, w> on the ball: against the shortest vector of the hull."""
    mixture = np.full(len(gradients), 1 / len(gradients))
    for step in range(20000):  # Frank-Wolfe on |mixture @ gradients|^2
        scores = gradients @ (mixture @ gradients)
        mixture *= 1 - 2 / (step + 2)
        mixture[np.argmin(scores)] += 2 / (step + 2)
    shortest = mixture @ gradients
    return -radius * shortest / np.linalg.norm(shortest)


def test_convex_bound_holds_for_the_method_it_describes():
    generator = np.random.default_rng(3)
    radius, lipschitz = 2.0, 1.5
    offset = np.array([0.5, 0.0, 0.0])
    gradients = generator.normal(size=(6, 3)) * 0.4 + offset
    gradients *= lipschitz / np.linalg.norm(gradients, axis=1).max()
    excesses = []
    for alpha, num_steps in itertools.product((0.0, 0.1, 0.3), (25, 400)):
        excess = subgradient_excess(gradients, radius, lipschitz, alpha, num_steps)
        bound = bounds.convex_excess_bound(
            lipschitz=lipschitz, radius=radius, num_steps=num_steps, answer_error=alpha
        )
        assert -1e-3 < excess <= bound
        excesses.append(excess)
    assert excesses[4] > 0.1 * 2 * radius * lipschitz * 0.3  # the errors do harm


def test_the_exact_gradient_term_is_tight_up_to_a_factor_of_two():
    # F(w) = w_1: w_t = -(t / sqrt(q)) e_1 until it reaches -1, so the average of t = 0..q-1 misses
    # the optimum by (sqrt(q) + 1) / (2 q).
    excess = subgradient_excess(np.array([[1.0, 0.0]]), 1.0, 1.0, 0.0, num_steps=16)
    assert excess == pytest.approx(5 / 32)
    bound = bounds.convex_excess_bound(lipschitz=1, radius=1, num_steps=16, answer_error=0)
    assert excess <= bound <= 2 * excess


# --- strongly convex and smooth


def test_strongly_convex_bound_by_hand():
    # mu = 2, lambda = 8, R = 0.5, q = 32, G = 3, alpha = 0.1, beta = 0.01.
    value = bounds.strongly_convex_excess_bound(
        lipschitz=3,
        strong_convexity=2,
        smoothness=8,
        radius=0.5,
        num_steps=32,
        answer_error=0.1,
        failure_probability=0.01,
    )
    assert value == pytest.approx(2 * math.exp(-2) + 0.09 * (1 / 2 + 1 / 16) + 0.01 * 9 / 4)
    assert bounds.strongly_convex_radius(lipschitz=3, strong_convexity=2) == 1.5


@quick
@given(
    num_rows=st.integers(1, 10**9),
    strong_convexity=st.floats(1e-3, 10),
    condition=st.floats(1, 1e4),
    radius=st.floats(1e-3, 1e3),
)
def test_the_number_of_steps_makes_the_optimisation_error_negligible(
    num_rows, strong_convexity, condition, radius
):
    curvature = {"strong_convexity": strong_convexity, "smoothness": strong_convexity * condition}
    num_steps = bounds.strongly_convex_num_steps(num_rows=num_rows, radius=radius, **curvature)
    excess = bounds.strongly_convex_excess_bound(
        lipschitz=1, radius=radius, num_steps=num_steps, answer_error=0, **curvature
    )
    assert num_steps >= 1
    assert excess <= (1 + 1e-9) / num_rows


def test_the_number_of_steps_by_hand():
    steps = bounds.strongly_convex_num_steps(
        num_rows=1000, strong_convexity=0.5, smoothness=2, radius=3
    )
    assert steps == math.ceil(160 * math.log(18000))
    one = bounds.strongly_convex_num_steps(
        num_rows=10, strong_convexity=1, smoothness=1, radius=0.1
    )
    assert one == 1


def test_inexact_oracle_inequalities_hold():
    """F'(w) = F(w) - xi^2 / mu turns gradients with error xi into the oracle that is claimed."""
    generator = np.random.default_rng(11)
    mu, lam, xi = 0.3, 2.0, 0.7
    upsilon = bounds.inexact_oracle_error(gradient_error=xi, strong_convexity=mu, smoothness=lam)
    eigenvalues = np.array([mu, 1.0, lam])
    tightest_low = tightest_high = math.inf
    for _ in range(4000):
        start, step = generator.normal(size=(2, 3)) * np.exp(generator.uniform(-2, 2))
        error = generator.normal(size=3)
        if generator.random() < 0.5:  # the worst error points along the step
            error = step * generator.choice([-1, 1])
        error *= xi / np.linalg.norm(error)
        value = 0.5 * eigenvalues @ start**2 - xi**2 / mu
        ahead = 0.5 * eigenvalues @ (start + step) ** 2
        gap = ahead - value - (eigenvalues * start + error) @ step
        square = step @ step
        tightest_low = min(tightest_low, gap - mu / 4 * square)
        tightest_high = min(tightest_high, lam * square + upsilon - gap)
    assert 0 <= tightest_low < 0.3 * upsilon
    assert 0 <= tightest_high < 0.3 * upsilon


@pytest.mark.parametrize("num_steps", [1, 5, 40, 300])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.3])
def test_strongly_convex_bound_holds_for_the_method_it_describes(num_steps, alpha):
    mu, lam, radius = 0.2, 1.0, 1.0
    lipschitz = 2 * lam * radius
    eigenvalues, centre = np.array([mu, 0.6, lam]), np.array([0.4, -0.3, 0.2])
    theta = 1 - (mu / 2) / (2 * lam)
    weights, average, mass = np.array([-0.6, 0.5, 0.3]), np.zeros(3), 0.0
    start = np.linalg.norm(weights - centre)
    for step in range(1, num_steps + 1):
        away = weights - centre
        error = -alpha * lipschitz * away / max(np.linalg.norm(away), 1e-12)
        weights = project(weights - (eigenvalues * away + error) / (2 * lam), radius)
        average += theta ** (num_steps - step) * weights
        mass += theta ** (num_steps - step)
    excess = 0.5 * eigenvalues @ (average / mass - centre) ** 2
    bound = bounds.strongly_convex_excess_bound(
        lipschitz=lipschitz,
        strong_convexity=mu,
        smoothness=lam,
        radius=start,
        num_steps=num_steps,
        answer_error=alpha,
    )
    assert excess <= bound
    if alpha and num_steps == 300:
        assert excess > 0.01 * bound


def test_curvature_is_checked():
    with pytest.raises(ValueError, match=r"smoothness must be at least strong_convexity = 2\.0"):
        bounds.inexact_oracle_error(gradient_error=1, strong_convexity=2, smoothness=1)
    with pytest.raises(ValueError, match="num_steps must be a whole number of at least 1, got 0"):
        bounds.convex_excess_bound(lipschitz=1, radius=1, num_steps=0, answer_error=0)


# --- scaling laws

PROBLEM = {"num_codes": 10, "num_problems": 3, "epsilon": 1.0, "delta": 1e-6}


def test_rates_by_hand():
    # ln(1/delta) = 4 and ln k = ln 10.
    problem = {**PROBLEM, "delta": math.exp(-4), "epsilon": 0.5}
    logs = math.log(3 * 10**4) + math.log(math.log(10)) + math.log(2 / 0.5)
    value = bounds.convex_rate(num_rows=10**4, lipschitz=2, radius=3, **problem)
    assert value == pytest.approx(6 * (4 * math.log(10)) ** 0.25 * math.sqrt(logs / 5000))
    value = bounds.strongly_convex_rate(
        num_rows=10**4, lipschitz=30, strong_convexity=0.5, smoothness=2, **problem
    )
    logs += math.log(4) + math.log(math.log(60))
    assert value == pytest.approx(900 / 0.5 * math.sqrt(4 * math.log(10)) * logs / 5000)


def test_rates_fall_with_rows_and_grow_slowly_with_codes():
    def convex(num_rows: int, num_codes: int = 10) -> float:
        problem = {**PROBLEM, "num_codes": num_codes}
        return bounds.convex_rate(num_rows=num_rows, lipschitz=1, radius=1, **problem)

    def strongly(num_rows: int) -> float:
        return bounds.strongly_convex_rate(
            num_rows=num_rows, lipschitz=1, strong_convexity=1, smoothness=1, **PROBLEM
        )

    assert 5 < convex(10**6) / convex(10**8) < 10
    assert 50 < strongly(10**6) / strongly(10**8) < 100
    assert convex(10**6, 10**6) < 2 * convex(10**6, 10)
    assert convex(1, 2) > 0


def test_the_theorem_follows_its_rate():
    """The bound with solved constants divided by the rate stays within a factor over 8 decades."""
    ratios = []
    for exponent in (6, 8, 10, 12, 14):
        num_rows = 10**exponent
        eta = solved_eta(num_rows, 10, 0.0244, 3 * num_rows**2, 1 / num_rows)
        bound = bounds.convex_excess_bound(
            lipschitz=1,
            radius=1,
            num_steps=bounds.convex_num_steps(num_rows=num_rows),
            answer_error=bounds.answer_error_bound(eta=eta),
            failure_probability=1 / num_rows,
        )
        ratios.append(
            bound / bounds.convex_rate(num_rows=num_rows, lipschitz=1, radius=1, **PROBLEM)
        )
    assert max(ratios) < 1.5 * min(ratios)
    assert 20 < ratios[0] < 500


# --- lower bounds


def lower_bounds(**changes: object) -> tuple[float, float]:
    problem = {"num_rows": 600, "num_codes": 100, "epsilon": 0.8, "delta": 1e-4, **changes}
    return (
        bounds.convex_lower_bound(lipschitz=2.0, radius=3.0, **problem),
        bounds.strongly_convex_lower_bound(lipschitz=2.0, strong_convexity=0.5, **problem),
    )


def test_lower_bounds_by_hand():
    # r = floor(4.605 / 0.8) = 5, n' = 120, e^(r eps) = e^4.
    group = math.exp(4)
    success = group / (group + 99) + (group - 1) / (math.exp(0.8) - 1) * 1e-4
    convex, strongly = lower_bounds()
    assert convex == pytest.approx(6 / math.sqrt(120) * (1 - math.sqrt(0.5 + success / 2)))
    # R = G / (2 mu) = 2.
    assert strongly == pytest.approx(0.5 * 4 / 480 * (1 - success))


def test_left_over_rows_dilute_the_bounds():
    whole, part = lower_bounds(num_rows=600), lower_bounds(num_rows=604)
    assert part[0] == pytest.approx(whole[0] * 600 / 604)
    assert part[1] == pytest.approx(whole[1] * (600 / 604) ** 2)


@quick
@given(
    num_rows=st.integers(1, 10**6),
    num_codes=st.integers(2, 10**6),
    share=st.floats(1e-4, 1),
    delta_share=st.floats(0, 1),
)
def test_under_the_conditions_the_bounds_are_positive_and_below_the_upper_ones(
    num_rows, num_codes, share, delta_share
):
    epsilon = share * math.log(num_codes)
    delta = delta_share * 0.4 * epsilon / num_codes * (1 - 1e-12)
    shape = {"num_codes": num_codes, "epsilon": epsilon}
    replication = bounds.selection_replication(num_rows=num_rows, **shape)
    assert 1 <= replication <= num_rows
    success = bounds.selection_success_bound(delta=delta, replication=replication, **shape)
    assert 1 / num_codes < success <= 0.9 + 1e-9
    convex, strongly = lower_bounds(num_rows=num_rows, delta=delta, **shape)
    # Nothing can be harder than answering 0, whose excess is R G / sqrt(n') and mu R^2 / (2 n').
    num_groups = num_rows // replication
    assert 0 < convex < 6.0 / math.sqrt(num_groups)
    assert 0 < strongly < 0.5 * 4 / (2 * num_groups)
    # The theorem's form with the constants of its proof: at least 0.025 (0.5 dilution).
    rate = min(1.0, math.sqrt(math.log(num_codes) / (epsilon * num_rows)))
    assert convex >= 0.5 * (1 - math.sqrt(0.95)) * 6.0 * rate / math.sqrt(2)


def test_few_rows_use_one_group_of_all_of_them():
    # ln k / eps = 23 > n = 5, and n eps < ln 2, so no smaller k would fit.
    shape = {"num_rows": 5, "num_codes": 10, "epsilon": 0.1}
    assert bounds.selection_replication(**shape) == 5
    convex, _ = lower_bounds(delta=0.0, **shape)
    success = math.exp(0.5) / (math.exp(0.5) + 9)
    assert convex == pytest.approx(6 * (1 - math.sqrt(0.5 + success / 2)))


@pytest.mark.parametrize("epsilon", [0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("num_rows", [2, 5, 9])
def test_few_rows_give_no_less_than_lowering_the_number_of_codes(num_rows, epsilon):
    num_codes = math.ceil(math.exp((num_rows + 1) * epsilon)) * 3
    fitting = math.floor(math.exp(num_rows * epsilon))
    ours = lower_bounds(num_rows=num_rows, num_codes=num_codes, epsilon=epsilon, delta=0.0)
    if fitting >= 2 and epsilon <= math.log(fitting):
        papers = lower_bounds(num_rows=num_rows, num_codes=fitting, epsilon=epsilon, delta=0.0)
        assert ours[0] >= papers[0]
        assert ours[1] >= papers[1]


def test_lower_bounds_refuse_what_the_theorems_do_not_cover():
    with pytest.raises(ValueError, match=r"epsilon must be at most ln\(num_codes\) = 0.693147"):
        lower_bounds(num_codes=2, epsilon=0.7)
    with pytest.raises(ValueError, match=r"delta must be at most 0.4 epsilon / num_codes = 0.0032"):
        lower_bounds(delta=0.0033)
    with pytest.raises(ValueError, match="delta must be a non-negative finite number, got -1"):
        lower_bounds(delta=-1)


def test_a_large_group_hides_nothing():
    success = bounds.selection_success_bound(
        num_codes=10, epsilon=1.0, delta=0.0, replication=10**4
    )
    assert success == 1.0
