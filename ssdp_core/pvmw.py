"""Private Vector Multiplicative Weights: Algorithm 2 of the paper, as an online answerer.

Ghazi, Kamath, Kumar, Manurangsi, Meka and Zhang, "On Convex Optimization with Semi-Sensitive
Features", COLT 2024. Queries arrive one after another (or several at once). For each, the curator
tests whether the beliefs already answer it: |f(p) - f(D)| against a threshold. If they do, the
answer is f(p), which is public. If not, the curator measures f(D) and its distance from f(p), the
beliefs move one multiplicative-weights step towards it, and the query is tested again. After
max_updates - 1 updates the answerer stops with FAIL; answers given before stay valid.

Guarantee:
    rho-zCDP with rho = ``parameters.rho`` if the curator's budget allows that much; charges happen
    as releases happen, so a run that needs few updates spends little. Neighbouring relation and
    sensitivities: :mod:`ssdp_core.curator`, worst case 2/n per query, as in the paper.

Charges. With ``tight_charges=False`` a measurement is charged 2/sigma^2, as in the paper's proof;
its true cost is 1/(2 sigma^2), a quarter, and ``tight_charges=True`` charges that. Noise is the
same.

Differences from the printed algorithm, none of which changes what is released: the threshold noise
after the last update is never drawn, because nothing would be compared with it; a distance of
exactly zero (probability about 2^-30) is replaced by one lattice step, to divide by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdp_core.curator import Curator, Question, ThresholdInstance
from ssdp_core.engine import Engine
from ssdp_core.errors import OutOfUpdatesError
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.queries.base import LinearVectorQuery

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one query.

    Attributes:
        value: f(p) after the updates, float64 (dimension,), a mean over rows.
        num_updates: how many updates this query caused.
    """

    value: Float64
    num_updates: int


class PrivateVectorAnswerer:
    """Answers linear vector queries with error about ``parameters.tau`` (Algorithm 2).

    Args:
        engine: runs public passes and holds the beliefs.
        curator: releases; its engine must be the same.
        parameters: rho, tau, L, c, zeta, eta.
        tight_charges: charge measurements what they cost instead of what the paper charges.
    """

    def __init__(
        self,
        engine: Engine,
        curator: Curator,
        parameters: PvmwParameters,
        *,
        tight_charges: bool = False,
    ) -> None:
        if parameters.num_rows != engine.num_rows:
            raise ValueError(
                f"parameters are for {parameters.num_rows} rows, the table has {engine.num_rows}"
            )
        self._engine = engine
        self._curator = curator
        self._parameters = parameters
        self._tight_charges = tight_charges
        self._threshold: ThresholdInstance | None = None
        self.num_updates = 0

    def state(self) -> dict[str, int]:
        """What a restarted run needs besides beliefs and transcript: counts, no secrets."""
        return {
            "num_updates": self.num_updates,
            "num_releases": self._curator.num_releases,
            "threshold_sequence": -1 if self._threshold is None else self._threshold.sequence,
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Goes on from a saved :meth:`state`; the curator's transcript must hold its releases."""
        self._curator.fast_forward(state["num_releases"])
        self.num_updates = state["num_updates"]
        if state["threshold_sequence"] >= 0:
            self._threshold = self._curator.reopen_threshold(
                state["threshold_sequence"], epsilon=self._parameters.epsilon_prime
            )

    def answer(self, query: LinearVectorQuery) -> Answer:
        """Answers one query; raises OutOfUpdatesError (the paper's FAIL) if updates ran out."""
        return self.answer_all([query])[0]

    def answer_all(self, queries: Sequence[LinearVectorQuery]) -> list[Answer]:
        """Answers several queries, in their order; one private pass serves them all."""
        self._require_updates()
        for query in queries:
            if query.norm_bound > 1.0 + 1e-9:
                raise ValueError(
                    f"queries must have norm at most 1, got {query.norm_bound:g}: scale the query"
                )
        questions = self._curator.pose(queries)
        answers = []
        for index in range(len(queries)):
            updates = 0
            while self._is_above(questions[index]):
                self._update(questions[index])
                updates += 1
                self._require_updates()
                questions[index:] = self._curator.refresh(questions[index:])
            answers.append(Answer(value=questions[index].belief_mean, num_updates=updates))
        return answers

    def _require_updates(self) -> None:
        # The paper counts updates from l = 1 and fails as soon as l reaches L.
        if self.num_updates + 1 >= self._parameters.max_updates:
            raise OutOfUpdatesError(
                f"FAIL: all {self._parameters.max_updates - 1} belief updates are used; answers so "
                "far stay valid. Raise tau (a coarser answer) or max_updates (more noise)"
            )

    def _is_above(self, question: Question) -> bool:
        parameters = self._parameters
        if self._threshold is None:
            self._threshold = self._curator.open_threshold(
                epsilon=parameters.epsilon_prime, label=f"update {self.num_updates + 1}"
            )
        return self._curator.ask(
            self._threshold,
            question,
            threshold=parameters.tau,
            sensitivity=question.worst_case_sensitivity,
        ).above

    def _update(self, question: Question) -> None:
        """Measures f(D) and |f(D) - f(p)|, then one step of Algorithm 1."""
        parameters = self._parameters
        label = f"update {self.num_updates + 1}"
        measured = self._curator.measure(
            question,
            # A unit of r rows has r times the sensitivity: r times the noise for the same charge.
            noise_stddev=parameters.measurement_stddev * self._curator.rows_per_unit,
            sensitivity=question.worst_case_sensitivity,
            label=label,
            charge_rho=None
            if self._tight_charges
            else parameters.paper_charge_per_update.measurement,
        )
        distance = self._curator.norm(
            question,
            epsilon=parameters.epsilon_prime,
            sensitivity=question.worst_case_sensitivity,
            label=label,
        )
        if distance == 0.0:
            distance = math.ldexp(question.worst_case_sensitivity / self._engine.num_rows, -20)
        self._engine.update(
            question.query,
            (measured - question.belief_mean) / distance,
            step=parameters.eta,
            truncation=parameters.truncation,
        )
        self.num_updates += 1
        self._threshold = None
