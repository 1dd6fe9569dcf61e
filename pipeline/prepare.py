"""Table -> blocks, in two Beam pipelines: statistics of public columns, then the blocks.

1. *Scan*: every worker reads public columns of its part and keeps mergeable statistics; counts of
   rows
   per privacy unit if the specification declares one. The driver fixes the encoding from them.
2. *Write*: every worker reads its part again with the sensitive columns, encodes both sides and
   writes
   two files per block, public and private. The manifest is written last, so a folder with a
   manifest is complete.

Sensitive columns are used in the second pipeline only and leave it as codes in owner-only files.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import numpy as np

from pipeline import dataset, storage, tables
from pipeline.blocks import BlockError, pack, pack_public
from pipeline.dataset import BlockRecord, Manifest
from pipeline.encode import EncoderPlan, statistics_for
from pipeline.launch import Launcher, own_error
from pipeline.spec import Spec, UnitSpec
from pipeline.tables import ReadTask, TableError
from ssdp_core.features import PublicRows
from ssdp_core.problems import PublicTarget

Report = Callable[[str], None]


def prepare(spec: Spec, folder: str, launcher: Launcher, report: Report) -> Manifest:
    """Prepares a dataset, unless ``folder`` already holds it; returns its manifest."""
    columns = (*spec.public_columns(), *spec.sensitive_columns())
    files = tables.open_table(spec.data.path, columns)
    facts = dataset_facts(spec, [file.path for file in files])
    existing = _existing(folder, report)
    if existing is not None and existing.digest == dataset_digest(folder, facts):
        report(f"prepared dataset {folder} is up to date: {existing.num_rows:,} rows")
        return existing
    if existing is not None:
        report(f"the input has changed: preparing {folder} again")
    _clear(folder)
    storage.write_bytes(dataset.salt_path(folder), secrets.token_bytes(32), private=True)

    tasks = tables.tasks_of(files, spec.data.block_rows)
    try:
        plan = _scan(spec, tasks, folder, launcher)
        records = _write(spec, plan, tasks, folder, launcher)
    except Exception as error:
        known = own_error(error)
        if known is None:
            raise
        # Without the runner's chain of wrappers, which repeats the sentence many times.
        raise TableError(str(known).split(" [while running")[0]) from None
    if facts != dataset_facts(spec, [file.path for file in files]):
        raise TableError("the input has changed while it was prepared: run again when it is still")
    if not records:
        raise TableError(f"the table is empty: {files[0].path} has no rows")
    records.sort(key=lambda record: str(record["name"]))
    manifest = Manifest(
        digest=dataset_digest(folder, facts),
        num_rows=sum(int(record["num_rows"]) for record in records),
        num_codes=spec.domain().num_codes,
        block_rows=spec.data.block_rows,
        num_features=plan.num_columns,
        feature_norm=max(float(record["feature_norm"]) for record in records),
        target_bounds={
            name: max(float(record["target_bounds"][name]) for record in records)
            for name in spec.public_targets()
        },
        blocks=tuple(
            BlockRecord(
                name=record["name"],
                num_rows=record["num_rows"],
                public_sha256=record["public_sha256"],
                private_hash=record["private_hash"],
            )
            for record in records
        ),
        encoder=plan.to_json(),
    )
    storage.write_bytes(dataset.manifest_path(folder), manifest.to_json().encode())
    report(f"prepared {manifest.num_rows:,} rows in {len(manifest.blocks)} blocks")
    return manifest


def _existing(folder: str, report: Report) -> Manifest | None:
    """The manifest of an earlier preparation, if it can be used."""
    try:
        manifest = dataset.load_manifest(folder)
        return manifest if storage.exists(dataset.salt_path(folder)) else None
    except (BlockError, KeyError, TypeError, ValueError):
        report(f"{dataset.manifest_path(folder)} cannot be used: preparing {folder} again")
        return None


def _clear(folder: str) -> None:
    """Removes an earlier preparation, complete or not, but nothing else."""
    for side in ("public", "private"):
        for name in storage.list_files(storage.join(folder, side)):
            if not name.endswith(".block") and (side, name) != ("private", "salt"):
                raise TableError(
                    f"{storage.join(folder, side, name)} is no file of a prepared dataset: choose "
                    "another folder as [data] prepared, or move that file away"
                )
    # The manifest goes first and comes last: a folder that has one is complete.
    storage.delete(dataset.manifest_path(folder))
    for name in ("scan-result", "write-result"):
        storage.delete(storage.join(folder, name))
    storage.delete_folder(storage.join(folder, "public"))
    storage.delete_folder(storage.join(folder, "private"))
    storage.make_folder(storage.join(folder, "private"), private=True)
    storage.remove_temporary_files(folder)


def dataset_facts(spec: Spec, paths: list[str]) -> bytes:
    """PRIVATE. The inputs' content (hashed) and everything about their preparation."""
    facts = {
        "format": dataset.FORMAT,
        "inputs": {path: storage.sha256_of(path) for path in paths},
        "data": repr(spec.data),
        "targets": sorted((p.target, p.loss, p.num_classes or 0) for p in spec.problem_specs),
    }
    return json.dumps(facts, sort_keys=True).encode()


def dataset_digest(folder: str, facts: bytes) -> str:
    """Identifies a dataset without telling anything about it: keyed with its salt."""
    return dataset.keyed_hash(dataset.read_salt(folder), facts)


def _scan(spec: Spec, tasks: list[ReadTask], folder: str, launcher: Launcher) -> EncoderPlan:
    statistics, units = launcher.run(
        lambda pipeline: (
            pipeline
            | "Parts" >> beam.Create(tasks)
            | "ScanColumns" >> beam.CombineGlobally(ScanColumns(spec)).without_defaults()
        ),
        storage.join(folder, "scan-result"),
        private=True,
    )
    if spec.data.unit is not None:
        _check_units(spec.data.unit, units)
    return EncoderPlan.fit(spec, statistics)


def _write(
    spec: Spec, plan: EncoderPlan, tasks: list[ReadTask], folder: str, launcher: Launcher
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = launcher.run(
        lambda pipeline: (
            pipeline
            | "Parts" >> beam.Create(tasks)
            | "WriteBlocks"
            >> beam.CombineGlobally(WriteBlocks(spec, plan, folder)).without_defaults()
        ),
        storage.join(folder, "write-result"),
        private=True,
    )
    return records


def _count_units(entries: Any, units: Counter[str]) -> None:
    """Counts rows per unit; the name says the type too, so that files which disagree show up."""
    for unit, count in Counter(entries.tolist()).items():
        if unit is None or unit != unit:
            units["null:"] += count
        elif isinstance(unit, (int, float)) and not isinstance(unit, bool):
            whole = isinstance(unit, int) or unit.is_integer()
            units[f"number:{int(unit) if whole else unit!r}"] += count
        else:
            units[f"{type(unit).__name__}:{unit}"] += count


def _check_units(spec: UnitSpec, units: Counter[str]) -> None:
    """One type in all files and no nulls, or one unit might be counted as several."""
    kinds = {name.partition(":")[0] for name in units}
    if "null" in kinds:
        raise TableError(f"unit column {spec.column!r} must have no nulls: drop those rows first")
    if len(kinds) > 1:
        raise TableError(
            f"unit column {spec.column!r} must have one type in all files, found "
            f"{' and '.join(sorted(kinds))}: convert the files"
        )
    largest = max(units.values(), default=0)
    if largest > spec.max_rows:
        raise TableError(
            f"a privacy unit of column {spec.column!r} has {largest} rows, but [data.unit] "
            f"max_rows is {spec.max_rows}: raise max_rows (more noise) or drop rows first"
        )


class ScanColumns(beam.CombineFn):
    """ReadTask elements -> (statistics by public feature, rows per unit)."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def create_accumulator(self) -> tuple[Any, Counter[str]]:
        return statistics_for(self._spec), Counter()

    def add_input(self, total: tuple[Any, Counter[str]], task: ReadTask) -> Any:
        statistics, units = total
        spec = self._spec
        names = spec.public_columns()
        texts = {name: known for name, known in tables.csv_texts(spec).items() if name in names}
        for _, columns in tables.read_blocks(task, names, spec.data.block_rows, texts=texts):
            for name, column in statistics.items():
                column.update(columns[name])
            if spec.data.unit is not None:
                _count_units(columns[spec.data.unit.column], units)
        return statistics, units

    def merge_accumulators(self, totals: Iterable[tuple[Any, Counter[str]]]) -> Any:
        statistics, units = self.create_accumulator()
        for other, other_units in totals:
            for name, column in statistics.items():
                column.merge(other[name])
            units.update(other_units)
        return statistics, units

    def extract_output(self, total: Any) -> Any:
        return total


class WriteBlocks(beam.CombineFn):
    """ReadTask elements -> one list of block records; writes the block files on the way."""

    def __init__(self, spec: Spec, plan: EncoderPlan, folder: str) -> None:
        self._spec = spec
        self._plan = plan
        self._folder = folder

    def create_accumulator(self) -> list[dict[str, Any]]:
        return []

    def add_input(self, records: list[dict[str, Any]], task: ReadTask) -> list[dict[str, Any]]:
        spec = self._spec
        columns = (*spec.public_columns(), *spec.sensitive_columns())
        domain = spec.domain()
        salt = dataset.read_salt(self._folder)
        for name, arrays in tables.read_blocks(
            task,
            columns,
            spec.data.block_rows,
            tables.csv_texts(spec),
            tables.sensitive_columns(spec),
        ):
            rows = public_rows(spec, self._plan, arrays)
            codes = domain.encode(arrays)
            public, private = pack_public(rows), pack({"codes": codes})
            storage.write_bytes(dataset.public_path(self._folder, name), public)
            storage.write_bytes(dataset.private_path(self._folder, name), private, private=True)
            assert rows.features is not None  # the encoder always gives features
            records.append(
                {
                    "name": name,
                    "num_rows": rows.num_rows,
                    "public_sha256": dataset.sha256(public),
                    "private_hash": dataset.keyed_hash(salt, private),
                    "feature_norm": math.sqrt(float(rows.features.squared_norms().max())),
                    "target_bounds": {
                        target: float(np.abs(rows.column(target).astype(np.float64)).max())
                        for target in spec.public_targets()
                    },
                }
            )
        return records

    def merge_accumulators(self, totals: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [record for total in totals for record in total]

    def extract_output(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return records


def public_rows(spec: Spec, plan: EncoderPlan, arrays: tables.Columns) -> PublicRows:
    """Encodes the public side of a block: features, and public targets as the losses want them."""
    num_rows = len(next(iter(arrays.values())))
    targets = {}
    for problem in spec.problems(spec.domain()):
        if not isinstance(problem.target, PublicTarget):
            continue
        name = problem.target.column
        targets[name] = tables.target_column(arrays[name], name, problem.loss)
    return PublicRows(
        num_rows=num_rows, features=plan.encode(arrays, num_rows=num_rows), columns=targets
    )
