"""The engine on Beam: the same passes as in memory, one pipeline each, on data of any size.

Updates of the beliefs are lazy: :meth:`BeamEngine.update` only notes them, and the next pass
applies them on the way, so that update and evaluation are one launch. Beliefs are versioned files,
written once; a resumed run sets ``belief_version`` back to the one it knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from pipeline import dataset, passes, storage
from pipeline.blocks import unpack_public
from pipeline.dataset import Manifest
from pipeline.launch import Launcher
from ssdp_core.engine import BlockUnits, Evaluation
from ssdp_core.exact_sums import Lattice
from ssdp_core.features import PublicRows
from ssdp_core.queries.base import LinearVectorQuery

Float64 = npt.NDArray[np.float64]


class BeamEngine:
    """Passes over a prepared dataset as Beam pipelines.

    Args:
        launcher: runs pipelines.
        manifest: of the prepared dataset.
        prepared_folder: where its blocks lie.
        work_folder: for requests, results and beliefs of this run.
        run_id: unique to the run, the same after a resume.
    """

    def __init__(
        self,
        launcher: Launcher,
        manifest: Manifest,
        prepared_folder: str,
        work_folder: str,
        *,
        run_id: str,
    ) -> None:
        self._launcher = launcher
        self._manifest = manifest
        self._public = passes.public_blocks(prepared_folder, manifest.blocks)
        self._private = passes.private_blocks(prepared_folder, manifest.blocks)
        # Workers may outlive this driver and cache by name: no name is ever used twice.
        self._pass_folder = storage.join(work_folder, "passes", secrets.token_hex(8))
        self._belief_folder = storage.join(work_folder, "beliefs", run_id)
        self._pending: passes.Update | None = None
        self._belief_version = 0
        self.num_passes = 0
        self.num_private_passes = 0

    @property
    def num_rows(self) -> int:
        """Number n of rows."""
        return self._manifest.num_rows

    @property
    def num_codes(self) -> int:
        """Size k of the private domain."""
        return self._manifest.num_codes

    def evaluate_private(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """PRIVATE pass; see :class:`ssdp_core.engine.Engine`."""
        self.num_private_passes += 1
        return self._evaluate(queries, passes.EvaluatePrivately, self._private, private=True)

    def evaluate_public(self, queries: Sequence[LinearVectorQuery]) -> list[Evaluation]:
        """Public pass; see :class:`ssdp_core.engine.Engine`."""
        return self._evaluate(queries, passes.EvaluatePublicly, self._public, private=False)

    def update(
        self, query: LinearVectorQuery, direction: Float64, *, step: float, truncation: float
    ) -> None:
        """Notes an update for the next pass; see :class:`ssdp_core.engine.Engine`."""
        self.flush()
        self._pending = passes.Update(query, direction, step, truncation)

    def flush(self) -> None:
        """Applies a noted update now, in a pass of its own."""
        if self._pending is not None:
            self._run(passes.EvaluatePublicly, self._public, private=False)

    def log_partition(
        self, query: LinearVectorQuery, direction: Float64, steps: Float64, *, truncation: float
    ) -> Float64:
        """Public pass; see :class:`ssdp_core.engine.Engine`."""
        grid = passes.Grid(query, direction, steps, truncation)
        parts = self._run(passes.LogPartition, self._public, private=False, grid=grid)
        total = np.sum([parts[block.name] for block in self._public], axis=0)
        return np.asarray(total / self.num_rows)

    def sample_rows(self, every: int) -> tuple[list[PublicRows], npt.NDArray[np.float32]]:
        """Public pass: every ``every``-th row (by block) and their beliefs."""
        starts = np.concatenate([[0], np.cumsum([block.num_rows for block in self._public])])
        elements = list(zip(self._public, starts.tolist()[:-1], strict=True))
        parts = self._run(passes.SampleRows, elements, private=False, sample_every=every)
        names = sorted(parts)
        rows = [unpack_public(parts[name][0]) for name in names]
        return rows, np.concatenate([parts[name][1] for name in names])

    def save_state(self) -> int:
        """Makes sure that no update is pending; returns the version of the beliefs."""
        self.flush()
        return self._belief_version

    def restore_state(self, belief_version: int) -> None:
        """Goes back to a version of the beliefs."""
        self._pending = None
        self._belief_version = belief_version

    def drop_versions_before(self, version: int) -> None:
        """Deletes belief files that no resume will need."""
        for old in range(max(1, version - 4), version):
            for block in self._public:
                path = passes.belief_path(self._belief_folder, old, block.name)
                dataset.forget(path)
            storage.delete_folder(storage.join(self._belief_folder, f"u{old}"))

    def _evaluate(
        self,
        queries: Sequence[LinearVectorQuery],
        transform: Any,
        blocks: Sequence[passes.PublicBlock],
        *,
        private: bool,
    ) -> list[Evaluation]:
        lattices = tuple(Lattice.for_sum(self.num_rows, query.norm_bound) for query in queries)
        totals: list[BlockUnits] = self._run(
            transform, blocks, private=private, queries=tuple(queries), lattices=lattices
        )
        largest = max(block.num_rows for block in self._public)
        return [
            total.as_evaluation(query, lattice, largest)
            for total, query, lattice in zip(totals, queries, lattices, strict=True)
        ]

    def _run(self, transform: Any, elements: Sequence[Any], *, private: bool, **wanted: Any) -> Any:
        """One launch: request file out, pipeline, result file in."""
        self.num_passes += 1
        folder = storage.join(self._pass_folder, f"{self.num_passes:06d}")
        request_path = storage.join(folder, "request")
        request = passes.PassRequest(
            num_codes=self.num_codes,
            belief_folder=self._belief_folder,
            belief_version=self._belief_version,
            update=self._pending,
            **wanted,
        )
        passes.write_request(request_path, request)
        try:
            result = self._launcher.run(
                lambda pipeline: (
                    pipeline | "Blocks" >> beam.Create(list(elements)) | transform(request_path)
                ),
                storage.join(folder, "result"),
                private=private,
            )
        finally:
            dataset.forget(request_path)
            storage.delete_folder(folder)
        if self._pending is not None:
            self._pending = None
            self._belief_version += 1
        return result
