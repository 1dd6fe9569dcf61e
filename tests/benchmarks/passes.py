"""Full in-memory passes: private evaluation and update, against copying the bytes they move.

Peak memory is what the pass adds while it runs.
A private evaluation reads features (dense: 4 bytes an entry, the tile stays in cache for the second
use; sparse: 8 bytes), beliefs (4 bytes a cell), targets, norms and codes (20 bytes a row). An
update reads features and reads and writes beliefs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from timing import interleaved, judged_at_most, report

from ssdp_core.domain import PrivateFeatures
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows
from ssdp_core.losses import LogisticLoss
from ssdp_core.problems import LinearErm, Problem, PublicTarget

CODES = 20
CASES = ("dense", "hashed")


class PeakMemory:
    """What resident memory grows by while the block runs, sampled every millisecond."""

    added = 0

    def __enter__(self):
        self._stop = threading.Event()
        self._before = self._resident()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    @staticmethod
    def _resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def _watch(self):
        while not self._stop.wait(0.001):
            self.added = max(self.added, self._resident() - self._before)


def make(case):
    rng = np.random.default_rng(0)
    if case == "dense":
        rows, columns = 1_000_000, 100
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        values *= np.float32(0.07)
        features = DenseFeatures(values)
        feature_bytes = values.nbytes
    else:
        rows, columns, per_row = 200_000, 1 << 20, 30
        # Distinct columns, rising within a row: one from each of 30 equal ranges.
        width = columns // per_row
        indices = rng.integers(0, width, (rows, per_row)) + np.arange(per_row) * width
        data = np.full(rows * per_row, 0.13, dtype=np.float32)
        features = CsrFeatures(
            data, indices.reshape(-1), np.arange(0, rows * per_row + 1, per_row), columns
        )
        feature_bytes = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes
    targets = rng.integers(0, 2, rows).astype(np.float64)
    table = PublicRows(num_rows=rows, features=features, columns={"t": targets})
    codes = rng.integers(0, CODES, rows).astype(np.int32)
    return table, codes, feature_bytes


def measure(case):
    table, codes, feature_bytes = make(case)
    engine = InMemoryEngine(table, codes, num_codes=CODES)
    problem = Problem(name="p", loss=LogisticLoss(), target=PublicTarget(column="t"), radius=10.0)
    erm = LinearErm.from_rows(problem, table, PrivateFeatures.from_matrix(np.eye(CODES) * 0.7))
    weights = np.random.default_rng(1).normal(size=erm.num_weights)
    weights *= 3.0 / np.linalg.norm(weights)
    query = erm.query(weights)
    direction = np.random.default_rng(2).normal(size=erm.num_weights)
    direction /= np.linalg.norm(direction)
    belief_bytes = engine.beliefs.nbytes
    row_bytes = 20 * table.num_rows
    moved = {
        "evaluate": feature_bytes + belief_bytes + row_bytes,
        "update": feature_bytes + 2 * belief_bytes + row_bytes,
    }
    started = time.perf_counter()
    engine.evaluate_private([query])
    engine.update(query, direction, step=0.01, truncation=3.0)
    first = time.perf_counter() - started
    with PeakMemory() as memory:
        engine.evaluate_private([query])
        engine.update(query, direction, step=0.01, truncation=3.0)
    buffers = {
        name: (np.ones(size // 2, np.uint8), np.ones(size // 2, np.uint8))
        for name, size in moved.items()
    }
    seconds = interleaved(
        {
            "evaluate": lambda: engine.evaluate_private([query]),
            "update": lambda: engine.update(query, direction, step=0.01, truncation=3.0),
            "copy evaluate": lambda: np.copyto(*buffers["evaluate"]),
            "copy update": lambda: np.copyto(*buffers["update"]),
        },
        rounds=7,
    )
    n = table.num_rows
    held = feature_bytes + row_bytes + belief_bytes + weights.nbytes
    overhead = (held + memory.added) / held
    rows = []
    for name in ("evaluate", "update"):
        rows += [
            (f"{name}: seconds", f"{seconds[name]:.3f}", ""),
            (f"{name}: Mrows/s", f"{n / seconds[name] / 1e6:.2f}", ""),
            (f"{name}: Gcells/s", f"{n * CODES / seconds[name] / 1e9:.2f}", ""),
            (f"{name}: GB moved", f"{moved[name] / 1e9:.2f}", ""),
            (
                f"{name}: time against copying the same bytes",
                f"{seconds[name] / seconds[f'copy {name}']:.1f}",
                "",
            ),
        ]
    rows += [
        ("first pass with compilation or cache load, seconds", f"{first:.1f}", ""),
        (
            "peak memory against data, beliefs and weights",
            f"{overhead:.2f}",
            judged_at_most(overhead, 1.5),
        ),
    ]
    size = f"n = {n:,}, k = {CODES}, d = {table.features.num_columns:,}"
    return 0 if report(f"In-memory pass, {case}, {size}", rows) else 1


def main() -> int:
    if len(sys.argv) > 1:
        return measure(sys.argv[1])
    # Peak memory is a property of a process, so each case gets its own.
    return max(subprocess.run([sys.executable, __file__, case]).returncode for case in CASES)


if __name__ == "__main__":
    sys.exit(main())
