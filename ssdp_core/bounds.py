"""The theorems' error bounds as numbers: upper bounds, scaling laws and lower bounds.

From Ghazi et al., On Convex Optimization with Semi-Sensitive Features, COLT 2024, with the
constants that the proofs give. Notation: n rows (``num_rows``), k values of the private part
(``num_codes``), m problems (``num_problems``), losses that are G-Lipschitz (``lipschitz``) on a
domain inside the ball of radius R (``radius``), perhaps mu-strongly convex (``strong_convexity``)
and lambda-smooth (``smoothness``). alpha (``answer_error``) is the L2 error of the answers to
queries grad / G, which have norm at most 1. Excess means empirical risk above the optimum.
"""

from __future__ import annotations

import math

from ssdp_core import _validate

# --- upper bounds


def answer_error_bound(*, eta: float) -> float:
    """Returns alpha = 18 eta, the error of every answer with the paper's parameters.

    A query is answered when its noisy gap is below a noisy threshold 16 eta; both noises are at
    most eta with the probability for which eta was chosen.
    """
    return 18 * _validate.positive(eta=eta)


def convex_num_steps(*, num_rows: int) -> int:
    """Returns q = n^2, the paper's number of gradient queries per convex problem."""
    return _validate.integer_at_least(1, num_rows=num_rows) ** 2


def convex_excess_bound(
    *,
    lipschitz: float,
    radius: float,
    num_steps: int,
    answer_error: float,
    failure_probability: float = 0.0,
) -> float:
    """Returns a bound on the expected excess of projected subgradient descent with averaging.

    R G / sqrt(q) + 2 R G alpha + 2 R G beta, for q steps of size R / (G sqrt(q)) from 0 (which must
    lie in the domain). The answers g' are averages of true gradients over beliefs, so their norm is
    at most G and the textbook sum of <g'_t, w_t - w*> / q is at most R G / sqrt(q). Two points of
    the domain are at most 2 R apart, so replacing g' by the true gradient costs at most 2 R G alpha
    (the paper's xi). For the same reason the excess is at most 2 R G in the failing case, of
    probability beta; the paper writes R G, which holds for the answer 0 but not for every point.
    """
    scale = _validate.positive(lipschitz=lipschitz) * _validate.positive(radius=radius)
    num_steps = _validate.integer_at_least(1, num_steps=num_steps)
    answer_error = _validate.non_negative(answer_error=answer_error)
    failure_probability = _validate.non_negative(failure_probability=failure_probability)
    return scale * (1 / math.sqrt(num_steps) + 2 * answer_error + 2 * failure_probability)


def _check_curvature(strong_convexity: float, smoothness: float) -> tuple[float, float]:
    strong_convexity = _validate.positive(strong_convexity=strong_convexity)
    smoothness = _validate.positive(smoothness=smoothness)
    if smoothness < strong_convexity:
        raise ValueError(
            f"smoothness must be at least strong_convexity = {strong_convexity!r}, "
            f"got {smoothness!r}"
        )
    return strong_convexity, smoothness


def strongly_convex_radius(*, lipschitz: float, strong_convexity: float) -> float:
    """Returns G / mu, a bound on the distance of any point of the domain to the optimum w*.

    mu |w - w*|^2 <= <grad(w) - grad(w*), w - w*> <= <grad(w), w - w*> <= G |w - w*|.
    """
    lipschitz = _validate.positive(lipschitz=lipschitz)
    return lipschitz / _validate.positive(strong_convexity=strong_convexity)


def strongly_convex_num_steps(
    *, num_rows: int, strong_convexity: float, smoothness: float, radius: float
) -> int:
    """Returns q = ceil(40 (lambda / mu) ln(lambda R^2 n)), at least 1.

    The paper's text divides by n inside the logarithm; its proof needs the product. Then the
    optimisation error lambda R^2 exp(-q mu / (4 lambda)) is at most 1 / n: with x = lambda R^2 n it
    is at most x^(-9) / n for x >= 1, and x / n for x < 1, where one step is enough.
    """
    num_rows = _validate.integer_at_least(1, num_rows=num_rows)
    strong_convexity, smoothness = _check_curvature(strong_convexity, smoothness)
    radius = _validate.positive(radius=radius)
    logarithm = math.log(smoothness) + 2 * math.log(radius) + math.log(num_rows)
    return max(1, math.ceil(40 * smoothness / strong_convexity * logarithm))


def inexact_oracle_error(
    *, gradient_error: float, strong_convexity: float, smoothness: float
) -> float:
    """Returns upsilon = xi^2 (1 / mu + 1 / (2 lambda)) for gradients with L2 error xi.

    With it, the gradients form an (upsilon, 2 lambda, mu / 2)-inexact oracle (Devolder, Glineur and
    Nesterov, 2013, Section 2.3): take F'(w) = F(w) - xi^2 / mu and complete squares.
    """
    gradient_error = _validate.non_negative(gradient_error=gradient_error)
    strong_convexity, smoothness = _check_curvature(strong_convexity, smoothness)
    return gradient_error**2 * (1 / strong_convexity + 1 / (2 * smoothness))


def strongly_convex_excess_bound(
    *,
    lipschitz: float,
    strong_convexity: float,
    smoothness: float,
    radius: float,
    num_steps: int,
    answer_error: float,
    failure_probability: float = 0.0,
) -> float:
    """Returns a bound on the expected excess of the gradient method with an inexact oracle.

    lambda R^2 exp(-q mu / (4 lambda)) + upsilon + beta G^2 / (2 mu), where R bounds the distance of
    the start to the optimum and upsilon is `inexact_oracle_error` at xi = G alpha.

    The method: w_{t+1} minimises <g'_t, w> + (l / 2) |w - w_t|^2 over the domain, where l = 2
    lambda, u = mu / 2 and theta = 1 - u / l; the output is the average of w_1..w_q with weights
    proportional to theta^(q - t). The oracle inequalities give, for r_t = |w_t - w*|,

        F(w_{t+1}) - F(w*) <= (l / 2) (theta r_t^2 - r_{t+1}^2) + upsilon,

    the weighted sum telescopes to (l / 2) theta^q r_0^2, and the weights sum to at least 1; so the
    constant hidden in the paper's O() is 1. In the failing case the excess is at most
    |grad|^2 / (2 mu) <= G^2 / (2 mu) by strong convexity.
    """
    lipschitz = _validate.positive(lipschitz=lipschitz)
    strong_convexity, smoothness = _check_curvature(strong_convexity, smoothness)
    radius = _validate.positive(radius=radius)
    num_steps = _validate.integer_at_least(1, num_steps=num_steps)
    answer_error = _validate.non_negative(answer_error=answer_error)
    failure_probability = _validate.non_negative(failure_probability=failure_probability)
    optimisation = smoothness * radius**2
    optimisation *= math.exp(-num_steps * strong_convexity / (4 * smoothness))
    oracle = inexact_oracle_error(
        gradient_error=lipschitz * answer_error,
        strong_convexity=strong_convexity,
        smoothness=smoothness,
    )
    return optimisation + oracle + failure_probability * lipschitz**2 / (2 * strong_convexity)


# --- scaling laws: the theorems' O() expressions with constant 1


def _check_rate(
    num_rows: int, num_codes: int, num_problems: int, epsilon: float, delta: float
) -> tuple[float, float]:
    """Returns ln k ln(1/delta) and ln(m n ln k sqrt(ln(1/delta)) / epsilon)."""
    num_rows = _validate.integer_at_least(1, num_rows=num_rows)
    log_k = math.log(_validate.integer_at_least(2, num_codes=num_codes))
    num_problems = _validate.integer_at_least(1, num_problems=num_problems)
    epsilon = _validate.positive(epsilon=epsilon)
    log_inverse_delta = -math.log(_validate.open_interval(0, 0.5, delta=delta))
    logs = math.log(num_problems) + math.log(num_rows) + math.log(log_k)
    return log_k * log_inverse_delta, logs + math.log(math.sqrt(log_inverse_delta) / epsilon)


def convex_rate(
    *,
    num_rows: int,
    num_codes: int,
    num_problems: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    radius: float,
) -> float:
    """Returns the convex theorem's rate, without its constant.

    R G (ln k ln(1/delta))^(1/4) sqrt(ln(m n) + ln ln k + ln(sqrt(ln(1/delta)) / epsilon))
    / sqrt(epsilon n). The sum of logarithms is taken to be at least 1.
    """
    product, logs = _check_rate(num_rows, num_codes, num_problems, epsilon, delta)
    scale = _validate.positive(lipschitz=lipschitz) * _validate.positive(radius=radius)
    return scale * math.sqrt(math.sqrt(product)) * math.sqrt(max(1.0, logs) / (epsilon * num_rows))


def strongly_convex_rate(
    *,
    num_rows: int,
    num_codes: int,
    num_problems: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    strong_convexity: float,
    smoothness: float,
) -> float:
    """Returns the strongly convex theorem's rate, without its constant.

    (G^2 / mu) sqrt(ln k ln(1/delta)) (ln(m n lambda / mu) + ln ln(G / mu) + ln ln k +
    ln(sqrt(ln(1/delta)) / epsilon)) / (epsilon n). The term ln ln(G / mu) is dropped where it is
    negative or undefined (G <= e mu), and the sum of logarithms is taken to be at least 1.
    """
    product, logs = _check_rate(num_rows, num_codes, num_problems, epsilon, delta)
    strong_convexity, smoothness = _check_curvature(strong_convexity, smoothness)
    lipschitz = _validate.positive(lipschitz=lipschitz)
    logs += math.log(smoothness / strong_convexity)
    logs += math.log(max(1.0, math.log(lipschitz / strong_convexity)))
    return (
        lipschitz**2 / strong_convexity * math.sqrt(product) * max(1.0, logs) / (epsilon * num_rows)
    )


# --- lower bounds


def selection_replication(*, num_rows: int, num_codes: int, epsilon: float) -> int:
    """Returns r, how many rows share one private code in the lower-bound instances.

    r = min(floor(ln k / epsilon), n). For n < floor(ln k / epsilon) the paper lowers k until the
    quotient fits. We keep k and take r = n, one group: group privacy holds for every r, the bound
    is larger when delta is small, and it exists for n epsilon < ln 2 too, where no k' >= 2 fits.
    """
    num_rows = _validate.integer_at_least(1, num_rows=num_rows)
    log_k = math.log(_validate.integer_at_least(2, num_codes=num_codes))
    epsilon = _validate.positive(epsilon=epsilon)
    if epsilon > log_k:
        raise ValueError(
            f"epsilon must be at most ln(num_codes) = {log_k:.6g} for the lower bounds, "
            f"got {epsilon!r}"
        )
    return max(1, math.floor(min(log_k / epsilon, float(num_rows))))


def selection_success_bound(
    *, num_codes: int, epsilon: float, delta: float, replication: int
) -> float:
    """Returns p, above the chance that private output reveals the code shared by r rows.

    p = e^(r eps) / (e^(r eps) + k - 1) + delta', delta' = delta (e^(r eps) - 1) / (e^eps - 1): the
    chance of guessing a uniform code out of k under (r eps, delta')-DP, which r rows inherit from
    (eps, delta)-DP by group privacy.
    """
    num_codes = _validate.integer_at_least(2, num_codes=num_codes)
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.non_negative(delta=delta)
    replication = _validate.integer_at_least(1, replication=replication)
    group_epsilon = replication * epsilon
    if group_epsilon > 700:  # e^(r eps) is near the largest float: nothing is hidden any more
        return 1.0
    guess = 1 / (1 + (num_codes - 1) * math.exp(-group_epsilon))
    return min(1.0, guess + delta * math.expm1(group_epsilon) / math.expm1(epsilon))


def _lower_bound_shape(
    num_rows: int, num_codes: int, epsilon: float, delta: float
) -> tuple[int, float, float]:
    """Returns the number of groups n', the share of rows that are in a group, and p."""
    replication = selection_replication(num_rows=num_rows, num_codes=num_codes, epsilon=epsilon)
    delta = _validate.non_negative(delta=delta)
    if delta > 0.4 * epsilon / num_codes:
        raise ValueError(
            f"delta must be at most 0.4 epsilon / num_codes = {0.4 * epsilon / num_codes:.6g} for "
            f"the lower bounds, got {delta!r}"
        )
    num_groups = num_rows // replication
    success = selection_success_bound(
        num_codes=num_codes, epsilon=epsilon, delta=delta, replication=replication
    )
    return num_groups, num_groups * replication / num_rows, success


def convex_lower_bound(
    *,
    num_rows: int,
    num_codes: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    radius: float,
) -> float:
    """Returns an expected excess that no (epsilon, delta) semi-sensitive DP algorithm can beat.

    (R G / sqrt(n')) (1 - sqrt(1/2 + p/2)) (n' r / n), on the linear-loss instance of
    `lower_bounds.selection_instance`: dimension d = n' k, domain the ball of radius R. The rows
    left over when r does not divide n carry a constant loss, which dilutes the mean: the last
    factor, at least 1/2. Needs epsilon <= ln k and delta <= 0.4 epsilon / k, which make p <= 0.9.
    """
    num_groups, share, success = _lower_bound_shape(num_rows, num_codes, epsilon, delta)
    scale = _validate.positive(lipschitz=lipschitz) * _validate.positive(radius=radius)
    return scale / math.sqrt(num_groups) * (1 - math.sqrt(0.5 + 0.5 * success)) * share


def strongly_convex_lower_bound(
    *,
    num_rows: int,
    num_codes: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    strong_convexity: float,
) -> float:
    """Returns an expected excess that no (epsilon, delta) semi-sensitive DP algorithm can beat.

    mu R^2 / (4 n') (1 - p) (n' r / n)^2 with R = G / (2 mu), on the squared-loss instance of
    `lower_bounds.strongly_convex_selection_instance` (mu-strongly convex, mu-smooth and G-Lipschitz
    on the ball of radius R). A constant loss would not be strongly convex, so left-over rows carry
    the loss (mu / 2) |w|^2; this shrinks the optimum by n' r / n, hence the square. Conditions as
    for `convex_lower_bound`.
    """
    num_groups, share, success = _lower_bound_shape(num_rows, num_codes, epsilon, delta)
    strong_convexity = _validate.positive(strong_convexity=strong_convexity)
    radius = _validate.positive(lipschitz=lipschitz) / (2 * strong_convexity)
    return strong_convexity * radius**2 / (4 * num_groups) * (1 - success) * share**2
