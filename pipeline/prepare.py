"""Table -> blocks, in two Beam pipelines: statistics of public columns, then the blocks.

1. *Scan*: every worker reads public columns of its part and keeps mergeable statistics; counts of
   rows
   per privacy unit if the specification declares one. The driver fixes the encoding from them.
2. *Write*: every worker reads its part again with the sensitive columns, encodes both sides and
   writes
   two files per block, public and private. The manifest is written last, so a folder with a
   manifest is complete.

Sensitive columns are read in the second pipeline only and leave it as codes in owner-only files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
import numpy as np

from pipeline import dataset, storage, tables
from pipeline.blocks import pack, pack_public
from pipeline.dataset import BlockRecord, Manifest
from pipeline.encode import EncoderPlan, statistics_for
from pipeline.launch import Launcher, own_error
from pipeline.spec import Spec
from pipeline.tables import ReadTask, TableError
from ssdp_core.features import PublicRows
from ssdp_core.losses import MultinomialLoss
from ssdp_core.problems import PublicTarget

Report = Callable[[str], None]


def prepare(spec: Spec, folder: str, launcher: Launcher, report: Report) -> Manifest:
    """Prepares a dataset, unless ``folder`` already holds it; returns its manifest."""
    columns = (*spec.public_columns(), *spec.sensitive_columns())
    files = tables.open_table(spec.data.path, columns)
    digest = dataset_digest(spec, [file.path for file in files])
    existing = dataset.load_manifest(folder)
    if existing is not None and existing.digest == digest:
        report(f"prepared dataset {folder} is up to date: {existing.num_rows:,} rows")
        return existing
    if existing is not None:
        report(f"the input has changed: preparing {folder} again")
    # The manifest goes first and comes last: a folder that has one is complete.
    storage.delete(dataset.manifest_path(folder))
    storage.delete_folder(storage.join(folder, "public"))
    storage.delete_folder(storage.join(folder, "private"))
    storage.make_folder(storage.join(folder, "private"), private=True)

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
    if not records:
        raise TableError(f"the table is empty: {files[0].path} has no rows")
    records.sort(key=lambda record: str(record["name"]))
    manifest = Manifest(
        digest=digest,
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
                private_sha256=record["private_sha256"],
            )
            for record in records
        ),
        encoder=plan.to_json(),
    )
    storage.write_bytes(dataset.manifest_path(folder), manifest.to_json().encode())
    report(f"prepared {manifest.num_rows:,} rows in {len(manifest.blocks)} blocks")
    return manifest


def dataset_digest(spec: Spec, paths: list[str]) -> str:
    """Identifies the inputs' content and everything about their preparation."""
    facts = {
        "format": dataset.FORMAT,
        "inputs": {path: storage.sha256_of(path) for path in paths},
        "data": repr(spec.data),
        "targets": sorted((p.target, p.loss, p.num_classes or 0) for p in spec.problem_specs),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


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
        largest = max(units.values(), default=0)
        if largest > spec.data.unit.max_rows:
            raise TableError(
                f"a privacy unit of column {spec.data.unit.column!r} has {largest} rows, but "
                f"[data.unit] max_rows is {spec.data.unit.max_rows}: raise max_rows (more noise) "
                "or drop rows first"
            )
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


def _numeric(spec: Spec) -> list[str]:
    """Sensitive columns whose declared values are all numbers: CSV must read them as such."""
    return [
        column.column
        for column in spec.data.sensitive
        if column.edges is not None
        or all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in column.values or ())
    ]


class ScanColumns(beam.CombineFn):
    """ReadTask elements -> (statistics by public feature, rows per unit)."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def create_accumulator(self) -> tuple[Any, Counter[str]]:
        return statistics_for(self._spec), Counter()

    def add_input(self, total: tuple[Any, Counter[str]], task: ReadTask) -> Any:
        statistics, units = total
        spec = self._spec
        for _, columns in tables.read_blocks(task, spec.public_columns(), spec.data.block_rows):
            for name, column in statistics.items():
                column.update(columns[name])
            if spec.data.unit is not None:
                names, counts = np.unique(
                    columns[spec.data.unit.column].astype(str), return_counts=True
                )
                units.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
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
        for name, arrays in tables.read_blocks(task, columns, spec.data.block_rows, _numeric(spec)):
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
                    "private_sha256": dataset.sha256(private),
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
        column = arrays[name]
        if column.dtype == object and all(isinstance(entry, bool) for entry in column):
            column = column.astype(np.float64)
        if column.dtype == object:
            raise TableError(
                f"target column {name!r} must hold numbers without nulls, found text or nulls"
            )
        if np.isnan(column).any():
            raise TableError(f"target column {name!r} must have no nulls: drop those rows first")
        if isinstance(problem.loss, MultinomialLoss):
            column = column.astype(np.int32) if (column == np.rint(column)).all() else column
        problem.loss.validate_targets(column, f"target column {name!r}")
        targets[name] = column
    return PublicRows(
        num_rows=num_rows, features=plan.encode(arrays, num_rows=num_rows), columns=targets
    )
