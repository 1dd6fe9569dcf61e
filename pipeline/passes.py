"""One pass over the blocks, as Beam transforms.

Element in every pass: a block reference (names and checksums of files, no data). All work happens
in ``CombineFn.add_input``, so that a worker adds up its blocks before anything travels. What is
broadcast (queries, directions) travels as one file per pass, read once per process. Accumulators
are integers on a lattice: merge order does not matter.

Private and public passes are different transforms: :class:`EvaluatePrivately` takes
:class:`PrivateBlock` elements, which know where codes lie; all others take :class:`PublicBlock`,
which do not.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from pipeline import dataset, storage
from pipeline.blocks import pack, unpack
from ssdp_core import beliefs as belief_math
from ssdp_core.engine import BlockUnits, evaluate_block
from ssdp_core.exact_sums import Lattice
from ssdp_core.features import PublicRows
from ssdp_core.queries.base import LinearVectorQuery

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PublicBlock:
    """A block as public passes know it."""

    name: str
    num_rows: int
    public_path: str
    public_sha256: str


@dataclass(frozen=True)
class PrivateBlock(PublicBlock):
    """A block as private passes know it."""

    codes_path: str
    codes_hash: str


@dataclass(frozen=True)
class Update:
    """A step of the beliefs that has not been applied yet (Algorithm 1)."""

    query: LinearVectorQuery
    direction: Float64
    step: float
    truncation: float


@dataclass(frozen=True)
class Grid:
    """A log-partition question: a direction and a grid of steps."""

    query: LinearVectorQuery
    direction: Float64
    steps: Float64
    truncation: float


@dataclass(frozen=True)
class PassRequest:
    """What a pass broadcasts; all of it public.

    Attributes:
        num_codes: k.
        belief_folder: where belief versions lie: ``u{version}/{block}.block``.
        belief_version: version to start from; 0 is uniform and has no files.
        update: applied to every block first and written as the next version, if given.
        queries: evaluated on the (updated) beliefs.
        lattices: one per query.
        grid: log-partition question, if asked.
        sample_every: take every such row of the whole table into the row sample, if asked.
    """

    num_codes: int
    belief_folder: str
    belief_version: int = 0
    update: Update | None = None
    queries: tuple[LinearVectorQuery, ...] = ()
    lattices: tuple[Lattice, ...] = ()
    grid: Grid | None = None
    sample_every: int | None = None


def write_request(path: str, request: PassRequest) -> None:
    """Stores a request for the workers."""
    storage.write_bytes(path, pickle.dumps(request, protocol=5), private=True)


def _request(path: str) -> PassRequest:
    loaded: PassRequest = dataset.load_file(path, pickle.loads)
    return loaded


def belief_path(folder: str, version: int, block: str) -> str:
    """The file with one version of a block's beliefs."""
    return storage.join(folder, f"u{version}", f"{block}.block")


@functools.lru_cache(maxsize=4)  # almost all blocks have the same number of rows
def _uniform(num_rows: int, num_codes: int) -> Float32:
    return belief_math.uniform_beliefs(num_rows, num_codes)


def _load_beliefs(request: PassRequest, block: PublicBlock, version: int) -> Float32:
    if version == 0:
        return _uniform(block.num_rows, request.num_codes)
    path = belief_path(request.belief_folder, version, block.name)
    loaded: Float32 = dataset.load_file(path, lambda data: unpack(data)[0]["beliefs"])
    return loaded


def _current_beliefs(request: PassRequest, block: PublicBlock, rows: PublicRows) -> Float32:
    """The beliefs after the pending update, which is applied and stored on the way.

    The new version is a pure function of the old one: a retried or doubled block writes the same
    bytes to the same name.
    """
    beliefs = _load_beliefs(request, block, request.belief_version)
    if request.update is None:
        return beliefs
    update = request.update
    moved = beliefs.copy()
    belief_math.update_beliefs(
        moved,
        update.query,
        rows,
        direction=update.direction,
        step=update.step,
        truncation=update.truncation,
    )
    path = belief_path(request.belief_folder, request.belief_version + 1, block.name)
    storage.write_bytes(path, pack({"beliefs": moved}))
    return moved


def _public_rows(block: PublicBlock) -> PublicRows:
    return dataset.load_public(block.public_path, block.public_sha256)


class _SumBlocks(beam.CombineFn):
    """Adds up BlockUnits; subclasses say how one block is evaluated."""

    def __init__(self, request_path: str) -> None:
        self._request_path = request_path

    def _evaluate(self, request: PassRequest, block: Any) -> list[BlockUnits]:
        raise NotImplementedError("subclasses evaluate a block")

    def create_accumulator(self) -> list[BlockUnits]:
        return []

    def add_input(self, total: list[BlockUnits], block: Any) -> list[BlockUnits]:
        return _added(total, self._evaluate(_request(self._request_path), block))

    def merge_accumulators(self, totals: Iterable[list[BlockUnits]]) -> list[BlockUnits]:
        merged: list[BlockUnits] = []
        for total in totals:
            merged = _added(merged, total)
        return merged

    def extract_output(self, total: list[BlockUnits]) -> list[BlockUnits]:
        return total


def _added(total: list[BlockUnits], more: list[BlockUnits]) -> list[BlockUnits]:
    if not total:
        return more
    for into, unit in zip(total, more, strict=bool(more)):
        into.add(unit)
    return total


class _PublicSums(_SumBlocks):
    def _evaluate(self, request: PassRequest, block: PublicBlock) -> list[BlockUnits]:
        rows = _public_rows(block)
        beliefs = _current_beliefs(request, block, rows)
        return evaluate_block(request.queries, request.lattices, rows, beliefs, None)


class _PrivateSums(_SumBlocks):
    def _evaluate(self, request: PassRequest, block: PrivateBlock) -> list[BlockUnits]:
        rows = _public_rows(block)
        beliefs = _current_beliefs(request, block, rows)
        codes = dataset.load_codes(
            block.codes_path, block.codes_hash, block.num_rows, request.num_codes
        )
        return evaluate_block(request.queries, request.lattices, rows, beliefs, codes)


class _SumLogPartition(beam.CombineFn):
    """Log-partition values per block, kept apart so that the driver adds them in block order."""

    def __init__(self, request_path: str) -> None:
        self._request_path = request_path

    def create_accumulator(self) -> dict[str, Any]:
        return {}

    def add_input(self, parts: dict[str, Any], block: PublicBlock) -> dict[str, Any]:
        request = _request(self._request_path)
        rows = _public_rows(block)
        beliefs = _current_beliefs(request, block, rows)
        if request.grid is None:
            parts[block.name] = None
            return parts
        grid = request.grid
        parts[block.name] = belief_math.log_partition(
            beliefs,
            grid.query,
            rows,
            direction=grid.direction,
            steps=grid.steps,
            truncation=grid.truncation,
        )
        return parts

    def merge_accumulators(self, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in parts:
            merged.update(part)
        return merged

    def extract_output(self, parts: dict[str, Any]) -> dict[str, Any]:
        return parts


class _SampleRows(_SumLogPartition):
    """Every s-th row of the table with its beliefs, per block."""

    def add_input(self, parts: dict[str, Any], element: Any) -> dict[str, Any]:
        block, first_row = element
        request = _request(self._request_path)
        assert request.sample_every is not None  # the engine asks for a sample
        rows = _public_rows(block)
        beliefs = _current_beliefs(request, block, rows)
        chosen = np.arange(-first_row % request.sample_every, block.num_rows, request.sample_every)
        if chosen.size:
            parts[block.name] = (_take(rows, chosen), beliefs[chosen])
        return parts


def _take(rows: PublicRows, chosen: npt.NDArray[np.int64]) -> bytes:
    """The chosen public rows, packed."""
    from pipeline.blocks import pack_public

    assert rows.features is not None  # prepared rows have features
    return pack_public(
        PublicRows(
            num_rows=int(chosen.size),
            features=rows.features.take(chosen),
            columns={name: column[chosen] for name, column in rows.columns.items()},
        )
    )


class _Pass(beam.PTransform):
    """A pass with its request; subclasses choose the combiner."""

    def __init__(self, request_path: str) -> None:
        super().__init__()
        self._request_path = request_path


class EvaluatePrivately(_Pass):
    """PRIVATE. PrivateBlock elements -> one list of BlockUnits with exact sums."""

    def expand(self, blocks: Any) -> Any:
        return blocks | beam.CombineGlobally(_PrivateSums(self._request_path)).without_defaults()


class EvaluatePublicly(_Pass):
    """PublicBlock elements -> one list of BlockUnits without exact sums (also applies updates)."""

    def expand(self, blocks: Any) -> Any:
        return blocks | beam.CombineGlobally(_PublicSums(self._request_path)).without_defaults()


class LogPartition(_Pass):
    """PublicBlock elements -> one dict from block name to log-partition values."""

    def expand(self, blocks: Any) -> Any:
        return (
            blocks | beam.CombineGlobally(_SumLogPartition(self._request_path)).without_defaults()
        )


class SampleRows(_Pass):
    """(PublicBlock, its first row's number) -> one dict from block name to (rows, beliefs)."""

    def expand(self, blocks: Any) -> Any:
        return blocks | beam.CombineGlobally(_SampleRows(self._request_path)).without_defaults()


class WriteResult(beam.DoFn):
    """Stores the one result of a pass for the driver."""

    def __init__(self, path: str, private: bool) -> None:
        self._path = path
        self._private = private

    def process(self, element: Any) -> None:
        storage.write_bytes(self._path, pickle.dumps(element, protocol=5), private=self._private)


def public_blocks(folder: str, records: Sequence[dataset.BlockRecord]) -> list[PublicBlock]:
    """References for public passes."""
    return [
        PublicBlock(r.name, r.num_rows, dataset.public_path(folder, r.name), r.public_sha256)
        for r in records
    ]


def private_blocks(folder: str, records: Sequence[dataset.BlockRecord]) -> list[PrivateBlock]:
    """References for private passes."""
    return [
        PrivateBlock(
            r.name,
            r.num_rows,
            dataset.public_path(folder, r.name),
            r.public_sha256,
            dataset.private_path(folder, r.name),
            r.private_hash,
        )
        for r in records
    ]
