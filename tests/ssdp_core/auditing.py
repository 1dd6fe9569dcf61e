"""Statistical lower bounds on privacy loss, from runs of a mechanism on two neighbours.

A mechanism M is (epsilon, delta)-DP if, for neighbours D and D' and every event E,

    P(M(D) in E) <= exp(epsilon) P(M(D') in E) + delta,

and the same with D and D' swapped. An audit runs M many times on both, maps every output to a
number, and looks at the events "the number is at least c" and "at most c". The event is chosen on
one half of the runs. On the other half, one-sided Clopper-Pearson bounds (lower for D, upper for
D') hold together with the stated confidence, and give

    epsilon >= ln((lower - delta) / upper)      or      delta >= lower - exp(epsilon) upper.

Since the event does not depend on the second half, the confidence needs no correction for the
search. If the bound exceeds the claim, the claim is wrong (up to the confidence); if not, nothing
is proved, which is why the tests also show what the same audit catches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.999
"""Probability that a bound holds; a true claim is contradicted in at most one seed of 1,000."""

_MAX_CANDIDATES = 400

Floats = npt.NDArray[np.float64]


def clopper_pearson_lower(successes, trials: int, failure: float):
    """A bound that is above the true probability with probability at most ``failure``."""
    successes = np.asarray(successes)
    bound = stats.beta.ppf(failure, np.maximum(successes, 1), trials - successes + 1)
    return np.where(successes == 0, 0.0, bound)


def clopper_pearson_upper(successes, trials: int, failure: float):
    """A bound that is below the true probability with probability at most ``failure``."""
    successes = np.asarray(successes)
    bound = stats.beta.ppf(1 - failure, successes + 1, np.maximum(trials - successes, 1))
    return np.where(successes == trials, 1.0, bound)


@dataclass(frozen=True, kw_only=True)
class Event:
    """The outputs at least (or at most) ``cut``; likelier under D' than under D if ``swapped``."""

    cut: float
    at_least: bool
    swapped: bool


def _counts(sample: Floats, cuts, at_least: bool):
    ordered = np.sort(sample)
    if at_least:
        return ordered.size - np.searchsorted(ordered, cuts, side="left")
    return np.searchsorted(ordered, cuts, side="right")


Score = Callable[[Floats, Floats], Floats]


def _scores(first: Floats, second: Floats, cuts, event: Event, score: Score, failure: float):
    if event.swapped:
        first, second = second, first
    likely = clopper_pearson_lower(_counts(first, cuts, event.at_least), first.size, failure)
    unlikely = clopper_pearson_upper(_counts(second, cuts, event.at_least), second.size, failure)
    return score(likely, unlikely)


def _lower_bound(first: Floats, second: Floats, score: Score, confidence: float) -> float:
    failure = (1 - confidence) / 2  # one half for each of the two probabilities
    half = first.size // 2, second.size // 2
    pooled = np.sort(np.concatenate([first[: half[0]], second[: half[1]]]))
    every = -(-pooled.size // _MAX_CANDIDATES)
    cuts = np.unique(pooled[::every])
    best, best_score = None, -math.inf
    for at_least in (True, False):
        for swapped in (True, False):
            event = Event(cut=math.nan, at_least=at_least, swapped=swapped)
            scores = _scores(first[: half[0]], second[: half[1]], cuts, event, score, failure)
            winner = int(np.argmax(scores))
            if scores[winner] > best_score:
                best_score = float(scores[winner])
                best = Event(cut=float(cuts[winner]), at_least=at_least, swapped=swapped)
    if best is None:
        return 0.0
    rest = _scores(first[half[0] :], second[half[1] :], np.array([best.cut]), best, score, failure)
    return max(0.0, float(rest[0]))


def epsilon_lower_bound(
    first: Floats, second: Floats, *, delta: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """With probability ``confidence``, no smaller epsilon is possible for the given delta.

    Args:
        first: one number for every run on D.
        second: one number for every run on D'.
        delta: the delta that the mechanism claims.
        confidence: of the bound.
    """

    def score(likely: Floats, unlikely: Floats) -> Floats:
        return np.log(np.maximum(likely - delta, 1e-300)) - np.log(unlikely)

    return _lower_bound(first, second, score, confidence)


def delta_lower_bound(
    first: Floats, second: Floats, *, epsilon: float, confidence: float = CONFIDENCE
) -> float:
    """With probability ``confidence``, no smaller delta is possible for the given epsilon."""

    def score(likely: Floats, unlikely: Floats) -> Floats:
        return likely - math.exp(epsilon) * unlikely

    return _lower_bound(first, second, score, confidence)


def gaussian_delta(rho: float, epsilon: float) -> float:
    """The exact delta of the Gaussian mechanism that is (tightly) rho-zCDP.

    Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", 2018, Theorem 8,
    with mu = sensitivity / stddev = sqrt(2 rho). The discrete Gaussian agrees with it far beyond
    what an audit resolves, when its stddev is many lattice steps.
    """
    mu = math.sqrt(2 * rho)
    return float(
        stats.norm.cdf(mu / 2 - epsilon / mu)
        - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    )
