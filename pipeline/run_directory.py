"""What a run leaves behind, and what it needs while it runs.

spec.toml         the specification as resolved
models.json       names, weights, intercepts
privacy.json      relation, epsilon, delta, budget, every charge, mechanism parameters
metrics.json      passes, jobs, seconds
journal.jsonl     every release, append-only
releases/         long released vectors of the journal
run.json          where the prepared dataset is, seed, Beam options
work/             while running: requests, results, beliefs, solver state, noise key (owner only)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.blocks import pack, unpack
from pipeline.run_lock import LOCK_NAME
from ssdp_core.errors import SsdpError
from ssdp_core.noise import NoiseSource


class RunDirectoryError(SsdpError):
    """A run directory is not what the command needs."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a resume must know besides the specification."""

    prepared: str
    seed: int | None
    beam_options: tuple[str, ...]
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state at the end of a round: public numbers only.

    Attributes:
        solver: arrays of the solver.
        counts: of the answerer, plus ``belief_version``, passes and launches so far.
    """

    solver: dict[str, npt.NDArray[np.float64]]
    counts: dict[str, int]


class RunDirectory:
    """Paths and files of one run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, *names: str) -> str:
        """The path of something in the run directory."""
        return storage.join(self.path, *names)

    @property
    def work(self) -> str:
        """The folder of everything that goes when the run is done."""
        return self.file("work")

    @property
    def journal(self) -> str:
        """The journal's path."""
        return self.file("journal.jsonl")

    def claim(self) -> None:
        """Makes the directory of a new run; an error if it holds anything."""
        self._require_empty()
        storage.make_folder(self.path)

    def _require_empty(self) -> None:
        """Allows what a start leaves that was killed before ``run.json``, and nothing else."""
        begun = {LOCK_NAME, "spec.toml", "work/noise.key"} if storage.exists(self.work) else set()
        if not set(storage.list_files(self.path)) <= begun | {LOCK_NAME}:
            raise RunDirectoryError(
                f"{self.path} is not empty: choose another --out, or continue the run in it with "
                f"'ssdp resume {self.path}'"
            )

    def create(self, spec_toml: str, facts: RunFacts, noise_key: bytes | None) -> None:
        """Starts a run in a claimed directory, under its lock; ``run.json`` comes last."""
        self._require_empty()  # again: another start may have been faster
        storage.delete_folder(self.work)
        storage.remove_temporary_files(self.path)
        storage.make_folder(self.work, private=True)
        if noise_key is not None:
            storage.write_bytes(self._key_path, noise_key, private=True)
        storage.write_bytes(self.file("spec.toml"), spec_toml.encode())
        self.write_json("run.json", asdict(facts))

    def facts(self) -> RunFacts:
        """What :meth:`create` stored."""
        fields = self.read_json("run.json")
        fields["beam_options"] = tuple(fields["beam_options"])
        return RunFacts(**fields)

    @property
    def _key_path(self) -> str:
        return storage.join(self.work, "noise.key")

    def noise(self, seed: int | None) -> NoiseSource:
        """The run's noise: from its seed, or from the key that only this run knows."""
        if seed is not None:
            return NoiseSource.seeded(seed)
        return NoiseSource(storage.read_bytes(self._key_path), is_private=True)

    def clean_passes(self) -> None:
        """Removes what an interrupted pass left: requests, and results with exact sums."""
        storage.delete_folder(storage.join(self.work, "passes"))
        storage.remove_temporary_files(self.path)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Stores the state after a round, whole or not at all; the one before it is dropped."""
        number = int(checkpoint.solver["round"][0])
        storage.write_bytes(
            self._checkpoint_path(number), pack(checkpoint.solver, **checkpoint.counts)
        )
        storage.delete(self._checkpoint_path(number - 2))

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest stored state, or None before the end of the first round."""
        names = [n for n in storage.list_files(self.file("work", "state")) if n.endswith(".block")]
        if not names:
            return None
        solver, counts = unpack(storage.read_bytes(self.file("work", "state", max(names))))
        return Checkpoint(solver=solver, counts=counts)

    def _checkpoint_path(self, number: int) -> str:
        return self.file("work", "state", f"round-{number:08d}.block")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file, atomically."""
        storage.write_bytes(self.file(name), (json.dumps(content, indent=1) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Reads a JSON file of the run."""
        if not storage.exists(self.file(name)):
            raise RunDirectoryError(f"{self.path} has no {name}: it is not a run of ssdp fit")
        content: dict[str, Any] = json.loads(storage.read_bytes(self.file(name)))
        return content

    def finish(self) -> None:
        """Removes everything that only a running fit needs."""
        storage.delete_folder(self.work)
