"""Tiny tables, specifications and runs for the tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from pipeline import cli

# A private value that occurs nowhere else: no message may ever show it.
SECRET = "sEcReT-vAlUe-8d1f"

NUM_ROWS = 400


def table(num_rows: int = NUM_ROWS, seed: int = 0) -> dict[str, Any]:
    """A table with a public number, a public category, a sensitive segment and two targets."""
    rng = np.random.default_rng(seed)
    segment = rng.choice(["a", "b", "c"], num_rows, p=[0.5, 0.3, 0.2])
    age = np.round(rng.normal(40, 10, num_rows), 3)
    chance = 1 / (1 + np.exp(-(1.5 * (segment == "a") - 1.0 * (segment == "c") + (age - 40) / 20)))
    return {
        "age": age,
        "device": rng.choice(["phone", "tablet"], num_rows),
        "segment": segment,
        "click": (rng.random(num_rows) < chance).astype(np.int64),
        "value": np.round(age / 50 + 0.5 * (segment == "a"), 3),
        "user": np.arange(num_rows) // 2,
    }


def write(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    """Writes a table as its name says, Parquet or CSV."""
    arrow = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(arrow, path)
    else:
        parquet.write_table(arrow, path, **options)
    return path


@dataclass
class Tiny:
    """A specification that can be changed piece by piece before it is written.

    Every field is TOML text of one table, or None to leave the table out.
    """

    path: str = "t.parquet"
    data: str = 'features = ["age", "device"]\nblock_rows = 128'
    sensitive: str = '[data.sensitive.segment]\nvalues = ["a", "b", "c"]'
    privacy: str = "epsilon = 2.0\ndelta = 1e-6"
    problems: list[str] = field(
        default_factory=lambda: ['name = "click"\ntarget = "click"\nloss = "logistic"\nl2 = 0.05']
    )
    fit: str = "num_steps = 2"
    more: str = ""

    def toml(self) -> str:
        problems = "\n".join(f"[[problem]]\n{problem}" for problem in self.problems)
        return (
            f'[data]\npath = ["{self.path}"]\n{self.data}\n{self.sensitive}\n{self.more}\n'
            f"[privacy]\n{self.privacy}\n{problems}\n[fit]\n{self.fit}\n"
        )

    def write(self, folder: Path, name: str = "s.toml") -> Path:
        file = folder / name
        file.write_text(self.toml())
        return file


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """(time of change, content) of every file below a folder."""
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def ssdp(*arguments: object, cwd: Path | None = None, **options: Any) -> Any:
    """The command line in a process of its own."""
    code = "import sys; from pipeline.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
        **options,
    )


def run(*arguments: object) -> int:
    """The command line in this process."""
    return cli.main([str(argument) for argument in arguments])
