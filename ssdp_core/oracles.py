"""The paper's two optimisers, for several problems at once, on top of a gradient oracle.

An oracle answers "what is the gradient of each problem at these weights?". Answers may be wrong by
a bounded amount; both methods are robust to that, with the error forms below (Section 4 of the
paper). They see no data: all they do is post-processing of the oracle's answers.

* :class:`SubgradientSolver`, convex (kinks allowed). If every answer is within xi of the
  gradient in
  the sense |<g~ - g, w - w'>| <= xi on the ball, the average iterate has excess risk at most
  R G'/sqrt(q) + xi, where G' = G + l2 R bounds the subgradients of the regularised objective.
  Proof: sum_t <g_t, w_t - w*> <= R^2/(2 s) + s q G'^2/2 for steps of size s from 0; take s = R/(G'
  sqrt(q)), divide by q and use convexity. (If answers are larger than G' the second term grows
  accordingly.)

* :class:`InexactGradientSolver`, strongly convex and smooth. An answer within xi in l2 norm is a
  (upsilon, 2 lambda, mu/2) inexact oracle with upsilon = xi^2 (1/mu + 1/(2 lambda)) (Devolder
  2013). Projected steps of size 1/L~, L~ = 2 lambda, satisfy
      F(w_{t+1}) - F* <= (L~ - mu~)/2 |w_t - w*|^2 - L~/2 |w_{t+1} - w*|^2 + upsilon,
  so averaging with weights (1 - mu~/L~)^-t telescopes to
      F(average) - F* <= L~ R0^2/2 exp(-q mu~/L~) + upsilon,    mu~ = mu/2, R0 = |w_0 - w*|.

All problems move in step: one round asks about all of them, so q rounds cost q passes, not m*q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


class Solver(Protocol):
    """An optimiser that can stop after any round and go on later from its state."""

    problems: Sequence[LinearErm]
    num_steps: int
    round: int

    def points(self) -> list[Float64]:
        """Where the next gradients are needed, one point per problem."""

    def advance(self, gradients: Sequence[Float64]) -> None:
        """Takes one step with the gradients at :meth:`points`."""

    def solutions(self) -> list[Float64]:
        """The answer so far; the answer, once ``round`` has reached ``num_steps``."""

    def state(self) -> dict[str, Float64]:
        """Everything that changes, as arrays by name."""

    def restore(self, state: Mapping[str, Float64]) -> None:
        """Goes back to a saved :meth:`state`."""


class _AveragingSolver:
    """What both methods share: iterates, their running average, and saving both."""

    def __init__(self, problems: Sequence[LinearErm], num_steps: int) -> None:
        self.problems = problems
        self.num_steps = _validate.integer_at_least(1, num_steps=num_steps)
        self.round = 0
        self._weights = [np.zeros(problem.num_weights) for problem in problems]
        self._averages = [np.zeros(problem.num_weights) for problem in problems]

    def points(self) -> list[Float64]:
        """The current iterates."""
        return self._weights

    def solutions(self) -> list[Float64]:
        """The averages."""
        return self._averages

    def state(self) -> dict[str, Float64]:
        """Round number, iterates and averages."""
        saved = {"round": np.array([float(self.round)])}
        for j in range(len(self.problems)):
            saved[f"weights_{j}"] = self._weights[j]
            saved[f"average_{j}"] = self._averages[j]
        return saved

    def restore(self, state: Mapping[str, Float64]) -> None:
        """Takes round number, iterates and averages from a saved state."""
        self.round = int(state["round"][0])
        for j in range(len(self.problems)):
            self._weights[j] = np.array(state[f"weights_{j}"])
            self._averages[j] = np.array(state[f"average_{j}"])


class SubgradientSolver(_AveragingSolver):
    """Averaged projected subgradient descent from 0, for convex problems."""

    def __init__(self, problems: Sequence[LinearErm], *, num_steps: int) -> None:
        super().__init__(problems, num_steps)
        self._steps = []
        for erm in problems:
            radius = erm.problem.radius
            bound = erm.lipschitz + erm.problem.l2 * radius
            self._steps.append(radius / (bound * math.sqrt(num_steps)))

    def advance(self, gradients: Sequence[Float64]) -> None:
        """Averages the point the gradients belong to, then steps and projects."""
        for j, erm in enumerate(self.problems):
            self._averages[j] = self._averages[j] + self._weights[j] / self.num_steps
            self._weights[j] = erm.project(self._weights[j] - self._steps[j] * gradients[j])
        self.round += 1


class InexactGradientSolver(_AveragingSolver):
    """Projected steps of size 1/(2 lambda) with geometric averaging, from 0.

    Args:
        problems: strongly convex (l2 > 0) and smooth problems.
        num_rows: n, for the paper's number of steps.
        num_steps: q; by default the largest of the problems' own rules.
    """

    def __init__(
        self, problems: Sequence[LinearErm], *, num_rows: int, num_steps: int | None = None
    ) -> None:
        self._smoothness = [_smoothness(erm) for erm in problems]
        if num_steps is None:
            num_steps = max(
                strongly_convex_num_steps(
                    num_rows=num_rows,
                    smoothness=smoothness,
                    strong_convexity=erm.strong_convexity,
                    radius=erm.problem.radius,
                )
                for erm, smoothness in zip(problems, self._smoothness, strict=True)
            )
        super().__init__(problems, num_steps)
        self._ratios = [
            1.0 - (erm.strong_convexity / 2.0) / (2.0 * smoothness)
            for erm, smoothness in zip(problems, self._smoothness, strict=True)
        ]

    def advance(self, gradients: Sequence[Float64]) -> None:
        """Steps, projects, then averages the new point."""
        self.round += 1
        for j, erm in enumerate(self.problems):
            step = 1.0 / (2.0 * self._smoothness[j])
            self._weights[j] = erm.project(self._weights[j] - step * gradients[j])
            # The average of w_1..w_t with weights r^-s moves by the share r^-t / sum_s r^-s, which
            # is 1 / (1 + r + ... + r^(t-1)): no growing numbers.
            ratio = self._ratios[j]
            inverse_share = (1.0 - ratio**self.round) / (1.0 - ratio)
            self._averages[j] = (
                self._averages[j] + (self._weights[j] - self._averages[j]) / inverse_share
            )


def run_solver(
    solver: Solver, oracle: GradientOracle, progress: Progress | None = None
) -> list[Float64]:
    """Runs a solver to its end; returns one weight vector per problem."""
    while solver.round < solver.num_steps:
        solver.advance(oracle.gradients(solver.problems, solver.points()))
        if progress is not None:
            progress(solver.round, solver.num_steps)
    return solver.solutions()


def projected_subgradient(
    problems: Sequence[LinearErm],
    oracle: GradientOracle,
    *,
    num_steps: int,
    progress: Progress | None = None,
) -> list[Float64]:
    """Runs :class:`SubgradientSolver`."""
    return run_solver(SubgradientSolver(problems, num_steps=num_steps), oracle, progress)


def inexact_gradient_method(
    problems: Sequence[LinearErm],
    oracle: GradientOracle,
    *,
    num_rows: int,
    num_steps: int | None = None,
    progress: Progress | None = None,
) -> list[Float64]:
    """Runs :class:`InexactGradientSolver`."""
    solver = InexactGradientSolver(problems, num_rows=num_rows, num_steps=num_steps)
    return run_solver(solver, oracle, progress)


def _smoothness(erm: LinearErm) -> float:
    if erm.smoothness is None or erm.strong_convexity <= 0.0:
        raise ValueError(
            f"problem {erm.problem.name!r} must be smooth and have l2 > 0 for this method; use "
            "projected_subgradient for losses with kinks or without regulariser"
        )
    return erm.smoothness
