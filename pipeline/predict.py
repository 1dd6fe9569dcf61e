"""Scores of fitted models on a table, and their non-private risk on a held-out one."""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pipeline import storage, tables
from pipeline.encode import EncoderPlan
from pipeline.models import Model, read_models
from pipeline.run_directory import RunDirectory, RunDirectoryError
from pipeline.spec import Spec, load_spec
from ssdp_core.columns import Value
from ssdp_core.domain import PrivateDomain, PrivateFeatures
from ssdp_core.losses import MultinomialLoss
from ssdp_core.problems import PrivateTarget, Problem

Float64 = npt.NDArray[np.float64]
_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class Score:
    """How a model does on a table: mean loss, and accuracy for classification (else None)."""

    name: str
    loss: str
    num_rows: int
    mean_loss: float
    accuracy: float | None


class Predictor:
    """The models of a finished run, ready for tables with the run's columns."""

    def __init__(self, directory: str) -> None:
        run = RunDirectory(directory)
        try:
            self.models: list[Model] = read_models(run.read_json("models.json"))
            self._plan = EncoderPlan.from_json(run.read_json("encoder.json")["plan"])
        except (KeyError, TypeError, ValueError):
            raise RunDirectoryError(
                f"models.json or encoder.json of {directory} is damaged: restore it, or fit again"
            ) from None
        self.spec: Spec = load_spec(run.file("spec.toml"))
        self._domain: PrivateDomain = self.spec.domain()
        self._problems: dict[str, Problem] = {
            problem.name: problem for problem in self.spec.problems(self._domain)
        }
        self._private: dict[str, PrivateFeatures] = {
            name: self.spec.private_features(self._domain, problem)
            for name, problem in self._problems.items()
        }

    def predict(self, table: str, out: str) -> int:
        """Writes a Parquet file with one score column per model; returns the number of rows.

        A score is the margin's natural reading: a probability for logistic models, one column per
        class for multinomial ones, the margin itself for the rest.
        """
        import pyarrow as pa
        import pyarrow.parquet as parquet

        if os.path.abspath(out) in map(os.path.abspath, tables.find_files([table])):
            raise tables.TableError(f"--out must not be the table itself, got {out}")
        blocks = self._blocks(table, with_targets=False)
        batches = (pa.table(self._scores(arrays)) for arrays in blocks)
        first = next(batches)  # a table without rows has been refused
        rows = 0
        with _new_file(out) as file, parquet.ParquetWriter(file, first.schema) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_table(batch)
                rows += batch.num_rows
        return rows

    def evaluate(self, table: str) -> list[Score]:
        """Mean loss (without regulariser) and accuracy on a table. NOT PRIVATE."""
        losses = {model.name: 0.0 for model in self.models}
        hits = {model.name: 0.0 for model in self.models}
        rows = 0
        for arrays in self._blocks(table, with_targets=True):
            features = self._plan.encode(arrays)
            codes = self._domain.encode(arrays)
            rows += codes.size
            for model in self.models:
                problem = self._problems[model.name]
                margins = self._margins(model, features, codes)
                targets = self._targets(problem, arrays, codes)
                losses[model.name] += float(np.sum(problem.loss.value(margins, targets)))
                hits[model.name] += float(np.sum(_hits(problem, margins, targets)))
        return [
            Score(
                name=model.name,
                loss=model.loss,
                num_rows=rows,
                mean_loss=losses[model.name] / rows,
                accuracy=hits[model.name] / rows
                if _is_classification(self._problems[model.name])
                else None,
            )
            for model in self.models
        ]

    def _blocks(self, table: str, *, with_targets: bool) -> Iterator[dict[str, npt.NDArray[Any]]]:
        columns = [*self.spec.data.features]
        if with_targets:
            columns += self.spec.public_targets()
        columns += [c.column for c in self.spec.data.sensitive if with_targets or c.is_feature]
        if not with_targets:
            missing = [c.column for c in self.spec.data.sensitive if not c.is_feature]
            if missing:
                # Sensitive targets need not be there to predict; any declared value stands in.
                return self._with_placeholders(table, columns, missing)
        return self._plain(table, columns)

    def _plain(self, table: str, columns: list[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        files = tables.open_table([table], columns)
        sensitive = tables.sensitive_columns(self.spec)
        texts = {p.column: _texts(p.values) for p in self._plan.columns if p.type == "string"}
        texts.update(tables.csv_texts(self.spec))
        for task in tables.tasks_of(files, _BLOCK_ROWS):
            for _, arrays in tables.read_blocks(task, columns, _BLOCK_ROWS, texts, sensitive):
                yield arrays

    def _with_placeholders(
        self, table: str, columns: list[str], missing: list[str]
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        declared = {c.name: c for c in self._domain.columns}
        for arrays in self._plain(table, columns):
            size = len(next(iter(arrays.values())))
            for name in missing:
                arrays[name] = np.full(size, declared[name].example(), dtype=object)
            yield arrays

    def _margins(self, model: Model, features: Any, codes: npt.NDArray[np.int32]) -> Float64:
        private = self._private[model.name]
        outputs = [
            features.margins(np.ascontiguousarray(w[: model.num_public]))
            + private.apply(w[model.num_public :])[codes]
            for w in model.weights
        ]
        return np.stack(outputs, axis=1) if len(outputs) > 1 else outputs[0]

    def _scores(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Float64]:
        features = self._plan.encode(arrays)
        codes = self._domain.encode(arrays)
        columns = {}
        for model in self.models:
            margins = self._margins(model, features, codes)
            if model.loss == "logistic":
                columns[model.name] = special.expit(margins)
            elif margins.ndim == 2:
                shifted = np.exp(margins - margins.max(axis=1, keepdims=True))
                probabilities = shifted / shifted.sum(axis=1, keepdims=True)
                for c in range(margins.shape[1]):
                    columns[f"{model.name}_{c}"] = probabilities[:, c]
            else:
                columns[model.name] = margins
        return columns

    @staticmethod
    def _targets(
        problem: Problem, arrays: dict[str, npt.NDArray[Any]], codes: npt.NDArray[np.int32]
    ) -> npt.NDArray[Any]:
        if isinstance(problem.target, PrivateTarget):
            values = problem.target.values[codes]
        else:
            name = problem.target.column
            values = tables.target_column(arrays[name], name, problem.loss)
        kind = np.int64 if isinstance(problem.loss, MultinomialLoss) else np.float64
        return values.astype(kind)


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[Any]:
    """A file to write to, which has its name only when it is complete."""
    if storage.is_remote(path):
        from apache_beam.io.filesystems import FileSystems

        with storage.explained("write", path):
            file = FileSystems.create(path, compression_type="uncompressed")
        with file:
            yield file
        return
    temporary = storage.join(storage.parent(path), f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    with storage.explained("write", path):
        try:
            with open(temporary, "xb") as file:
                yield file
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.unlink(temporary)
            raise


def _texts(values: tuple[Value, ...] | None) -> list[str]:
    return [value for value in values or () if isinstance(value, str)]


def _is_classification(problem: Problem) -> bool:
    return isinstance(problem.loss, MultinomialLoss) or problem.loss.binary_targets


def _hits(problem: Problem, margins: Float64, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if isinstance(problem.loss, MultinomialLoss):
        return np.asarray(margins.argmax(axis=1) == targets)
    return np.asarray((margins > 0) == (targets > 0.5))
