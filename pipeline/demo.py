"""``ssdp demo``: three models from a generated ad table, with the paper's algorithm, in memory.

The demo knows the truth because it generated it, so it can print each model's excess risk over the
best model without privacy. That number is not private and no real run prints it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from pipeline.example_data import AD_DOMAIN, AdTable, generate_ad_table
from pipeline.progress import FitProgress
from ssdp_core import nonprivate
from ssdp_core.accounting import ZcdpFilter, epsilon_from_rho, rho_from_epsilon
from ssdp_core.curator import Curator
from ssdp_core.engine import InMemoryEngine
from ssdp_core.losses import HuberLoss, LogisticLoss
from ssdp_core.noise import NoiseSource
from ssdp_core.oracles import AnsweredGradients, BeliefGradients, inexact_gradient_method
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.problems import LinearErm, Problem, PublicTarget
from ssdp_core.pvmw import PrivateVectorAnswerer

EPSILON = 1.0
DELTA = 1e-6
_ROUNDS = 100
# Set by hand on this generated table; privacy holds for any values (see PvmwParameters).
_TAU = 0.03
_ETA = 1.5
_MAX_UPDATES = 40

PROBLEMS = (
    Problem(
        name="click",
        loss=LogisticLoss(),
        target=PublicTarget(column="click"),
        l2=0.05,
        radius=10.0,
    ),
    Problem(
        name="install",
        loss=LogisticLoss(),
        target=PublicTarget(column="install"),
        l2=0.05,
        radius=10.0,
    ),
    Problem(
        name="order_value",
        loss=HuberLoss(threshold=1.0),
        target=PublicTarget(column="order_value"),
        l2=0.05,
        radius=10.0,
    ),
)


@dataclass(frozen=True)
class DemoRow:
    """One model of the demo.

    Attributes:
        name: the problem.
        loss: its loss.
        excess_blind: excess risk of a model that treats the sensitive columns as unknown.
        excess_private: excess risk of the private model.
    """

    name: str
    loss: str
    excess_blind: float
    excess_private: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found, and what it spent."""

    rows: tuple[DemoRow, ...]
    num_updates: int
    rho_spent: float
    rho_budget: float
    is_private: bool
    seconds: float


def run_demo(*, num_rows: int, seed: int | None, console: Console) -> DemoResult:
    """Generates the table and fits the three models."""
    started = time.monotonic()
    table = generate_ad_table(num_rows)
    private_features = AD_DOMAIN.private_features()
    erms = [LinearErm.from_rows(problem, table.rows, private_features) for problem in PROBLEMS]
    engine = InMemoryEngine(table.rows, table.codes, num_codes=AD_DOMAIN.num_codes)
    with FitProgress(console, "without sensitive columns", _ROUNDS) as progress:
        blind = inexact_gradient_method(
            erms,
            BeliefGradients(engine),
            num_rows=num_rows,
            num_steps=_ROUNDS,
            progress=lambda done, _: progress.update(done, "no budget used"),
        )
    rho = rho_from_epsilon(EPSILON, DELTA)
    noise = NoiseSource.secure() if seed is None else NoiseSource.seeded(seed)
    curator = Curator(engine, budget=ZcdpFilter(rho), noise=noise)
    parameters = PvmwParameters(
        num_rows=num_rows, rho=rho, tau=_TAU, max_updates=_MAX_UPDATES, eta=_ETA
    )
    answerer = PrivateVectorAnswerer(engine, curator, parameters)
    with FitProgress(console, "with privacy", _ROUNDS) as progress:
        private = inexact_gradient_method(
            erms,
            AnsweredGradients(answerer),
            num_rows=num_rows,
            num_steps=_ROUNDS,
            progress=lambda done, _: progress.update(
                done,
                f"{answerer.num_updates} of {_MAX_UPDATES - 1} updates, "
                f"{curator.budget.spent / rho:.0%} of the budget",
            ),
        )
    return DemoResult(
        rows=tuple(
            DemoRow(
                name=erm.problem.name,
                loss=erm.problem.loss.name,
                excess_blind=_excess(erm, table, blind[j]),
                excess_private=_excess(erm, table, private[j]),
            )
            for j, erm in enumerate(erms)
        ),
        num_updates=answerer.num_updates,
        rho_spent=curator.budget.spent,
        rho_budget=rho,
        is_private=curator.is_private,
        seconds=time.monotonic() - started,
    )


def _excess(erm: LinearErm, table: AdTable, weights: nonprivate.Float64) -> float:
    best = nonprivate.minimise(erm, table.rows, table.codes)
    risks = [nonprivate.objective(erm, table.rows, table.codes, w) for w in (weights, best)]
    return risks[0] - risks[1]


def print_demo(result: DemoResult, *, num_rows: int, console: Console) -> None:
    """Prints the result as a table."""
    sensitive = " x ".join(f"{c.name} ({c.size})" for c in AD_DOMAIN.columns)
    console.print(f"\n{num_rows:,} generated ad impressions; sensitive: {sensitive}\n")
    table = Table(title="Excess risk over the best model without privacy", title_justify="left")
    table.add_column("model")
    table.add_column("loss")
    table.add_column("sensitive columns unused", justify="right")
    table.add_column("private fit", justify="right", style="bold")
    for row in result.rows:
        table.add_row(row.name, row.loss, f"{row.excess_blind:.4f}", f"{row.excess_private:.4f}")
    console.print(table)
    spent = epsilon_from_rho(result.rho_spent, DELTA)
    console.print(
        f"\nprivacy spent: epsilon = {spent:.3f} of {EPSILON:g} at delta = {DELTA:g} "
        f"(rho = {result.rho_spent:.5f} of {result.rho_budget:.5f}), "
        f"{result.num_updates} belief updates, {result.seconds:.0f} s"
    )
    if not result.is_private:
        console.print("[bold red]NOT PRIVATE[/]: a seed was given, so the noise is reproducible.")
