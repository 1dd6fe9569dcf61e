"""What Beam costs: one private pass through pipelines against the same pass in memory.

n = 1,000,000, k = 20, d = 100 dense, 16 blocks in the worker's cache. Targets: at most 1.2 times
the in-memory pass plus 0.35 s, and two workers at least 1.6 times as fast as one (without the
launch, which does not get faster: a launch over as many tiny blocks is
subtracted from both).
"""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np
from timing import interleaved, judged, judged_at_most, report

os.environ["SSDP_CACHE_BYTES"] = str(4 << 30)

from pipeline import dataset, storage
from pipeline.beam_engine import BeamEngine
from pipeline.blocks import pack, pack_public
from pipeline.dataset import BlockRecord, Manifest
from pipeline.launch import Launcher
from ssdp_core.domain import PrivateFeatures
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.losses import LogisticLoss
from ssdp_core.problems import LinearErm, Problem, PublicTarget

ROWS, COLUMNS, CODES, BLOCK = 1_000_000, 100, 20, 65_536
SALT = b"s" * 32


def store(folder, rows, codes, block=BLOCK):
    records = []
    storage.write_bytes(dataset.salt_path(folder), SALT, private=True)
    for number, start in enumerate(range(0, rows.num_rows, block)):
        stop = min(start + block, rows.num_rows)
        public = pack_public(rows.rows(start, stop))
        private = pack({"codes": codes[start:stop]})
        name = f"000000-{number:06d}"
        storage.write_bytes(dataset.public_path(folder, name), public)
        storage.write_bytes(dataset.private_path(folder, name), private, private=True)
        checks = dataset.sha256(public), dataset.keyed_hash(SALT, private)
        records.append(
            BlockRecord(
                name=name,
                num_rows=stop - start,
                public_sha256=checks[0],
                private_hash=checks[1],
            )
        )
    return Manifest(
        digest="benchmark",
        num_rows=rows.num_rows,
        num_codes=CODES,
        block_rows=block,
        num_features=rows.features.num_columns,
        feature_norm=float(np.sqrt(rows.features.squared_norms().max())),
        target_bounds={"t": 1.0},
        blocks=tuple(records),
        encoder="{}",
    )


def make(num_rows):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((num_rows, COLUMNS), dtype=np.float32) * np.float32(0.07)
    rows = PublicRows(
        num_rows=num_rows,
        features=DenseFeatures(values),
        columns={"t": rng.integers(0, 2, num_rows).astype(float)},
    )
    return rows, rng.integers(0, CODES, num_rows).astype(np.int32)


def main() -> int:
    rows, codes = make(ROWS)
    few, few_codes = make(64)
    problem = Problem(name="p", loss=LogisticLoss(), target=PublicTarget(column="t"), radius=10.0)
    erm = LinearErm.from_rows(problem, rows, PrivateFeatures.from_matrix(np.eye(CODES) * 0.7))
    weights = np.random.default_rng(1).normal(size=erm.num_weights)
    query = erm.query(weights * 3.0 / np.linalg.norm(weights))
    with tempfile.TemporaryDirectory() as folder:
        manifest = store(f"{folder}/p", rows, codes)
        tiny = store(f"{folder}/tiny", few, few_codes, block=4)  # as many blocks

        def beam(workers, which, name):
            launcher = Launcher([f"--direct_num_workers={workers}"])
            return BeamEngine(
                launcher, which, f"{folder}/{name}", f"{folder}/w{workers}{name}", run_id="r"
            )

        engines = {
            "memory, 1": InMemoryEngine(rows, codes, num_codes=CODES, num_threads=1),
            "memory, 2": InMemoryEngine(rows, codes, num_codes=CODES, num_threads=2),
            "beam, 1": beam(1, manifest, "p"),
            "beam, 2": beam(2, manifest, "p"),
            "launch, 1": beam(1, tiny, "tiny"),
            "launch, 2": beam(2, tiny, "tiny"),
        }
        seconds = interleaved(
            {
                name: (lambda engine=engine: engine.evaluate_private([query]))
                for name, engine in engines.items()
            },
            rounds=5,
            repeats=2,
        )
    allowed = 1.2 * seconds["memory, 2"] + 0.35
    gain = (seconds["beam, 1"] - seconds["launch, 1"]) / max(
        seconds["beam, 2"] - seconds["launch, 2"], 1e-9
    )
    lines = [(f"{name}: seconds", f"{value:.3f}", "") for name, value in seconds.items()]
    lines += [
        (
            "beam, 2 workers, against 1.2 x memory + 0.35 s",
            f"{seconds['beam, 2'] / allowed:.2f}",
            judged_at_most(seconds["beam, 2"] / allowed, 1.0),
        ),
        ("two workers against one, launch subtracted", f"{gain:.2f}", judged(gain, 1.6)),
    ]
    return 0 if report(f"Beam overhead, n = {ROWS:,}, k = {CODES}, d = {COLUMNS}", lines) else 1


if __name__ == "__main__":
    sys.exit(main())
