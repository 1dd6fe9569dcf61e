"""A fit of 20 million rows in less than 2 GiB: generated Parquet through ``ssdp fit``.

python tests/benchmarks/large_fit.py [millions of rows, default 20]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from timing import judged_at_most, report

SPEC = """\
[data]
path = "{folder}/*.parquet"
features = ["age", "hour", "device"]
[data.sensitive.segment]
values = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[data.sensitive.member]
values = [0, 1]
[privacy]
epsilon = 1.0
delta = 1e-8
[[problem]]
name = "click"
target = "click"
loss = "logistic"
l2 = 0.05
[fit]
num_steps = 4
"""


def generate(folder: Path, millions: int) -> None:
    for number in range(millions):
        rng = np.random.default_rng(number)
        size = 1_000_000
        segment = rng.integers(0, 10, size)
        member = rng.integers(0, 2, size)
        age = rng.normal(40, 12, size)
        chance = 1 / (1 + np.exp(-(0.3 * (segment - 4.5) + 0.5 * member + 0.02 * (age - 40) - 1)))
        table = pa.table(
            {
                "age": age.astype(np.float32),
                "hour": rng.uniform(0, 24, size).astype(np.float32),
                "device": np.array(["phone", "desktop", "tablet"])[rng.integers(0, 3, size)],
                "segment": segment.astype(np.int8),
                "member": member.astype(np.int8),
                "click": (rng.random(size) < chance).astype(np.int8),
            }
        )
        path = folder / f"part-{number:04d}.parquet"
        parquet.write_table(table, path, row_group_size=1 << 16)


def main() -> int:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        generate(folder, millions)
        (folder / "spec.toml").write_text(SPEC.format(folder=folder))
        started = time.perf_counter()
        code = "import sys; from pipeline.cli import main; sys.exit(main())"
        subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                "fit",
                str(folder / "spec.toml"),
                "--out",
                str(folder / "run"),
            ],
            check=True,
        )
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        metrics = json.loads((folder / "run" / "metrics.json").read_text())
    rows = [
        ("rows, million", str(millions), ""),
        ("seconds for prepare and fit", f"{seconds:.0f}", ""),
        ("seconds of the fit alone", f"{metrics['seconds']:.0f}", ""),
        ("passes", str(metrics["passes"]), ""),
        ("peak memory, GiB", f"{peak:.2f}", judged_at_most(peak, 2.0)),
    ]
    return 0 if report("A large fit on one machine", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
