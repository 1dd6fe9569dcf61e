"""``ssdp demo``: three models from a generated ad table, by the same path as ``ssdp fit``.

The demo knows the truth because it generated it, so it can print each model's excess risk over the
best model without privacy. That number is not private and no real run prints it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from pipeline import dataset, fit
from pipeline.example_data import DEMO_SPEC, generate_ad_table
from pipeline.models import read_models
from pipeline.progress import Progress
from pipeline.run_directory import RunDirectory
from pipeline.spec import Spec, load_spec
from ssdp_core import nonprivate
from ssdp_core.domain import PrivateFeatures
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.problems import LinearErm

_ROUNDS = 15


@dataclass(frozen=True)
class DemoRow:
    """One model: excess risk of the best one without the sensitive columns, and of ours."""

    name: str
    loss: str
    excess_blind: float
    excess_private: float


def run_demo(arguments: argparse.Namespace) -> int:
    """Generates the table, fits, compares, prints."""
    started = time.monotonic()
    console = Console(quiet=arguments.quiet, soft_wrap=True, highlight=False)
    progress = Progress(console, json_lines=arguments.json_logs)
    with tempfile.TemporaryDirectory(prefix="ssdp-demo-") as scratch:
        spec_path = _write_inputs(Path(scratch), arguments.rows)
        out = arguments.out or str(Path(scratch) / "run")
        with progress:
            result = fit.start(
                str(spec_path),
                out,
                seed=arguments.seed,
                beam_options=arguments.beam_options,
                report=progress.say,
                watch=progress.show,
            )
        rows = _compare(load_spec(str(spec_path)), out)
    spec = load_spec_text(arguments.rows)
    _print(rows, result, spec, arguments, time.monotonic() - started)
    return 0


def load_spec_text(num_rows: int) -> Spec:
    """The demo's specification, for what it says about columns and budget."""
    from pipeline.spec import parse_spec

    return parse_spec(DEMO_SPEC.format(path="ads.parquet", num_steps=_ROUNDS))


def _write_inputs(folder: Path, num_rows: int) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = folder / "ads.parquet"
    parquet.write_table(pa.table(generate_ad_table(num_rows)), table)
    spec = folder / "ads.toml"
    spec.write_text(DEMO_SPEC.format(path=table, num_steps=_ROUNDS))
    return spec


def _compare(spec: Spec, out: str) -> list[DemoRow]:
    """Excess risks on the generated table. NOT PRIVATE: reads the codes."""
    run = RunDirectory(out)
    prepared = run.facts().prepared
    manifest = dataset.load_manifest(prepared)
    assert manifest is not None  # the fit has just prepared it
    rows, codes = _whole_table(prepared, manifest)
    domain = spec.domain()
    found = []
    for problem, model in zip(
        spec.problems(domain), read_models(run.read_json("models.json")), strict=True
    ):
        erm = LinearErm.from_rows(problem, rows, spec.private_features(domain, problem))
        blind = LinearErm.from_rows(
            problem, rows, PrivateFeatures.from_matrix(np.zeros((domain.num_codes, 0)))
        )
        best = nonprivate.objective(erm, rows, codes, nonprivate.minimise(erm, rows, codes))
        unseeing = nonprivate.objective(blind, rows, codes, nonprivate.minimise(blind, rows, codes))
        ours = nonprivate.objective(erm, rows, codes, model.weights.reshape(-1))
        found.append(DemoRow(problem.name, problem.loss.name, unseeing - best, ours - best))
    return found


def _whole_table(
    prepared: str, manifest: dataset.Manifest
) -> tuple[PublicRows, npt.NDArray[np.int32]]:
    blocks, codes = [], []
    for record in manifest.blocks:
        path = dataset.public_path(prepared, record.name)
        blocks.append(dataset.load_public(path, record.public_sha256))
        private = dataset.private_path(prepared, record.name)
        codes.append(
            dataset.load_codes(private, record.private_hash, record.num_rows, manifest.num_codes)
        )
    values = [b.features.values for b in blocks if isinstance(b.features, DenseFeatures)]
    return (
        PublicRows(
            num_rows=manifest.num_rows,
            features=DenseFeatures(np.concatenate(values)),
            columns={
                name: np.concatenate([block.columns[name] for block in blocks])
                for name in blocks[0].columns
            },
        ),
        np.concatenate(codes),
    )


def _print(
    rows: Sequence[DemoRow],
    result: fit.FitResult,
    spec: Spec,
    arguments: argparse.Namespace,
    seconds: float,
) -> None:
    console = Console(soft_wrap=True, highlight=False)
    sensitive = " x ".join(f"{c.name} ({c.size})" for c in spec.domain().columns)
    console.print(f"\n{arguments.rows:,} generated ad impressions; sensitive: {sensitive}\n")
    table = Table(title="Excess risk over the best model without privacy", title_justify="left")
    table.add_column("model")
    table.add_column("loss")
    table.add_column("without sensitive columns", justify="right")
    table.add_column("private fit", justify="right", style="bold")
    for row in rows:
        table.add_row(row.name, row.loss, f"{row.excess_blind:.4f}", f"{row.excess_private:.4f}")
    console.print(table)
    console.print(
        f"\nprivacy spent: epsilon = {result.epsilon_spent:.3f} of {spec.privacy.epsilon:g} "
        f"at delta = {spec.privacy.delta:g}\n"
        f"(rho = {result.rho_spent:.5f} of {result.rho_budget:.5f}), "
        f"{result.num_updates} belief updates, {seconds:.0f} s"
    )
    if arguments.out:
        console.print(f"the run is kept in {result.directory}")
    if not result.is_private:
        console.print("NOT PRIVATE: a seed was given, so the noise is reproducible.")
    if not result.is_complete:
        console.print(f"stopped early: {result.message}")
