"""The paper's two optimisers, for several problems at once, on top of a gradient oracle.

An oracle answers "what is the gradient of each problem at these weights?". Answers may be wrong by
a bounded amount; both methods are robust to that, with the error forms below (Section 4 of the
paper). They see no data: all they do is post-processing of the oracle's answers.

* :func:`projected_subgradient`, convex (kinks allowed). If every answer is within xi of the
  gradient in
  the sense |<g~ - g, w - w'>| <= xi on the ball, the average iterate has excess risk at most
  R G'/sqrt(q) + xi, where G' = G + l2 R bounds the subgradients of the regularised objective.
  Proof: sum_t <g_t, w_t - w*> <= R^2/(2 s) + s q G'^2/2 for steps of size s from 0; take s = R/(G'
  sqrt(q)), divide by q and use convexity. (If answers are larger than G' the second term grows
  accordingly.)

* :func:`inexact_gradient_method`, strongly convex and smooth. An answer within xi in l2 norm is a
  (upsilon, 2 lambda, mu/2) inexact oracle with upsilon = xi^2 (1/mu + 1/(2 lambda)) (Devolder
  2013). Projected steps of size 1/L~, L~ = 2 lambda, satisfy
      F(w_{t+1}) - F* <= (L~ - mu~)/2 |w_t - w*|^2 - L~/2 |w_{t+1} - w*|^2 + upsilon,
  so averaging with weights (1 - mu~/L~)^-t telescopes to
      F(average) - F* <= L~ R0^2/2 exp(-q mu~/L~) + upsilon,    mu~ = mu/2, R0 = |w_0 - w*|.

All problems move in step: one round asks about all of them, so q rounds cost q passes, not m*q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.bounds import strongly_convex_num_steps
from ssdp_core.curator import Curator
from ssdp_core.engine import Engine
from ssdp_core.problems import LinearErm
from ssdp_core.pvmw import PrivateVectorAnswerer

Float64 = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called after every round with (rounds done, rounds in total)."""


class GradientOracle(Protocol):
    """Approximate gradients of several problems."""

    def gradients(self, problems: Sequence[LinearErm], weights: Sequence[Float64]) -> list[Float64]:
        """The gradient of every problem at its own weights, regulariser included."""


class BeliefGradients:
    """Gradients under the current beliefs: public, free, and as good as the beliefs are."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def gradients(self, problems: Sequence[LinearErm], weights: Sequence[Float64]) -> list[Float64]:
        """One public pass."""
        queries = [p.query(w) for p, w in zip(problems, weights, strict=True)]
        evaluations = self._engine.evaluate_public(queries)
        return [
            problem.gradient(
                w, result.lattice.to_float(result.belief_units) / self._engine.num_rows
            )
            for problem, w, result in zip(problems, weights, evaluations, strict=True)
        ]


class AnsweredGradients:
    """Gradients through Algorithm 2: f = gradient/G, answered online, scaled back."""

    def __init__(self, answerer: PrivateVectorAnswerer) -> None:
        self._answerer = answerer

    def gradients(self, problems: Sequence[LinearErm], weights: Sequence[Float64]) -> list[Float64]:
        """One batch of online queries."""
        queries = [p.query(w) for p, w in zip(problems, weights, strict=True)]
        answers = self._answerer.answer_all(queries)
        return [
            problem.gradient(w, answer.value)
            for problem, w, answer in zip(problems, weights, answers, strict=True)
        ]


class MeasuredGradients:
    """Gradients measured directly with Gaussian noise; with an unlimited budget, exactly.

    ``noise_stddev`` (of the mean of gradient/G, per coordinate) may be 0 only if the curator's
    budget is infinite, which marks the run as not private. This is the noise-off path of the tests.
    """

    def __init__(self, curator: Curator, noise_stddev: float) -> None:
        self._curator = curator
        self._noise_stddev = noise_stddev

    def gradients(self, problems: Sequence[LinearErm], weights: Sequence[Float64]) -> list[Float64]:
        """One measurement per problem, all from one pass."""
        questions = self._curator.pose([p.query(w) for p, w in zip(problems, weights, strict=True)])
        return [
            problem.gradient(
                w,
                self._curator.measure(
                    question,
                    noise_stddev=self._noise_stddev,
                    sensitivity=question.reported_sensitivity,
                    label=problem.problem.name,
                ),
            )
            for problem, w, question in zip(problems, weights, questions, strict=True)
        ]


def projected_subgradient(
    problems: Sequence[LinearErm],
    oracle: GradientOracle,
    *,
    num_steps: int,
    progress: Progress | None = None,
) -> list[Float64]:
    """Averaged projected subgradient descent from 0; returns one weight vector per problem."""
    _validate.integer_at_least(1, num_steps=num_steps)
    weights = [np.zeros(problem.num_weights) for problem in problems]
    averages = [np.zeros(problem.num_weights) for problem in problems]
    steps = []
    for erm in problems:
        radius = erm.problem.radius
        bound = erm.lipschitz + erm.problem.l2 * radius
        steps.append(radius / (bound * math.sqrt(num_steps)))
    for round_number in range(num_steps):
        gradients = oracle.gradients(problems, weights)
        for j, erm in enumerate(problems):
            averages[j] += weights[j] / num_steps
            weights[j] = erm.project(weights[j] - steps[j] * gradients[j])
        if progress is not None:
            progress(round_number + 1, num_steps)
    return averages


def inexact_gradient_method(
    problems: Sequence[LinearErm],
    oracle: GradientOracle,
    *,
    num_rows: int,
    num_steps: int | None = None,
    progress: Progress | None = None,
) -> list[Float64]:
    """Projected gradient steps of size 1/(2 lambda) with geometric averaging, from 0.

    Args:
        problems: strongly convex (l2 > 0) and smooth problems.
        oracle: gradients within a bounded l2 error.
        num_rows: n, for the paper's number of steps.
        num_steps: q; by default the largest of the problems' own rules.
        progress: called after every round.
    """
    smoothness = [_smoothness(erm) for erm in problems]
    if num_steps is None:
        num_steps = max(
            strongly_convex_num_steps(
                num_rows=num_rows,
                smoothness=lam,
                strong_convexity=erm.strong_convexity,
                radius=erm.problem.radius,
            )
            for erm, lam in zip(problems, smoothness, strict=True)
        )
    _validate.integer_at_least(1, num_steps=num_steps)
    weights = [np.zeros(problem.num_weights) for problem in problems]
    averages = [np.zeros(problem.num_weights) for problem in problems]
    # The average over t of w_t with weights r^-t is a_t = a_{t-1} + share_t (w_t - a_{t-1}) with
    # share_t = r^-t / sum_{s<=t} r^-s = 1 / (1 + r + ... + r^(t-1)): no growing numbers.
    ratios = [
        1.0 - (erm.strong_convexity / 2.0) / (2.0 * lam)
        for erm, lam in zip(problems, smoothness, strict=True)
    ]
    inverse_shares = [0.0 for _ in problems]
    for round_number in range(num_steps):
        gradients = oracle.gradients(problems, weights)
        for j, erm in enumerate(problems):
            weights[j] = erm.project(weights[j] - gradients[j] / (2.0 * smoothness[j]))
            inverse_shares[j] = 1.0 + ratios[j] * inverse_shares[j]
            averages[j] += (weights[j] - averages[j]) / inverse_shares[j]
        if progress is not None:
            progress(round_number + 1, num_steps)
    return averages


def _smoothness(erm: LinearErm) -> float:
    if erm.smoothness is None or erm.strong_convexity <= 0.0:
        raise ValueError(
            f"problem {erm.problem.name!r} must be smooth and have l2 > 0 for this method; use "
            "projected_subgradient for losses with kinks or without regulariser"
        )
    return erm.smoothness
