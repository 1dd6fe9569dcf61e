"""zCDP accounting: conversions to (epsilon, delta), costs of mechanisms, and a budget filter.

Every number here is rounded towards privacy: costs and epsilons up, budgets down. The relation
behind every guarantee is semi-sensitive: two datasets are neighbours when they differ in the
sensitive columns of one row (or of the rows of one privacy unit) and agree on everything else.

The conversion is the one of Canonne, Kamath and Steinke, The Discrete Gaussian for Differential
Privacy, 2020, Proposition 12. A rho-zCDP mechanism is (epsilon, delta)-DP whenever, for some order
a = 1 + b > 1,

    delta >= exp(b (a rho - epsilon)) / b * (1 - 1/a)^a,

so an imprecise search over b can cost accuracy but never privacy. We evaluate it directly instead
of calling dp-accounting: the best order solves a one-dimensional monotone equation, which is more
precise than a fixed grid of orders and leaves every rounding in view (dp-accounting remains the
cross-check in the tests).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from fractions import Fraction

from ssdp_core import _validate
from ssdp_core.errors import BudgetExhaustedError

# How far a sum of charges may pass the cap, relative to the cap, so that a budget divided into
# rounded parts can be spent in full. The conversions below leave this much room and more: they
# evaluate the bound as if rho were larger by _SLACK * rho, and _SLACK > FILTER_TOLERANCE.
FILTER_TOLERANCE = 1e-12
_SLACK = 4e-12  # relative, on every term of a formula: covers rounding and FILTER_TOLERANCE
_MARGIN = 1e-9  # relative, on a result: far above the rounding errors of math.log and math.exp

_SMALLEST_CHARGE = sys.float_info.min  # smallest normal float; anything smaller loses digits


def _order_for_epsilon(rho: float, log_inverse_delta: float) -> float:
    """Returns b = a - 1 for the order a that gives (about) the smallest epsilon.

    The derivative of epsilon in b is rho - (ln(1/delta) - ln(1 + b)) / b^2, so the minimiser is the
    only root of the increasing function rho b^2 + ln(1 + b) - ln(1/delta).
    """
    # At `low` both increasing terms are at most half of ln(1/delta); at `high` one reaches it all.
    low = min(log_inverse_delta / 2, math.sqrt(log_inverse_delta / rho / 2))
    high = min(math.sqrt(log_inverse_delta / rho), math.expm1(min(log_inverse_delta, 700.0)))
    for _ in range(60):
        middle = math.sqrt(low) * math.sqrt(high)
        if rho * middle * middle + math.log1p(middle) < log_inverse_delta:
            low = middle
        else:
            high = middle
    return low


def _order_for_delta(rho: float, epsilon: float) -> float:
    """Returns b = a - 1 for the order a that gives (about) the smallest delta.

    ln(delta) is convex in b with derivative (1 + 2b) rho - epsilon - ln(1 + 1/b), which increases
    from minus to plus infinity.
    """
    # At `high` the derivative is positive because ln(1 + 1/b) <= 1/b <= sqrt(2 rho) there.
    # The limits keep every product below overflow; any b is valid, so they cannot harm.
    high = epsilon / rho / 2 + 1 / math.sqrt(2) / math.sqrt(rho)
    high = max(1e-300, min(high, 1e300 / max(1.0, epsilon)))
    low = max(1e-300, min(1.0, high) * math.exp(-min(3 * rho, 600.0)))
    for _ in range(60):
        middle = math.sqrt(low) * math.sqrt(high)
        if (1 + 2 * middle) * rho - epsilon < math.log1p(1 / middle):
            low = middle
        else:
            high = middle
    return low


def epsilon_from_rho(rho: float, delta: float) -> float:
    """Returns an epsilon for which rho-zCDP implies (epsilon, delta)-DP.

    Guarantee: the result is never below the exact value of the conversion, even if the true rho is
    larger by the filter's tolerance; it exceeds it by about 1e-9 relative. ``rho = inf`` gives
    ``inf``. A tiny rho may give 0, since delta alone can cover it.
    """
    rho = _validate.positive_or_infinite(rho=rho)
    delta = _validate.open_interval(0, 0.5, delta=delta)
    if math.isinf(rho):
        return math.inf
    log_inverse_delta = -math.log(delta)
    b = _order_for_epsilon(rho, log_inverse_delta)
    linear = (1 + b) * rho
    gain = math.log1p(1 / b)
    epsilon = linear - gain + (log_inverse_delta - math.log1p(b)) / b
    magnitude = linear + gain + (log_inverse_delta + math.log1p(b)) / b
    return max(0.0, epsilon + _MARGIN * abs(epsilon) + _SLACK * magnitude)


def delta_from_rho(rho: float, epsilon: float) -> float:
    """Returns a delta for which rho-zCDP implies (epsilon, delta)-DP.

    Guarantee: as for `epsilon_from_rho`, rounded up; at most 1, and positive unless
    ``epsilon = inf``, where the result is 0. ``rho = inf`` with a finite epsilon gives 1.
    """
    rho = _validate.positive_or_infinite(rho=rho)
    epsilon = _validate.positive_or_infinite(epsilon=epsilon)
    if math.isinf(epsilon):
        return 0.0
    if math.isinf(rho):
        return 1.0
    b = _order_for_delta(rho, epsilon)
    gain = b * math.log1p(1 / b) + math.log1p(b)
    log_delta = b * ((rho - epsilon) + b * rho) - gain
    magnitude = b * (rho + epsilon + b * rho) + gain
    log_delta += _MARGIN + _SLACK * magnitude
    # The smallest positive float stands in for results that underflow.
    return max(math.exp(min(log_delta, 0.0)), math.ulp(0.0))


def rho_from_epsilon(epsilon: float, delta: float) -> float:
    """Returns the largest zCDP budget (rounded down) that implies (epsilon, delta)-DP.

    Guarantee: ``epsilon_from_rho(result, delta) <= epsilon`` and ``delta_from_rho(result, epsilon)
    <= delta``, so a `ZcdpFilter` capped at the result is (epsilon, delta)-DP including its
    tolerance. ``epsilon = inf`` gives ``inf``.
    """
    epsilon = _validate.positive_or_infinite(epsilon=epsilon)
    delta = _validate.open_interval(0, 0.5, delta=delta)
    if math.isinf(epsilon):
        return math.inf

    def fits(rho: float) -> bool:
        return epsilon_from_rho(rho, delta) <= epsilon and delta_from_rho(rho, epsilon) <= delta

    # Start from the closed form of Bun and Steinke, 2016, Proposition 1.3, which is smaller.
    root = math.sqrt(-math.log(delta))
    low = 0.0
    high = max((epsilon / (math.sqrt(root * root + epsilon) + root)) ** 2, _SMALLEST_CHARGE)
    while fits(high):
        low, high = high, 2 * high
    # Invariant: low keeps the guarantee, high does not. We return low, so stopping early is safe.
    while high - low > 1e-12 * high:
        middle = low + (high - low) / 2
        if middle < _SMALLEST_CHARGE:
            raise ValueError(
                f"epsilon must be larger for any budget to be representable, got {epsilon!r} with "
                f"delta = {delta!r}"
            )
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _round_up(value: float) -> float:
    """Returns a float above the exact result of a few float operations that gave ``value``."""
    return max(value * (1 + 4 * sys.float_info.epsilon), _SMALLEST_CHARGE)


def pure_dp_rho(epsilon: float) -> float:
    """Returns the zCDP cost of an epsilon-DP mechanism, epsilon^2 / 2, rounded up.

    Bun and Steinke, 2016, Proposition 1.4. Never zero, so that every release leaves a charge.
    """
    epsilon = _validate.positive_or_infinite(epsilon=epsilon)
    return _round_up(epsilon * epsilon / 2)


def gaussian_rho(l2_sensitivity: float, noise_stddev: float) -> float:
    """Returns the zCDP cost of Gaussian noise, sensitivity^2 / (2 stddev^2), rounded up.

    Bun and Steinke, 2016, Proposition 1.6; the discrete Gaussian costs the same.

    Edge cases: ``noise_stddev = 0`` costs ``inf``, whatever the sensitivity; a zero sensitivity
    costs the smallest normal float, so that every release leaves a charge.
    """
    l2_sensitivity = _validate.non_negative(l2_sensitivity=l2_sensitivity)
    noise_stddev = _validate.non_negative(noise_stddev=noise_stddev)
    if noise_stddev == 0:
        return math.inf
    ratio = l2_sensitivity / noise_stddev
    return _round_up(ratio * ratio / 2)


def _charge_size(rho: float) -> float:
    """Returns ``rho`` if it can be charged: zero, negative, subnormal and NaN are refused.

    A release that costs nothing needs no charge, and an amount too small to be represented well is
    a mistake upstream; letting either pass would let an exhausted budget be used.
    """
    rho = _validate.positive_or_infinite(rho=rho)
    if rho < _SMALLEST_CHARGE:
        raise ValueError(f"rho must be at least {_SMALLEST_CHARGE} to be charged, got {rho!r}")
    return rho


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One release and its price.

    Attributes:
        mechanism: What was run, for example ``"gaussian"`` or ``"above_threshold"``.
        rho: Its zCDP cost; infinity for a release without noise.
        label: Which release it was, for the report; public.
    """

    mechanism: str
    rho: float
    label: str

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, str) or not self.mechanism:
            raise ValueError(f"mechanism must be a non-empty string, got {self.mechanism!r}")
        if not isinstance(self.label, str):
            raise ValueError(f"label must be a string, got {self.label!r}")
        object.__setattr__(self, "rho", _charge_size(self.rho))


class ZcdpFilter:
    """A cap on the sum of zCDP charges, set once and checked before each release.

    Guarantee: if each release is charged before it is made, and is charge.rho-zCDP given everything
    released before it, then everything released under one filter is together rho_budget-zCDP (up to
    a relative FILTER_TOLERANCE, for which `rho_from_epsilon` and `epsilon_from_rho` leave room).
    The releases, their prices and when to stop may be chosen from earlier releases; only the cap
    must be fixed in advance (Feldman and Zrnic, Individual Privacy Accounting via a Renyi Filter,
    2021; Whitehouse, Ramdas, Rogers and Wu, Fully Adaptive Composition in Differential Privacy,
    2023). `spent` is a fact for the report; a guarantee that is quoted must use the cap.
    The relation is the semi-sensitive one of this module.

    Sums are exact (rational), so neither the order of charges nor their number matters.

    Edge cases: a refused charge changes nothing; once the cap is reached every charge is refused,
    however small; an infinite cap accepts every charge, including infinite ones.
    """

    def __init__(self, rho_budget: float) -> None:
        self._rho_budget = _validate.positive_or_infinite(rho_budget=rho_budget)
        self._spent = Fraction(0)  # finite charges only
        self._spent_infinity = False
        self._charges: list[Charge] = []

    @property
    def rho_budget(self) -> float:
        """The cap."""
        return self._rho_budget

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every accepted charge, in order."""
        return tuple(self._charges)

    @property
    def spent(self) -> float:
        """The sum of all charges, rounded up to a float."""
        if self._spent_infinity:
            return math.inf
        nearest = float(self._spent)
        return nearest if Fraction(nearest) >= self._spent else math.nextafter(nearest, math.inf)

    @property
    def remaining(self) -> float:
        """What is left under the cap, rounded down to a float; 0 once nothing can be charged."""
        if math.isinf(self._rho_budget):
            return math.inf
        left = Fraction(self._rho_budget) - self._spent
        if left < Fraction(_SMALLEST_CHARGE):
            return 0.0
        nearest = float(left)
        return nearest if Fraction(nearest) <= left else math.nextafter(nearest, 0.0)

    def can_afford(self, rho: float) -> bool:
        """Returns whether a charge of ``rho`` would be accepted now."""
        rho = _charge_size(rho)
        if math.isinf(self._rho_budget):
            return True
        if math.isinf(rho) or self.remaining == 0:
            return False
        cap = Fraction(self._rho_budget) * (1 + Fraction(FILTER_TOLERANCE))
        return self._spent + Fraction(rho) <= cap

    def charge(self, charge: Charge) -> None:
        """Records a charge. Call it before the release it pays for.

        Raises:
            BudgetExhaustedError: The sum would exceed the cap. Nothing is recorded, and the release
                must not be made.
        """
        if not self.can_afford(charge.rho):
            raise BudgetExhaustedError(
                f"{charge.label or charge.mechanism} asks for rho = {charge.rho!r} but only "
                f"rho = {self.remaining!r} of the budget of {self._rho_budget!r} is left; nothing "
                "was released"
            )
        if math.isinf(charge.rho):
            self._spent_infinity = True
        else:
            self._spent += Fraction(charge.rho)
        self._charges.append(charge)
