"""The driver: fits problems in rounds, and can be killed and resumed at any point.

One round: the solver says where it needs gradients; one private pass evaluates all problems'
queries there; the curator tests, measures, charges and journals; the solver steps; the state is
stored. A resumed run loads the last stored state and asks again; releases already in the journal
are taken from there, so nothing is charged twice and no second noise is drawn. The beliefs a state
refers to are kept until the next state is stored.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import __version__
from pipeline.beam_engine import BeamEngine
from pipeline.dataset import Manifest, block_loads, load_manifest
from pipeline.encode import EncoderPlan
from pipeline.journal import Journal
from pipeline.launch import Launcher
from pipeline.models import models_json
from pipeline.prepare import prepare
from pipeline.run_directory import Checkpoint, RunDirectory, RunDirectoryError, RunFacts
from pipeline.run_lock import RunLock
from pipeline.spec import Spec, SpecError, load_spec
from ssdp_core.accounting import ZcdpFilter, epsilon_from_rho, rho_from_epsilon
from ssdp_core.curator import Curator
from ssdp_core.errors import BudgetExhaustedError, OutOfUpdatesError
from ssdp_core.oracles import (
    AnsweredGradients,
    InexactGradientSolver,
    Solver,
    SubgradientSolver,
)
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.problems import LinearErm, PublicTarget
from ssdp_core.pvmw import PrivateVectorAnswerer

RELATION = "one privacy unit's sensitive columns may change; all else is public and fixed"

# Used where the specification leaves a parameter open. Privacy does not depend on them; they were
# set by hand on generated tables, and no claim of accuracy rests on them.
_DEFAULT_MAX_UPDATES = 40
_DEFAULT_ETA = 1.5
_DEFAULT_TAU = 0.03
_NOISE_SCALES_IN_TAU = 6.0
_DEFAULT_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Status:
    """What progress shows after a round: released and public numbers only."""

    round: int
    num_rounds: int
    num_updates: int
    max_updates: int
    epsilon_spent: float
    epsilon: float
    num_passes: int
    rows_per_second: float


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How a fit ended."""

    directory: str
    is_complete: bool
    is_private: bool
    num_rounds: int
    num_updates: int
    epsilon_spent: float
    rho_spent: float
    rho_budget: float
    message: str


Watch = Callable[[Status], None]
Report = Callable[[str], None]


def prepared_folder(spec: Spec, spec_path: str) -> str:
    """Where a specification's blocks go: as it says, or beside it."""
    return spec.data.prepared or spec_path.removesuffix(".toml") + ".prepared"


def start(
    spec_path: str,
    out: str,
    *,
    seed: int | None,
    beam_options: Sequence[str],
    report: Report,
    watch: Watch,
) -> FitResult:
    """Fits a specification into a new run directory."""
    spec = load_spec(spec_path)
    if spec.ledger.path is not None:
        raise SpecError(
            "[ledger] path: this version keeps no budget over several runs; remove the table, and "
            "add up the epsilons of runs on the same rows yourself"
        )
    directory = RunDirectory(out)
    folder = prepared_folder(spec, spec_path)
    facts = RunFacts(
        prepared=folder if "://" in folder else os.path.abspath(folder),
        seed=seed,
        beam_options=tuple(beam_options),
        run_id=secrets.token_hex(8),
    )
    directory.claim()
    with RunLock(out):
        key = None if seed is not None else secrets.token_bytes(32)
        directory.create(spec.to_toml(), facts, key)
        launcher = Launcher(beam_options)
        manifest = prepare(spec, facts.prepared, launcher, report)
        header = _header(spec, manifest, facts)
        journal = Journal.create(directory.journal, header)
        return _Run(spec, manifest, directory, journal, launcher, report).go(watch)


def resume(out: str, *, report: Report, watch: Watch) -> FitResult:
    """Continues an interrupted fit; the result is as if it had never been interrupted."""
    directory = RunDirectory(out)
    facts = directory.facts()
    with RunLock(out):
        spec = load_spec(directory.file("spec.toml"))
        if _has_journal(directory):
            seen = Journal.open(directory.journal, {"run_id": facts.run_id}, read_only=True)
            if seen.notes("finished"):
                directory.finish()  # in case the run was killed just before it did
                raise RunDirectoryError(f"{out} is finished: its results are in models.json")
        launcher = Launcher(facts.beam_options)
        if not _has_journal(directory):
            manifest = prepare(spec, facts.prepared, launcher, report)
            journal = Journal.create(directory.journal, _header(spec, manifest, facts))
        else:
            found = load_manifest(facts.prepared)
            manifest = prepare(spec, facts.prepared, launcher, report) if found is None else found
            journal = Journal.open(directory.journal, _header(spec, manifest, facts))
            _check_input_unchanged(spec, manifest, facts)
        return _Run(spec, manifest, directory, journal, launcher, report).go(watch)


def _has_journal(directory: RunDirectory) -> bool:
    from pipeline import storage

    return storage.exists(directory.journal) or bool(storage.list_files(directory.file("journal")))


def _check_input_unchanged(spec: Spec, manifest: Manifest, facts: RunFacts) -> None:
    from pipeline.prepare import dataset_digest, dataset_facts
    from pipeline.tables import find_files

    facts_now = dataset_facts(spec, find_files(spec.data.path))
    if dataset_digest(facts.prepared, facts_now) != manifest.digest:
        raise RunDirectoryError(
            f"the input {', '.join(spec.data.path)} has changed since the run was started: restore "
            "it and resume, or start a new fit"
        )


def _header(spec: Spec, manifest: Manifest, facts: RunFacts) -> dict[str, Any]:
    return {
        "spec_digest": spec.digest(),
        "dataset_digest": manifest.digest,
        "run_id": facts.run_id,
        "seeded": facts.seed is not None,
        # Another version may choose other parameters, under which the recorded noise means
        # something else.
        "version": __version__,
    }


class _Run:
    """One fit, from wherever it stands to its end."""

    def __init__(
        self,
        spec: Spec,
        manifest: Manifest,
        directory: RunDirectory,
        journal: Journal,
        launcher: Launcher,
        report: Report,
    ) -> None:
        self._spec = spec
        self._manifest = manifest
        self._directory = directory
        self._journal = journal
        self._launcher = launcher
        facts = directory.facts()
        domain = spec.domain()
        self._rho = rho_from_epsilon(spec.privacy.epsilon, spec.privacy.delta)
        if spec.privacy.delta > 1.0 / manifest.num_rows:
            report(
                f"warning: delta = {spec.privacy.delta:g} is above 1/n = "
                f"{1.0 / manifest.num_rows:g}; a smaller delta is customary"
            )
        self._problems = spec.problems(domain)
        self._private_features = [spec.private_features(domain, p) for p in self._problems]
        self._erms = [
            LinearErm(
                problem=problem,
                num_public=manifest.num_features,
                private_features=private,
                feature_norm=manifest.feature_norm,
                target_bound=_target_bound(problem.target, manifest),
            )
            for problem, private in zip(self._problems, self._private_features, strict=True)
        ]
        directory.clean_passes()
        self._engine = BeamEngine(
            launcher, manifest, facts.prepared, directory.work, run_id=facts.run_id
        )
        self._parameters = self._choose_parameters()
        self._curator = Curator(
            self._engine,
            budget=ZcdpFilter(self._rho),
            noise=directory.noise(facts.seed),
            transcript=journal,
            rows_per_unit=1 if spec.data.unit is None else spec.data.unit.max_rows,
        )
        self._answerer = PrivateVectorAnswerer(
            self._engine, self._curator, self._parameters, tight_charges=spec.fit.tight_charges
        )
        self._solver = self._choose_solver()
        self._started = time.monotonic()
        self._earlier = {"passes": 0, "private_passes": 0, "launches": 0, "milliseconds": 0}

    def go(self, watch: Watch) -> FitResult:
        """Runs all remaining rounds and writes the results."""
        self._restore()
        oracle = AnsweredGradients(self._answerer)
        message = "complete"
        first_round = self._solver.round
        try:
            while self._solver.round < self._solver.num_steps:
                gradients = oracle.gradients(self._erms, self._solver.points())
                self._solver.advance(gradients)
                self._save()
                watch(self._status(first_round))
        except (OutOfUpdatesError, BudgetExhaustedError) as error:
            message = str(error)
        return self._finish(message)

    def _choose_parameters(self) -> PvmwParameters:
        fit = self._spec.fit
        parameters = PvmwParameters(
            num_rows=self._manifest.num_rows,
            rho=self._rho,
            tau=fit.tau or _DEFAULT_TAU,
            max_updates=fit.max_updates or _DEFAULT_MAX_UPDATES,
            eta=fit.eta or _DEFAULT_ETA,
            truncation=fit.truncation,
            zeta=fit.zeta,
        )
        if fit.tau is not None:
            return parameters
        rows_per_unit = 1 if self._spec.data.unit is None else self._spec.data.unit.max_rows
        floor = _NOISE_SCALES_IN_TAU * parameters.query_noise_scale * rows_per_unit
        return PvmwParameters(
            num_rows=parameters.num_rows,
            rho=parameters.rho,
            tau=max(parameters.tau, floor),
            max_updates=parameters.max_updates,
            eta=parameters.eta,
            truncation=parameters.truncation,
            zeta=parameters.zeta,
        )

    def _choose_solver(self) -> Solver:
        steps = self._spec.fit.num_steps or _DEFAULT_STEPS
        smooth = all(e.smoothness is not None and e.strong_convexity > 0 for e in self._erms)
        kind = self._spec.fit.solver
        if kind == "subgradient" or (kind == "auto" and not smooth):
            return SubgradientSolver(self._erms, num_steps=steps)
        return InexactGradientSolver(self._erms, num_rows=self._manifest.num_rows, num_steps=steps)

    def _restore(self) -> None:
        checkpoint = self._directory.latest_checkpoint()
        if checkpoint is None:
            return
        counts = checkpoint.counts
        self._solver.restore(checkpoint.solver)
        self._engine.restore_state(counts["belief_version"])
        self._answerer.restore(counts)
        self._earlier = {name: counts[name] for name in self._earlier}

    def _save(self) -> None:
        version = self._engine.save_state()
        self._directory.save_checkpoint(
            Checkpoint(
                solver=self._solver.state(),
                counts={
                    **self._answerer.state(),
                    "belief_version": version,
                    **self._totals(),
                },
            )
        )
        self._engine.drop_versions_before(version - 1)

    def _totals(self) -> dict[str, int]:
        now = {
            "passes": self._engine.num_passes,
            "private_passes": self._engine.num_private_passes,
            "launches": self._launcher.num_launches,
            "milliseconds": round(1000 * (time.monotonic() - self._started)),
        }
        return {name: self._earlier[name] + now[name] for name in now}

    def _epsilon_spent(self) -> float:
        spent = self._curator.budget.spent
        return epsilon_from_rho(spent, self._spec.privacy.delta) if spent > 0 else 0.0

    def _status(self, first_round: int) -> Status:
        seconds = time.monotonic() - self._started
        rows = self._engine.num_passes * self._manifest.num_rows
        return Status(
            round=self._solver.round,
            num_rounds=self._solver.num_steps,
            num_updates=self._answerer.num_updates,
            max_updates=self._parameters.max_updates - 1,
            epsilon_spent=self._epsilon_spent(),
            epsilon=self._spec.privacy.epsilon,
            num_passes=self._totals()["passes"],
            rows_per_second=rows / seconds,
        )

    def _finish(self, message: str) -> FitResult:
        spec, directory = self._spec, self._directory
        is_complete = self._solver.round >= self._solver.num_steps
        is_private = self._curator.is_private
        directory.write_json(
            "models.json",
            models_json(
                spec,
                EncoderPlan.from_json(self._manifest.encoder),
                self._solver.solutions(),
                self._private_features,
                is_private=is_private,
                is_complete=is_complete,
            ),
        )
        directory.write_json("encoder.json", {"plan": self._manifest.encoder})
        directory.write_json("privacy.json", self._privacy(is_private))
        totals = self._totals()
        directory.write_json(
            "metrics.json",
            {
                "passes": totals["passes"],
                "private_passes": totals["private_passes"],
                "jobs": totals["launches"],
                "seconds": totals["milliseconds"] / 1000,
                "block_loads": block_loads(),
                "rounds": self._solver.round,
                "updates": self._answerer.num_updates,
                "version": __version__,
            },
        )
        self._journal.note("finished", {"message": message})
        self._journal.close()
        directory.finish()
        return FitResult(
            directory=directory.path,
            is_complete=is_complete,
            is_private=is_private,
            num_rounds=self._solver.round,
            num_updates=self._answerer.num_updates,
            epsilon_spent=self._epsilon_spent(),
            rho_spent=self._curator.budget.spent,
            rho_budget=self._rho,
            message=message,
        )

    def _privacy(self, is_private: bool) -> dict[str, Any]:
        spec, parameters = self._spec, self._parameters
        return {
            "private": is_private,
            "relation": RELATION,
            "unit": None
            if spec.data.unit is None
            else {"column": spec.data.unit.column, "max_rows": spec.data.unit.max_rows},
            "sensitive_columns": list(spec.sensitive_columns()),
            "epsilon": _finite(spec.privacy.epsilon),
            "delta": spec.privacy.delta,
            "epsilon_spent": _finite(self._epsilon_spent()),
            "rho_budget": _finite(self._rho),
            "rho_spent": _finite(self._curator.budget.spent),
            "charges": [
                {"mechanism": c.mechanism, "rho": _finite(c.rho), "label": c.label}
                for c in self._curator.budget.charges
            ],
            "mode": spec.fit.mode,
            "parameters": {
                "tau": parameters.tau,
                "eta": parameters.eta,
                "max_updates": parameters.max_updates,
                "truncation": parameters.truncation,
                "zeta": parameters.zeta,
                "epsilon_prime": _finite(parameters.epsilon_prime),
                "sigma": parameters.sigma,
                "tight_charges": spec.fit.tight_charges,
            },
        }


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else "inf"


def _target_bound(target: Any, manifest: Manifest) -> float:
    if isinstance(target, PublicTarget):
        return manifest.target_bounds[target.column]
    return float(abs(target.values.astype(float)).max())
