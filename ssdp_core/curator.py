"""The curator: the only code that opens exact sums, and where all noise is added.

Everything outside asks the curator :class:`Question` objects and gets noisy answers back. Three
primitives release something, each charged to the budget filter and recorded in the transcript
before its value is returned:

* :meth:`Curator.ask`      AboveThreshold on |f(D) - f(p)|, with the free gap;
* :meth:`Curator.norm`     |f(D) - f(p)| with Laplace noise;
* :meth:`Curator.measure`  f(D) with Gaussian noise.

Guarantee:
    The whole transcript is rho-zCDP, rho = the filter's cap, for datasets that differ in the
    sensitive columns of one privacy unit of at most ``rows_per_unit`` rows. Each primitive
    satisfies its own guarantee (:mod:`ssdp_core.mechanisms`) with the sensitivity stated below;
    charges may be chosen adaptively (:class:`ssdp_core.accounting.ZcdpFilter`).

Sensitivity. All quantities are sums over rows (the mean divides by the public n). f(p) is public.
For one row the sum f(D) moves by at most the row sensitivity plus the rounding slack; a unit of r
rows moves it by r times that. The norm |f(D) - f(p)| moves by no more (triangle inequality), plus
the error of computing it: both neighbours' norms are at most 2 n B (1 + tiny), B the norm bound,
and are computed within a relative 2^-46, so 2^-44 n B covers the two errors. Two row sensitivities
are known for every query: the *reported* one, computed from public data in the pass, and the
paper's *worst case* 2B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ssdp_core import _validate
from ssdp_core.accounting import Charge, ZcdpFilter, pure_dp_rho
from ssdp_core.engine import Engine, Evaluation, ExactSum
from ssdp_core.errors import BudgetExhaustedError, TranscriptMismatchError
from ssdp_core.exact_sums import l2_norm
from ssdp_core.mechanisms import (
    AboveThreshold,
    GaussianPlan,
    ThresholdAnswer,
    laplace_release,
)
from ssdp_core.noise import NoiseSource
from ssdp_core.queries.base import LinearVectorQuery
from ssdp_core.transcript import InMemoryTranscript, Release, Transcript

Float64 = npt.NDArray[np.float64]

_NORM_ERROR = 2.0**-44


@dataclass(frozen=True, kw_only=True)
class Question:
    """A query at the current beliefs, ready to be asked; holds its exact sum in a closed box.

    Attributes:
        query: what is asked.
        belief_mean: f(p), the public answer under the beliefs, float64 (dimension,).
        reported_sensitivity: l2 sensitivity of the *sum* f(D) for one privacy unit, from the pass.
        worst_case_sensitivity: the same from the norm bound alone (the paper's 2 per row).
        norm_slack: what computing the norm adds to either.
    """

    query: LinearVectorQuery
    belief_mean: Float64
    reported_sensitivity: float
    worst_case_sensitivity: float
    norm_slack: float
    _evaluation: Evaluation = field(repr=False)


class ThresholdInstance:
    """An open AboveThreshold; its noisy threshold stays with the curator."""

    def __init__(self, mechanism: AboveThreshold, label: str, sequence: int) -> None:
        self._mechanism = mechanism
        self.label = label
        self.sequence = sequence

    @property
    def is_open(self) -> bool:
        """Whether further questions may be asked."""
        return self._mechanism.is_open

    def __repr__(self) -> str:
        return f"ThresholdInstance({self.label!r}, is_open={self.is_open})"


class Curator:
    """Answers questions about private data under one privacy budget.

    Args:
        engine: runs passes.
        budget: the zCDP filter that every release is charged to.
        noise: where noise comes from; a seeded source makes the run NOT PRIVATE.
        transcript: where releases are recorded; in memory by default.
        rows_per_unit: largest number of rows of one privacy unit.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        budget: ZcdpFilter,
        noise: NoiseSource,
        transcript: Transcript | None = None,
        rows_per_unit: int = 1,
    ) -> None:
        self._engine = engine
        self._noise = noise
        self._transcript: Transcript = InMemoryTranscript() if transcript is None else transcript
        self._rows_per_unit = _validate.integer_at_least(1, rows_per_unit=rows_per_unit)
        self._next_sequence = 0
        # The questions of the last pose, and their exact sums if they had to be fetched late.
        self._posed: list[LinearVectorQuery] = []
        self._late: dict[int, ExactSum] = {}
        self.budget = budget

    @property
    def num_rows(self) -> int:
        """The public number n of rows."""
        return self._engine.num_rows

    @property
    def rows_per_unit(self) -> int:
        """Largest number of rows of one privacy unit."""
        return self._rows_per_unit

    @property
    def is_private(self) -> bool:
        """False if noise is reproducible or off: every output must then say NOT PRIVATE."""
        return self._noise.is_private and math.isfinite(self.budget.rho_budget)

    def pose(self, queries: Sequence[LinearVectorQuery]) -> list[Question]:
        """Evaluates queries in one pass; releases nothing.

        While recorded releases are being replayed the pass is public; the private pass happens if
        and when a question gets past the record.
        """
        self._posed, self._late = list(queries), {}
        replaying = self._transcript.recorded(self._next_sequence) is not None
        run = self._engine.evaluate_public if replaying else self._engine.evaluate_private
        return [
            self._question(query, evaluation)
            for query, evaluation in zip(queries, run(queries), strict=True)
        ]

    def refresh(self, questions: Sequence[Question]) -> list[Question]:
        """The same questions at beliefs that have moved: one public pass, exact sums are kept."""
        evaluations = self._engine.evaluate_public([question.query for question in questions])
        return [
            self._question(question.query, evaluation, exact=question._evaluation.exact)
            for question, evaluation in zip(questions, evaluations, strict=True)
        ]

    def open_threshold(self, *, epsilon: float, label: str) -> ThresholdInstance:
        """Opens an AboveThreshold: costs epsilon^2/2, whatever the number of questions."""
        _validate.positive_or_infinite(epsilon=epsilon)
        charge = self._charge("above_threshold", pure_dp_rho(epsilon), label)
        sequence = self._next_sequence
        # The threshold's noise is secret state, not a release: it is re-derived after a restart
        # from the noise key, so nothing but the charge is recorded.
        self._release("open_threshold", label, charge, lambda _: {})
        return self._threshold(sequence, label, epsilon)

    def reopen_threshold(self, sequence: int, *, epsilon: float) -> ThresholdInstance:
        """After a restart: the instance that release ``sequence`` opened, with the same noise."""
        recorded = self._transcript.recorded(sequence)
        if recorded is None or recorded.kind != "open_threshold" or recorded.charge is None:
            raise TranscriptMismatchError(
                f"release {sequence} of the transcript did not open a threshold"
            )
        if recorded.charge.rho != pure_dp_rho(epsilon):
            raise TranscriptMismatchError(
                f"release {sequence} of the transcript opened a threshold for another epsilon"
            )
        return self._threshold(sequence, recorded.label, epsilon)

    def fast_forward(self, num_releases: int) -> None:
        """After a restart: takes the first releases as done, and charges what they cost."""
        while self._next_sequence < num_releases:
            recorded = self._transcript.recorded(self._next_sequence)
            if recorded is None:
                raise TranscriptMismatchError(
                    f"the transcript has {self._next_sequence} releases, fewer than the "
                    f"{num_releases} that this state has seen"
                )
            if recorded.charge is not None:
                self.budget.charge(recorded.charge)
            self._next_sequence += 1

    @property
    def num_releases(self) -> int:
        """How many releases have been made or replayed."""
        return self._next_sequence

    def ask(
        self,
        instance: ThresholdInstance,
        question: Question,
        *,
        threshold: float,
        sensitivity: float,
    ) -> ThresholdAnswer:
        """Whether |f(D) - f(p)| (as a mean) is above the threshold.

        Args:
            instance: an open AboveThreshold.
            question: what to ask.
            threshold: public threshold for the mean.
            sensitivity: one of the question's two l2 sensitivities (of the sum).
        """
        checked = self._norm_sensitivity(question, sensitivity)
        mechanism = instance._mechanism
        if not mechanism.is_open:
            raise ValueError("this AboveThreshold has answered 'above' and is closed; open another")

        def draw(stream_label: str) -> Mapping[str, Any]:
            answer = mechanism.ask(
                self._exact_norm(question),
                sensitivity=checked,
                threshold=threshold * self.num_rows,
                stream=self._noise.stream(stream_label),
            )
            gap = None if answer.gap is None else answer.gap / self.num_rows
            return {"above": answer.above, "gap": gap, "threshold": threshold}

        values = self._release("ask", instance.label, None, draw)
        if values["above"]:
            mechanism.is_open = False
        return ThresholdAnswer(above=values["above"], gap=values["gap"])

    def norm(self, question: Question, *, epsilon: float, sensitivity: float, label: str) -> float:
        """|f(D) - f(p)| (as a mean) with Laplace noise: costs epsilon^2/2."""
        checked = self._norm_sensitivity(question, sensitivity)
        charge = self._charge("laplace_norm", pure_dp_rho(epsilon), label)

        def draw(stream_label: str) -> Mapping[str, Any]:
            noisy = laplace_release(
                self._exact_norm(question),
                sensitivity=checked,
                epsilon=epsilon,
                stream=self._noise.stream(stream_label),
            )
            return {"norm": noisy / self.num_rows}

        return float(self._release("norm", label, charge, draw)["norm"])

    def measure(
        self,
        question: Question,
        *,
        noise_stddev: float,
        sensitivity: float,
        label: str,
        charge_rho: float | None = None,
    ) -> Float64:
        """f(D) (as a mean) with Gaussian noise.

        Args:
            question: what to measure.
            noise_stddev: standard deviation per coordinate of the mean.
            sensitivity: one of the question's two l2 sensitivities (of the sum).
            label: what the measurement is for.
            charge_rho: a charge above the tight one, where a published rule asks for more.
        """
        evaluation = question._evaluation
        plan = GaussianPlan.make(
            lattice=evaluation.lattice,
            dimension=question.query.dimension,
            l2_sensitivity=self._checked_sensitivity(question, sensitivity),
            noise_stddev=noise_stddev * self.num_rows,
        )
        if charge_rho is not None and charge_rho < plan.rho:
            raise ValueError(
                f"charge_rho must be at least the measurement's cost {plan.rho:g}, "
                f"got {charge_rho:g}"
            )
        rho = plan.rho if charge_rho is None else charge_rho
        charge = self._charge("gaussian_measurement", rho, label)

        def draw(stream_label: str) -> Mapping[str, Any]:
            units = self._exact(question).open_in_curator()
            noisy = plan.release(units, self._noise.stream(stream_label))
            return {"mean": noisy / self.num_rows, "noise_stddev": noise_stddev}

        return np.asarray(self._release("measure", label, charge, draw)["mean"])

    def _threshold(self, sequence: int, label: str, epsilon: float) -> ThresholdInstance:
        stream = self._noise.stream(_stream_label(sequence, "open_threshold", label))
        mechanism = AboveThreshold(epsilon=epsilon, threshold_stream=stream)
        return ThresholdInstance(mechanism, label, sequence)

    def _question(
        self, query: LinearVectorQuery, evaluation: Evaluation, exact: ExactSum | None = None
    ) -> Question:
        if exact is not None:
            evaluation = Evaluation(
                lattice=evaluation.lattice,
                belief_units=evaluation.belief_units,
                row_sensitivity=evaluation.row_sensitivity,
                rounding_slack=evaluation.rounding_slack,
                exact=exact,
            )
        worst_row = 2.0 * query.norm_bound
        slack = evaluation.rounding_slack
        return Question(
            query=query,
            belief_mean=evaluation.lattice.to_float(evaluation.belief_units) / self.num_rows,
            reported_sensitivity=self._rows_per_unit
            * (min(evaluation.row_sensitivity, worst_row) + slack),
            worst_case_sensitivity=self._rows_per_unit * (worst_row + slack),
            norm_slack=_NORM_ERROR * self.num_rows * query.norm_bound,
            _evaluation=evaluation,
        )

    @staticmethod
    def _checked_sensitivity(question: Question, sensitivity: float) -> float:
        """Refuses any sensitivity that the question did not derive itself."""
        if sensitivity not in (question.reported_sensitivity, question.worst_case_sensitivity):
            raise ValueError(
                "sensitivity must be the question's reported_sensitivity or "
                "worst_case_sensitivity: any other number would void the guarantee"
            )
        return sensitivity

    def _norm_sensitivity(self, question: Question, sensitivity: float) -> float:
        return self._checked_sensitivity(question, sensitivity) + question.norm_slack

    def _exact(self, question: Question) -> ExactSum:
        """The question's exact sum; after a replay one private pass fetches those of all posed."""
        if question._evaluation.exact is not None:
            return question._evaluation.exact
        if id(question.query) not in self._late:
            together = any(query is question.query for query in self._posed)
            queries = self._posed if together else [question.query]
            for query, evaluation in zip(
                queries, self._engine.evaluate_private(queries), strict=True
            ):
                assert evaluation.exact is not None  # a private pass always has it
                self._late[id(query)] = evaluation.exact
        return self._late[id(question.query)]

    def _exact_norm(self, question: Question) -> float:
        """|f(D) - f(p)| as a sum, within 2^-46 of itself."""
        evaluation = question._evaluation
        difference = self._exact(question).open_in_curator() - evaluation.belief_units
        return math.ldexp(l2_norm(difference), evaluation.lattice.exponent)

    def _charge(self, mechanism: str, rho: float, label: str) -> Charge:
        return Charge(mechanism=mechanism, rho=rho, label=label)

    def _release(
        self,
        kind: str,
        label: str,
        charge: Charge | None,
        draw: Callable[[str], Mapping[str, Any]],
    ) -> Mapping[str, Any]:
        """Replays the next release, or draws, charges and records it; only then returns it."""
        sequence = self._next_sequence
        recorded = self._transcript.recorded(sequence)
        if recorded is not None:
            if (recorded.kind, recorded.label, recorded.charge) != (kind, label, charge):
                raise TranscriptMismatchError(
                    f"release {sequence} in the transcript is {recorded.kind} {recorded.label!r}, "
                    f"but this run asks for {kind} {label!r}: it belongs to another run"
                )
            if charge is not None:
                self.budget.charge(charge)
            self._next_sequence += 1
            return recorded.values
        if charge is not None and not self.budget.can_afford(charge.rho):
            raise BudgetExhaustedError(
                f"{kind} {label!r} needs rho = {charge.rho:.6g}, but only "
                f"{self.budget.remaining:.6g} of {self.budget.rho_budget:.6g} is left; "
                "nothing was released"
            )
        values = draw(_stream_label(sequence, kind, label))
        if charge is not None:
            self.budget.charge(charge)
        self._transcript.append(
            Release(sequence=sequence, kind=kind, label=label, charge=charge, values=values)
        )
        self._next_sequence += 1
        return values


def _stream_label(sequence: int, kind: str, label: str) -> str:
    return f"{sequence}/{kind}/{label}"
