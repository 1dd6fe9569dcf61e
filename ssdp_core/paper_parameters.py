"""Parameters of Private Vector Multiplicative Weights (PVMW), by the paper's formulas.

The paper is Ghazi et al., On Convex Optimization with Semi-Sensitive Features, COLT 2024; PVMW is
its Algorithm 2. Privacy depends on rho, zeta, L and the sensitivity only; eta, tau, c and L may be
set by hand as long as they are not tuned on private data. Accuracy is proved for the choice of
`paper_parameters`, whose constants are very cautious, and for that of `solved_parameters`, which
solves the inequalities that the proof needs.
"""

from __future__ import annotations

import dataclasses
import math

from scipy import special

from ssdp_core import _validate
from ssdp_core.accounting import gaussian_rho, pure_dp_rho

_TRUNCATION = 3.0  # c
_BUDGET_SPLIT = 0.5  # zeta
_THRESHOLD_IN_ETA = 16.0  # tau / eta
_VACUOUS_ETA = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateCharge:
    """What one belief update costs in zCDP, by step.

    Attributes:
        above_threshold: The AboveThreshold instance that asked for the update.
        norm: The Laplace estimate of the gap's norm.
        measurement: The Gaussian measurement of the query.
    """

    above_threshold: float
    norm: float
    measurement: float

    @property
    def total(self) -> float:
        """The sum of the three."""
        return self.above_threshold + self.norm + self.measurement


@dataclasses.dataclass(frozen=True, kw_only=True)
class PvmwParameters:
    """Everything PVMW needs to know before it sees data, with the noise scales that follow.

    Guarantee: a run that draws noise at these scales and starts at most ``max_updates``
    AboveThreshold instances, each followed by at most one norm and one measurement, is rho-zCDP for
    datasets that differ in the sensitive columns of one row, provided that every query has norm at
    most 1 (so that its mean over n rows has L2 sensitivity 2/n). ``rho = inf`` switches noise off.

    Attributes:
        num_rows: n.
        rho: The zCDP budget.
        tau: The threshold above which the beliefs are updated.
        max_updates: L_max. The printed loop counts from 1 and stops with FAIL when the count
            reaches L_max, that is after L_max - 1 updates; we follow it. (The accuracy proof may
            need an answer after L_max - 1 updates; a max_updates larger by one gives it, at no cost
            in the privacy proof, which pays for L_max instances.)
        eta: The step size of the multiplicative update.
        truncation: c, where the update's exponent (before eta) is truncated.
        zeta: The share of the budget for AboveThreshold and the norm; the rest buys measurements.
    """

    num_rows: int
    rho: float
    tau: float
    max_updates: int
    eta: float
    truncation: float = _TRUNCATION
    zeta: float = _BUDGET_SPLIT

    def __post_init__(self) -> None:
        _validate.integer_at_least(1, num_rows=self.num_rows)
        _validate.positive_or_infinite(rho=self.rho)
        _validate.positive(tau=self.tau)
        _validate.integer_at_least(1, max_updates=self.max_updates)
        _validate.positive(eta=self.eta)
        _validate.positive(truncation=self.truncation)
        _validate.open_interval(0, 1, zeta=self.zeta)

    @property
    def sigma(self) -> float:
        """The paper's Gaussian noise multiplier sigma = sqrt(2 L / ((1 - zeta) rho))."""
        return math.sqrt(2 * self.max_updates / ((1 - self.zeta) * self.rho))

    @property
    def epsilon_prime(self) -> float:
        """The epsilon of AboveThreshold and of the norm estimate, eps' = sqrt(zeta rho / L)."""
        return math.sqrt(self.zeta * self.rho / self.max_updates)

    @property
    def threshold_noise_scale(self) -> float:
        """The Laplace scale of chi, 4 / (eps' n)."""
        return 4 / (self.epsilon_prime * self.num_rows)

    @property
    def query_noise_scale(self) -> float:
        """The Laplace scale of nu, 8 / (eps' n)."""
        return 8 / (self.epsilon_prime * self.num_rows)

    @property
    def norm_noise_scale(self) -> float:
        """The Laplace scale of xi, 2 / (eps' n)."""
        return 2 / (self.epsilon_prime * self.num_rows)

    @property
    def measurement_stddev(self) -> float:
        """The Gaussian standard deviation of each coordinate of z, 2 sigma / n."""
        return 2 * self.sigma / self.num_rows

    @property
    def paper_charge_per_update(self) -> UpdateCharge:
        """The paper's bill for one update: eps'^2/2, eps'^2/2 and 2/sigma^2, in total rho / L.

        Each part is rounded up by a few units in the last place.
        """
        pure = pure_dp_rho(self.epsilon_prime)
        return UpdateCharge(
            above_threshold=pure, norm=pure, measurement=gaussian_rho(2, self.sigma)
        )

    @property
    def tight_measurement_charge(self) -> float:
        """What the measurement really costs, 1 / (2 sigma^2): a quarter of the paper's bill.

        The noise has standard deviation 2 sigma / n on a query of sensitivity 2 / n, so the noise
        multiplier is sigma; the bill 2 / sigma^2 counts the sensitivity's factor of 2 once more.
        """
        return gaussian_rho(1, self.sigma)

    @property
    def is_vacuous(self) -> bool:
        """Whether the accuracy guarantee says nothing: eta > 0.1, as the paper has it.

        Answering 0 to everything has error at most 1. The proved error 18 eta passes 1 from
        eta = 1/18 on, so a guarantee that is not vacuous by this test may still be useless.
        """
        return self.eta > _VACUOUS_ETA


def paper_rho(epsilon: float, delta: float) -> float:
    """Returns the paper's zCDP budget for (epsilon, delta)-DP, 0.1 epsilon^2 / ln(1/delta).

    Two to five times less than `accounting.rho_from_epsilon` for usual values; for comparison.
    Valid for epsilon <= ln(1/delta), which is checked.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    log_inverse_delta = -math.log(_validate.open_interval(0, 0.5, delta=delta))
    if epsilon > log_inverse_delta:
        raise ValueError(
            f"epsilon must be at most ln(1/delta) = {log_inverse_delta:.6g}, got {epsilon!r}"
        )
    return 0.1 * epsilon * epsilon / log_inverse_delta


def _check_problem(
    num_rows: int, num_codes: int, rho: float, num_queries: float, beta: float
) -> None:
    _validate.integer_at_least(1, num_rows=num_rows)
    _validate.integer_at_least(2, num_codes=num_codes)
    _validate.positive(rho=rho)
    if _validate.positive(num_queries=num_queries) < 1:
        raise ValueError(f"num_queries must be at least 1, got {num_queries!r}")
    _validate.open_interval(0, 0.5, beta=beta)


def paper_eta(num_rows: int, num_codes: int, rho: float, num_queries: float, beta: float) -> float:
    """Returns the paper's eta, just above the fixed point of its definition.

    eta is to be the smallest number with

        eta > A sqrt(ln(B / eta)), A = 1000 (ln k / rho)^(1/4) / sqrt(n), B = n T ln k / (rho beta)

    (no number is: the inequality is strict, so we return the end of the interval, rounded up). The
    right side falls in eta, so the end is the only root. Squared, it reads v + ln v = ln(2 B^2/A^2)
    for v = 2 eta^2 / A^2, which is Wright's omega function. The root lies below B, so the logarithm
    there is positive.

    Args:
        num_rows: n.
        num_codes: k, the number of values of the private part, at least 2.
        rho: The zCDP budget, finite.
        num_queries: T, the number of queries; may be as large as m n^2, hence a float is fine.
        beta: The probability that the accuracy guarantee fails.
    """
    _check_problem(num_rows, num_codes, rho, num_queries, beta)
    log_k = math.log(num_codes)
    log_a = math.log(1000) + 0.25 * math.log(log_k / rho) - 0.5 * math.log(num_rows)
    log_b = math.log(num_rows) + math.log(num_queries) + math.log(log_k / rho) - math.log(beta)
    v = float(special.wrightomega(math.log(2) + 2 * log_b - 2 * log_a))
    return math.exp(log_a) * math.sqrt(v / 2) * (1 + 1e-12)


def _parameters(num_rows: int, num_codes: int, rho: float, eta: float) -> PvmwParameters:
    """Returns the paper's choice of everything else once eta is known."""
    return PvmwParameters(
        num_rows=num_rows,
        rho=rho,
        tau=_THRESHOLD_IN_ETA * eta,
        max_updates=1 + math.floor(math.log(num_codes) / eta**2),
        eta=eta,
    )


def paper_parameters(
    num_rows: int, num_codes: int, rho: float, num_queries: float, beta: float
) -> PvmwParameters:
    """Returns the parameters of the paper's accuracy proof; arguments as for `paper_eta`.

    zeta = 1/2, c = 3, tau = 16 eta, L = 1 + floor(ln k / eta^2). They are returned even where the
    guarantee is vacuous, which for ordinary privacy budgets means below some 1e11 rows.
    """
    eta = paper_eta(num_rows, num_codes, rho, num_queries, beta)
    return _parameters(num_rows, num_codes, rho, eta)


def proof_inequalities(
    parameters: PvmwParameters, *, num_queries: float, beta: float
) -> dict[str, tuple[float, float]]:
    """Returns, by name, the two sides (left, right) of each inequality the proof rests on.

    The accuracy proof goes through, with error tau + 2 eta and failure probability beta, when left
    <= right for all of them (and eta <= 1/c). N is the norm of f(p) - f(D) at an update, iota its
    noisy estimate, s = 2 sigma / n. Given the first three, N >= tau - 2 eta and |iota - N| <= eta.

    - ``threshold_noise``, ``query_noise``, ``norm_noise``: Laplace tails at most eta, with failure
      probabilities 0.1 beta over all draws each (the norm's with the scale that is drawn, 2/(eps'
      n), half of the printed one).
    - ``gaussian_direction``: the noise along f(p) - f(D) is at most eta N, 0.2 beta.
    - ``clipping_error``, ``clipping_probability``: the clipping lemma keeps both clipping errors
      below eta^2, 0.2 beta each. The paper applies the lemma to Z = v - f(p), but the update clips
      along Z / iota, and iota may be as small as tau - 3 eta. We apply it to Z / iota: its mean has
      norm N / iota <= 14/13 and its spread is s / iota, so the errors are at most
      2 iota exp(-0.1 iota^2 / s^2). ``clipping_spread`` makes that fall in iota, so that the
      smallest iota is the worst; it also gives the lemma's condition s / iota <= 1.
    - ``potential_drop``: each update lowers the potential by at least eta^2. The paper's condition
      N >= (2 c^2 + 7) eta is 25 eta for c = 3, while tau = 16 eta gives N >= 14 eta only. But its
      proof bounds iota by 2 N where N + eta is known: with N = x eta, the drop is at least
      (eta / iota) (N^2 - eta N - 2 eta^2) - c^2 eta^2 >= (x - 2 - c^2) eta^2, that is
      (tau / eta - 4 - c^2) eta^2: three times what is needed for tau = 16 eta and c = 3.
    """
    num_queries = _validate.positive(num_queries=num_queries)
    beta = _validate.open_interval(0, 0.5, beta=beta)
    eta, updates = parameters.eta, parameters.max_updates
    if parameters.truncation < _TRUNCATION:
        raise ValueError(
            f"truncation must be at least 3 for the clipping lemma, got {parameters.truncation!r}"
        )
    smallest_norm = parameters.tau - 3 * eta  # of iota
    if not smallest_norm > 0:
        raise ValueError(f"tau must be above 3 eta = {3 * eta:.6g}, got {parameters.tau!r}")
    stddev = parameters.measurement_stddev
    log_updates = math.log(updates / beta)
    ratio = math.inf if stddev == 0 else smallest_norm / stddev
    clipping = 2 * math.exp(-0.1 * ratio * ratio)
    return {
        "threshold_noise": (
            parameters.threshold_noise_scale * (math.log(20) + log_updates),
            eta,
        ),
        "query_noise": (
            parameters.query_noise_scale * (math.log(20 * num_queries) + log_updates),
            eta,
        ),
        "norm_noise": (parameters.norm_noise_scale * (math.log(20) + log_updates), eta),
        "gaussian_direction": (
            stddev * math.sqrt(2 * (math.log(10 * num_queries) + log_updates)),
            eta,
        ),
        "clipping_spread": (math.sqrt(5) * stddev, smallest_norm),
        "clipping_error": (smallest_norm * clipping, eta * eta),
        "clipping_probability": (clipping, 0.2 * beta / updates),
        "potential_drop": (1.0, parameters.tau / eta - 4 - parameters.truncation**2),
    }


def solved_eta(num_rows: int, num_codes: int, rho: float, num_queries: float, beta: float) -> float:
    """Returns the smallest eta (rounded up) for which all of `proof_inequalities` hold.

    The same guarantee as the paper's, some hundred times tighter than with its constant 1000.
    Arguments as for `paper_eta`. A larger eta means fewer updates, hence less noise, so the set of
    valid eta has no gaps.
    """
    _check_problem(num_rows, num_codes, rho, num_queries, beta)

    def holds(eta: float) -> bool:
        parameters = _parameters(num_rows, num_codes, rho, eta)
        sides = proof_inequalities(parameters, num_queries=num_queries, beta=beta).values()
        return all(left <= right for left, right in sides)

    high = 1.0
    while not holds(high):
        high *= 2
    while holds(high / 2):
        high /= 2
    low = high / 2
    # Invariant: the inequalities hold at high and fail at low. We return high.
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def solved_parameters(
    num_rows: int, num_codes: int, rho: float, num_queries: float, beta: float
) -> PvmwParameters:
    """Returns the parameters that belong to `solved_eta`, otherwise chosen as the paper does."""
    eta = solved_eta(num_rows, num_codes, rho, num_queries, beta)
    return _parameters(num_rows, num_codes, rho, eta)
