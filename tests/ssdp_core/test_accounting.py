from __future__ import annotations

import dataclasses
import math
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ssdp_core.accounting import (
    FILTER_TOLERANCE,
    Charge,
    ZcdpFilter,
    delta_from_rho,
    epsilon_from_rho,
    gaussian_rho,
    pure_dp_rho,
    rho_from_epsilon,
)
from ssdp_core.errors import BudgetExhaustedError

EPSILONS = (1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 8.0, 20.0)
DELTAS = (1e-3, 1e-5, 1e-6, 1e-9, 1e-12)

quick = settings(derandomize=True, deadline=None, max_examples=50)
epsilons = st.floats(1e-4, 50)
deltas = st.floats(-14, -0.4).map(lambda exponent: 10.0**exponent)


def cost(rho: float, label: str = "test") -> Charge:
    return Charge(mechanism="gaussian", rho=rho, label=label)


# --- an independent evaluation of the conversion, 50 digits, by golden-section search over orders


def golden_section_minimum(fn, low, high):
    golden = (mpmath.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = fn(left), fn(right)
    for _ in range(130):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = fn(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = fn(right)
    return min(at_left, at_right)


def exact_log_delta(rho: float, epsilon: float, log_order) -> mpmath.mpf:
    """The formula as printed, with the order a = 1 + exp(log_order)."""
    a = 1 + mpmath.exp(log_order)
    rho, epsilon = mpmath.mpf(rho), mpmath.mpf(epsilon)
    return (a - 1) * (a * rho - epsilon) - mpmath.log(a - 1) + a * mpmath.log(1 - 1 / a)


def exact_delta(rho: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(50):
        return mpmath.exp(
            golden_section_minimum(
                lambda t: exact_log_delta(rho, epsilon, t), mpmath.mpf(-8), mpmath.mpf(30)
            )
        )


def exact_rho(epsilon: float, delta: float) -> mpmath.mpf:
    """Each order allows one rho (the formula is solved for it); the best order allows most."""
    with mpmath.workdps(50):
        log_delta = mpmath.log(mpmath.mpf(delta))

        def negative_rho(t):
            a = 1 + mpmath.exp(t)
            return -(log_delta - exact_log_delta(0, epsilon, t)) / ((a - 1) * a)

        return -golden_section_minimum(negative_rho, mpmath.mpf(-8), mpmath.mpf(30))


def exact_gaussian_delta(rho: float, epsilon: float) -> float:
    """Balle and Wang, 2018, Theorem 8, for noise multiplier s with rho = 1 / (2 s^2)."""
    s = 1 / math.sqrt(2 * rho)
    upper = stats.norm.logcdf(1 / (2 * s) - epsilon * s)
    lower = epsilon + stats.norm.logcdf(-1 / (2 * s) - epsilon * s)
    return float(np.exp(upper) * -np.expm1(lower - upper))


# --- conversions


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho"),
    [(1.0, 1e-6, 0.0244), (8.0, 1e-6, 1.052), (0.1, 1e-5, 0.00043)],
)
def test_rho_matches_published_values(epsilon, delta, rho):
    assert rho_from_epsilon(epsilon, delta) == pytest.approx(rho, rel=0.01)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_rho_is_tight_and_never_above_the_exact_value(epsilon, delta):
    exact, rho = exact_rho(epsilon, delta), rho_from_epsilon(epsilon, delta)
    # The filter may overspend by its tolerance, so even that much more must stay below.
    assert rho * (1 + FILTER_TOLERANCE) < exact
    assert rho > exact * (1 - 1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS[::2])
@pytest.mark.parametrize("delta", DELTAS[::2])
def test_epsilon_and_delta_are_tight_and_never_below_the_exact_value(epsilon, delta):
    rho = float(exact_rho(epsilon, delta))  # so that (epsilon, delta) is the exact answer
    assert epsilon * (1 + 1e-12) < epsilon_from_rho(rho, delta) < epsilon * (1 + 1e-6)
    exact = exact_delta(rho, epsilon)
    assert exact < delta_from_rho(rho, epsilon) < exact * (1 + 1e-6)


@pytest.mark.parametrize("rho", [1e-5, 1e-3, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0, 15.0])
def test_delta_is_never_below_that_of_a_gaussian_with_the_same_rho(rho, epsilon):
    assert delta_from_rho(rho, epsilon) > exact_gaussian_delta(rho, epsilon)


def test_epsilon_agrees_with_dp_accounting():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    for rho, delta in [(0.0244, 1e-6), (1.0, 1e-5), (1e-3, 1e-9)]:
        ours = epsilon_from_rho(rho, delta)
        # A grid of orders around the best one, which for zCDP is near 1 + sqrt(ln(1/delta) / rho).
        orders = 1 + np.geomspace(0.3, 3, 400) * math.sqrt(-math.log(delta) / rho)
        accountant = RdpAccountant(orders)
        accountant.compose(dp_accounting.ZCDpEvent(rho))
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-4)
        assert ours < accountant.get_epsilon(delta) * (1 + 2e-9)


@quick
@given(epsilon=epsilons, delta=deltas)
def test_the_returned_budget_keeps_its_promise(epsilon, delta):
    rho = rho_from_epsilon(epsilon, delta)
    assert epsilon_from_rho(rho, delta) <= epsilon
    assert delta_from_rho(rho, epsilon) <= delta
    assert epsilon_from_rho(rho * (1 + 1e-6), delta) > epsilon


@quick
@given(rho=st.floats(1e-6, 50), delta=deltas)
def test_conversion_beats_bun_and_steinke(rho, delta):
    assert epsilon_from_rho(rho, delta) < rho + 2 * math.sqrt(rho * -math.log(delta))


@quick
@given(rho=st.floats(1e-6, 50), delta=deltas, factor=st.floats(1.001, 10))
def test_conversions_are_monotone(rho, delta, factor):
    epsilon = epsilon_from_rho(rho, delta)
    assert epsilon <= epsilon_from_rho(rho * factor, delta)
    assert epsilon >= epsilon_from_rho(rho, min(delta * factor, 0.49))
    if epsilon > 0:
        assert delta_from_rho(rho, epsilon) <= delta_from_rho(rho * factor, epsilon)
        assert delta_from_rho(rho, epsilon) >= delta_from_rho(rho, epsilon * factor)
        assert rho_from_epsilon(epsilon, delta) < rho_from_epsilon(epsilon * factor, delta)


def test_infinity_switches_noise_off():
    assert epsilon_from_rho(math.inf, 1e-6) == math.inf
    assert rho_from_epsilon(math.inf, 1e-6) == math.inf
    assert delta_from_rho(math.inf, 1.0) == 1.0
    assert delta_from_rho(1.0, math.inf) == 0.0


@pytest.mark.parametrize("size", [5e-324, 1e-200, 1e-9, 1e9, 1e200, sys.float_info.max])
def test_extreme_arguments_stay_finite_and_ordered(size):
    for other in (5e-324, 1e-9, 1.0, 1e200, sys.float_info.max):
        assert 0 < delta_from_rho(size, other) <= 1
    assert delta_from_rho(size, 1.0) <= delta_from_rho(sys.float_info.max, 1.0) == 1.0
    for delta in (1e-300, 1e-6, 0.499):
        assert epsilon_from_rho(size, delta) >= 0


def test_an_underflowing_delta_is_rounded_up():
    assert delta_from_rho(1e-3, 100.0) == math.ulp(0.0)


def test_a_budget_too_small_to_represent_is_refused():
    with pytest.raises(ValueError, match=r"epsilon must be larger .* got 1e-200"):
        rho_from_epsilon(1e-200, 1e-200)


@pytest.mark.parametrize("bad", [0, 0.0, -1.0, math.nan, "1", None, True])
def test_bad_budgets_are_refused(bad):
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        rho_from_epsilon(bad, 1e-6)
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        delta_from_rho(1.0, bad)
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        pure_dp_rho(bad)
    with pytest.raises(ValueError, match="rho must be a positive number"):
        epsilon_from_rho(bad, 1e-6)
    with pytest.raises(ValueError, match="rho_budget must be a positive number"):
        ZcdpFilter(bad)
    with pytest.raises(ValueError, match="rho must be a positive number"):
        cost(bad)


@pytest.mark.parametrize("bad", [0.0, 0.5, 1.0, -1e-6, math.nan])
def test_bad_deltas_are_refused(bad):
    with pytest.raises(ValueError, match=r"delta must be strictly between 0 and 0\.5"):
        rho_from_epsilon(1.0, bad)
    with pytest.raises(ValueError, match=r"delta must be strictly between 0 and 0\.5"):
        epsilon_from_rho(1.0, bad)


# --- costs of mechanisms


@quick
@given(epsilon=st.floats(1e-150, 1e150))
def test_pure_dp_cost_is_rounded_up(epsilon):
    exact = Fraction(epsilon) ** 2 / 2
    assert exact < Fraction(pure_dp_rho(epsilon)) < exact * (1 + Fraction(1, 10**14))


@quick
@given(sensitivity=st.floats(1e-70, 1e70), stddev=st.floats(1e-70, 1e70))
def test_gaussian_cost_is_rounded_up(sensitivity, stddev):
    exact = Fraction(sensitivity) ** 2 / (2 * Fraction(stddev) ** 2)
    assert exact < Fraction(gaussian_rho(sensitivity, stddev)) < exact * (1 + Fraction(1, 10**14))


def test_costs_at_the_edges():
    assert pure_dp_rho(math.inf) == math.inf
    assert pure_dp_rho(1e-300) == sys.float_info.min
    assert gaussian_rho(1.0, 0.0) == math.inf
    assert gaussian_rho(0.0, 0.0) == math.inf
    assert gaussian_rho(0.0, 1.0) == sys.float_info.min
    with pytest.raises(ValueError, match="noise_stddev must be a non-negative finite number"):
        gaussian_rho(1.0, -1.0)
    with pytest.raises(ValueError, match="l2_sensitivity must be a non-negative finite number"):
        gaussian_rho(math.inf, 1.0)


# --- the filter


@pytest.mark.parametrize("budget", [1.0, rho_from_epsilon(1.0, 1e-6)])
@pytest.mark.parametrize("parts", [3, 7, 10, 1000])
def test_a_budget_divided_into_rounded_parts_is_spent_in_full(budget, parts):
    fuel = ZcdpFilter(budget)  # 1 / 10 rounds up, so ten of them exceed 1
    for part in range(parts):
        fuel.charge(cost(budget / parts, f"part {part}"))
    assert fuel.spent == pytest.approx(budget, rel=1e-12)
    assert not fuel.can_afford(budget * 1e-11)


def test_a_refused_charge_changes_nothing_and_says_what_is_left():
    fuel = ZcdpFilter(1.0)
    fuel.charge(cost(0.75, "round 1"))
    with pytest.raises(
        BudgetExhaustedError,
        match=r"round 2 asks for rho = 0\.5 but only rho = 0\.25 of the budget of 1\.0 is left",
    ):
        fuel.charge(cost(0.5, "round 2"))
    assert fuel.charges == (cost(0.75, "round 1"),)
    assert (fuel.spent, fuel.remaining) == (0.75, 0.25)
    fuel.charge(cost(0.25, "round 3"))
    assert (fuel.spent, fuel.remaining) == (1.0, 0.0)


@pytest.mark.parametrize("tiny", [1e-13, 1e-100, sys.float_info.min])
def test_an_exhausted_budget_accepts_nothing_however_small(tiny):
    fuel = ZcdpFilter(1.0)
    fuel.charge(cost(1.0))
    assert not fuel.can_afford(tiny)
    with pytest.raises(BudgetExhaustedError, match=r"only rho = 0\.0"):
        fuel.charge(cost(tiny))


def test_many_tiny_charges_are_not_lost_to_rounding():
    fuel = ZcdpFilter(1.0)
    fuel.charge(cost(1.0 - 2**-50))
    for _ in range(8):  # each is below half an ulp of the sum, so float addition would ignore it
        fuel.charge(cost(2**-56))
    assert fuel.spent > 1.0 - 2**-50
    assert fuel.remaining == 2**-50 - 2**-53


@pytest.mark.parametrize("bad", [5e-324, 1e-310])
def test_subnormal_charges_are_refused(bad):
    with pytest.raises(ValueError, match="rho must be at least 2"):
        cost(bad)
    with pytest.raises(ValueError, match="rho must be at least 2"):
        ZcdpFilter(1.0).can_afford(bad)


def test_an_unlimited_budget_accepts_infinite_charges_and_a_finite_one_does_not():
    fuel = ZcdpFilter(math.inf)
    fuel.charge(cost(2.0))
    assert (fuel.spent, fuel.remaining) == (2.0, math.inf)
    fuel.charge(cost(math.inf))
    assert (fuel.spent, fuel.remaining) == (math.inf, math.inf)
    assert len(fuel.charges) == 2
    with pytest.raises(BudgetExhaustedError, match="asks for rho = inf"):
        ZcdpFilter(1.0).charge(cost(math.inf))


def test_charges_are_checked_and_immutable():
    with pytest.raises(ValueError, match="mechanism must be a non-empty string, got ''"):
        Charge(mechanism="", rho=1.0, label="x")
    with pytest.raises(ValueError, match="label must be a string, got 3"):
        Charge(mechanism="gaussian", rho=1.0, label=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cost(1.0).rho = 2.0


@quick
@given(
    budget=st.floats(1e-6, 10),
    parts=st.lists(st.floats(1e-9, 1.0), max_size=40),
)
def test_the_filter_never_passes_its_cap_and_refuses_only_what_would(budget, parts):
    fuel = ZcdpFilter(budget)
    exact = Fraction(0)
    cap = Fraction(budget) * (1 + Fraction(FILTER_TOLERANCE))
    for part in (share * budget for share in parts):
        fits = exact + Fraction(part) <= cap and exact < Fraction(budget)
        assert fuel.can_afford(part) == fits
        if fits:
            fuel.charge(cost(part))
            exact += Fraction(part)
        else:
            with pytest.raises(BudgetExhaustedError):
                fuel.charge(cost(part))
        # Reported figures are on the safe side of the exact ones, by at most one rounding.
        assert exact <= Fraction(fuel.spent) <= exact * (1 + Fraction(1, 2**52))
        assert Fraction(fuel.remaining) <= max(Fraction(budget) - exact, 0)
        assert len(fuel.charges) <= len(parts)
    assert sum(Fraction(charge.rho) for charge in fuel.charges) == exact <= cap
