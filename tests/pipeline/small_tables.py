"""Tiny tables and specifications for tests of whole runs: seconds, not minutes.

A run on `write_table` with `spec_text` makes several belief updates in a few rounds, so that all
kinds of releases and files occur in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS = 2_400
BLOCK_ROWS = 1_024
SEGMENTS = ("a", "b", "c")


def columns(num_rows: int = NUM_ROWS, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
    """Public columns ``age``, ``device``, ``clicked``, ``spend``; sensitive ``segment``."""
    rng = np.random.default_rng(seed)
    segment = rng.choice(SEGMENTS, num_rows, p=[0.6, 0.3, 0.1])
    age = rng.normal(40.0, 10.0, num_rows)
    score = 3.0 * (segment == "a") - 3.0 * (segment == "c") + 0.05 * (age - 40.0)
    return {
        "age": age,
        "device": rng.choice(["phone", "desk"], num_rows),
        "clicked": (rng.random(num_rows) < 1.0 / (1.0 + np.exp(-score))).astype(np.int64),
        "spend": np.clip(age / 40.0 + 2.0 * (segment == "b") + rng.normal(size=num_rows), -4, 4),
        "segment": segment,
    }


def write_table(path: Path, num_rows: int = NUM_ROWS, seed: int = 0) -> Path:
    """Writes `columns` as Parquet in several row groups."""
    table = pa.table({name: pa.array(values) for name, values in columns(num_rows, seed).items()})
    pq.write_table(table, path, row_group_size=700)
    return path


def spec_text(
    table: str | Path,
    *,
    epsilon: float | str = 20.0,
    num_steps: int = 3,
    tau: float = 0.055,
    max_updates: int = 12,
    prepared: str | Path | None = None,
    block_rows: int = BLOCK_ROWS,
) -> str:
    """A specification with two problems on a table of `columns`."""
    where = "" if prepared is None else f'prepared = "{prepared}"\n'
    shown = f'"{epsilon}"' if isinstance(epsilon, str) else repr(epsilon)
    return f"""
[data]
path = "{table}"
features = ["age", "device"]
block_rows = {block_rows}
{where}
[data.sensitive.segment]
values = ["a", "b", "c"]
[privacy]
epsilon = {shown}
delta = 1e-6
[[problem]]
name = "clicked"
target = "clicked"
loss = "logistic"
l2 = 0.01
[[problem]]
name = "spend"
target = "spend"
loss = "huber"
l2 = 0.01
[fit]
num_steps = {num_steps}
tau = {tau}
eta = 1.0
max_updates = {max_updates}
"""


def write_run(folder: Path, **options: object) -> Path:
    """A table and its specification in a folder; returns the specification's path."""
    folder.mkdir(parents=True, exist_ok=True)
    table = write_table(folder / "table.parquet")
    spec = folder / "run.toml"
    spec.write_text(spec_text(table, **options))  # type: ignore[arg-type]
    return spec
