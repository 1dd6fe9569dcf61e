"""The specification of a run: a TOML file as frozen, checked dataclasses.

    [data]
    path = "adult/*.parquet"            # or a list; Parquet or CSV, globs, local or gs://
    features = ["age", "workclass"]     # public columns
    [data.encode.workclass]             # optional; see ColumnEncoding
    kind = "one_hot"
    [data.sensitive.sex]                # private columns, with their declared domains
    values = ["F", "M"]
    [data.sensitive.income]
    values = [0, 1]
    role = "target"
    [privacy]
    epsilon = 1.0
    delta = 1e-6
    [[problem]]
    name = "income"
    target = "income"
    loss = "logistic"

Everything here is public. Whatever is wrong is one `SpecError` that names the table and the key.
Defaults are filled in when a specification is built, so `Spec.to_toml` shows all of them. Paths are
kept as written: a relative path is relative to the directory a command runs in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import spec_fields
from pipeline.spec_fields import (
    ColumnEncoding,
    FitSpec,
    LedgerSpec,
    PrivacySpec,
    SensitiveSpec,
    SpecError,
    UnitSpec,
    set_fields,
)
from ssdp_core import _validate
from ssdp_core.domain import PrivateDomain, PrivateFeatures
from ssdp_core.losses import LOSS_NAMES, Loss, MultinomialLoss, loss_by_name
from ssdp_core.problems import PrivateTarget, Problem, PublicTarget

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ColumnEncoding",
    "DataSpec",
    "FitSpec",
    "LedgerSpec",
    "PrivacySpec",
    "ProblemSpec",
    "SensitiveSpec",
    "Spec",
    "SpecError",
    "UnitSpec",
    "load_spec",
    "parse_spec",
]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_LOSS_PARAMETERS = ("threshold", "width", "quantile", "num_classes")
_NORM_RANGE = (1e-6, 1e6)  # features are float32; far outside, their norms would lose precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The table.

    Attributes:
        path: Files or globs, local or gs://, ending in .parquet or .csv.
        features: Public columns that are features. An intercept is always added.
        block_rows: Rows per block.
        feature_norm: Each row's public features, intercept included, are scaled down to at most
            this l2 norm.
        prepared: Where the prepared dataset is kept; None leaves it to the driver.
        encode: One encoding per feature, in the order of ``features``.
        sensitive: The sensitive columns; their order is the order of the private code.
        unit: The privacy unit; None means that each row is its own.
    """

    path: tuple[str, ...] = spec_fields.required('"table/*.parquet"')
    features: tuple[str, ...] = ()
    block_rows: int = 65_536
    feature_norm: float = 1.0
    prepared: str | None = None
    encode: tuple[ColumnEncoding, ...] = ()
    sensitive: tuple[SensitiveSpec, ...] = ()
    unit: UnitSpec | None = None

    def __post_init__(self) -> None:
        given: object = self.path
        path = spec_fields.texts(path=[given] if isinstance(given, str) else given)
        if not path:
            raise ValueError("path must name at least one file or glob, got an empty list")
        for name in path:
            if not name.lower().endswith((".parquet", ".csv")):
                raise ValueError(f"path must end in .parquet or .csv, got {name!r}")
        features = spec_fields.texts(features=self.features)
        _validate.integer_at_least(1, block_rows=self.block_rows)
        norm = _validate.positive(feature_norm=self.feature_norm)
        if not _NORM_RANGE[0] <= norm <= _NORM_RANGE[1]:
            raise ValueError(
                f"feature_norm must lie between {_NORM_RANGE[0]:g} and {_NORM_RANGE[1]:g}, got "
                f"{norm!r}"
            )
        if self.prepared is not None:
            spec_fields.text(prepared=self.prepared)
        set_fields(self, path=path, features=features, feature_norm=norm)
        self._check_columns()
        self._fill_in()

    def _check_columns(self) -> None:
        if not self.sensitive:
            raise SpecError(
                "[data.sensitive] must declare at least one sensitive column, for example "
                '[data.sensitive.sex] with values = ["F", "M"]: without one nothing is private'
            )
        for encoding in self.encode:
            if encoding.column not in self.features:
                raise SpecError(
                    f"{_header('encode', encoding.column)} must encode a column that is listed "
                    f"in [data] features, got {encoding.column!r}"
                )
        for sensitive in self.sensitive:
            where = _header("sensitive", sensitive.column)
            if sensitive.column in self.features:
                raise SpecError(
                    f"{where} declares {sensitive.column!r} as sensitive, but [data] features "
                    "lists it as public: a column must be one or the other"
                )
            if self.unit is not None and sensitive.column == self.unit.column:
                raise SpecError(
                    f"[data.unit] column must be public, but {where} declares "
                    f"{sensitive.column!r} as sensitive"
                )
        if not self.features and not any(column.is_feature for column in self.sensitive):
            raise SpecError(
                "[data] features must name at least one column, because no sensitive column is a "
                "feature either"
            )

    def _fill_in(self) -> None:
        given = {encoding.column: encoding for encoding in self.encode}
        encode = (given.get(name, ColumnEncoding(column=name)) for name in self.features)
        sharing = sum(column.is_feature for column in self.sensitive)
        sensitive = []
        for column in self.sensitive:
            share = self.feature_norm / math.sqrt(sharing) if column.is_feature else 1.0
            scale = share if column.scale is None else column.scale
            sensitive.append(dataclasses.replace(column, scale=scale))
        set_fields(self, encode=tuple(encode), sensitive=tuple(sensitive))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemSpec:
    """A model to fit.

    Attributes:
        name: Unique; letters, digits and ``_ - .`` only.
        target: A public column that is no feature, or a sensitive one with role target or both.
        loss: A name from `ssdp_core.losses.LOSS_NAMES`.
        threshold: Parameter of huber.
        width: Parameter of smooth_hinge.
        quantile: Parameter of pinball.
        num_classes: Parameter of multinomial; by default the size of a sensitive target's domain.
        l2: Strength of the l2 regulariser.
        radius: Radius of the ball of weights.
    """

    name: str = spec_fields.required('"income"')
    target: str = spec_fields.required('"income"')
    loss: str = spec_fields.required('"logistic"')
    threshold: float | None = None
    width: float | None = None
    quantile: float | None = None
    num_classes: int | None = None
    l2: float = 1e-3
    radius: float = 10.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(spec_fields.text(name=self.name)):
            raise ValueError(
                f"name must consist of letters, digits, '_', '-' and '.', got {self.name!r}"
            )
        spec_fields.text(target=self.target)
        spec_fields.choice(LOSS_NAMES, loss=self.loss)
        set_fields(self, l2=_validate.non_negative(l2=self.l2))
        set_fields(self, radius=_validate.positive(radius=self.radius))
        if self.loss == MultinomialLoss.name and not self._given():
            return  # filled in by the specification, which knows the domain
        loss = self.build_loss()
        for key in _LOSS_PARAMETERS:
            set_fields(self, **{key: getattr(loss, key, None)})

    def build_loss(self) -> Loss:
        """Returns the loss with its parameters."""
        return loss_by_name(self.loss, **self._given())

    def _given(self) -> dict[str, float]:
        values = {key: getattr(self, key) for key in _LOSS_PARAMETERS}
        return {key: value for key, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A whole specification; building one checks everything that can be known without the data.

    Attributes:
        data: The table.
        privacy: The guarantee.
        problem_specs: The models, as written under ``[[problem]]``.
        fit: How to fit.
        ledger: The budget over all runs.
    """

    data: DataSpec
    privacy: PrivacySpec
    problem_specs: tuple[ProblemSpec, ...]
    fit: FitSpec = dataclasses.field(default_factory=FitSpec)
    ledger: LedgerSpec = dataclasses.field(default_factory=LedgerSpec)

    def __post_init__(self) -> None:
        if not self.problem_specs:
            raise SpecError("[[problem]] must occur at least once: it says what to fit")
        names = [problem.name for problem in self.problem_specs]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"[[problem]] names must be distinct, got {name!r} more than once")
        domain = self.domain()
        set_fields(self, problem_specs=tuple(map(self._resolved, self.problem_specs)))
        self.problems(domain)

    def domain(self) -> PrivateDomain:
        """Returns the declared joint domain of the sensitive columns."""
        try:
            return PrivateDomain(columns=tuple(c.build_column() for c in self.data.sensitive))
        except ValueError as error:
            raise SpecError(f"[data.sensitive] {error}") from None

    def problems(self, domain: PrivateDomain) -> tuple[Problem, ...]:
        """Returns the problems as ssdp_core knows them, in the order of the specification."""
        problems = []
        for spec in self.problem_specs:
            try:
                problems.append(self._problem(spec, domain))
            except SpecError:
                raise
            except ValueError as error:
                raise SpecError(f"[[problem]] {spec.name!r} target: {error}") from None
        return tuple(problems)

    def private_features(
        self, domain: PrivateDomain, problem: Problem | ProblemSpec
    ) -> PrivateFeatures:
        """Returns the private features of a problem: all but the column that it predicts."""
        targets = {spec.name: spec.target for spec in self.problem_specs}
        if problem.name not in targets:
            raise ValueError(
                f"problem must be one of {', '.join(map(repr, targets))}, got {problem.name!r}"
            )
        target = targets[problem.name]
        return domain.private_features(exclude=[target] if self._sensitive(target) else [])

    def public_targets(self) -> tuple[str, ...]:
        """Returns the public columns that some problem predicts, each once."""
        targets = (problem.target for problem in self.problem_specs)
        return tuple(dict.fromkeys(name for name in targets if not self._sensitive(name)))

    def public_columns(self) -> tuple[str, ...]:
        """Returns every public column that is read: features, public targets, the unit column."""
        unit = () if self.data.unit is None else (self.data.unit.column,)
        return tuple(dict.fromkeys((*self.data.features, *self.public_targets(), *unit)))

    def sensitive_columns(self) -> tuple[str, ...]:
        """Returns every sensitive column, in the order of the private code."""
        return tuple(column.column for column in self.data.sensitive)

    def to_toml(self) -> str:
        """Returns the specification with its defaults; `parse_spec` gives an equal one back.

        A key whose value is left to the driver does not appear.
        """
        data = self.data
        nested = ("encode", "sensitive", "unit")
        tables = [_table("[data]", data, nested)]
        tables += [_table(_header("encode", e.column), e, ["column"]) for e in data.encode]
        tables += [_table(_header("sensitive", s.column), s, ["column"]) for s in data.sensitive]
        if data.unit is not None:
            tables.append(_table("[data.unit]", data.unit))
        tables.append(_table("[privacy]", self.privacy))
        tables += [_table("[[problem]]", problem) for problem in self.problem_specs]
        tables.append(_table("[fit]", self.fit))
        tables.append(_table("[ledger]", self.ledger))
        return "\n".join(tables)

    def digest(self) -> str:
        """Returns the SHA-256 of `to_toml` in hexadecimal: equal for specifications that agree."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def _sensitive(self, name: str) -> SensitiveSpec | None:
        return next((column for column in self.data.sensitive if column.column == name), None)

    def _resolved(self, problem: ProblemSpec) -> ProblemSpec:
        """Checks what a problem predicts, and fills in its number of classes."""
        where = f"[[problem]] {problem.name!r}"
        sensitive = self._sensitive(problem.target)
        if problem.target in self.data.features:
            raise SpecError(
                f"{where} target must not be a feature, but {problem.target!r} is listed in [data] "
                "features: remove it there"
            )
        if sensitive is not None and not sensitive.is_target:
            raise SpecError(
                f"{where} target {problem.target!r} is a sensitive column with role = "
                f"{sensitive.role!r}: set role = 'target' or 'both' in "
                f"{_header('sensitive', sensitive.column)}"
            )
        if problem.loss != MultinomialLoss.name:
            return problem
        if sensitive is None:
            if problem.num_classes is None:
                raise SpecError(
                    f"{where} must set num_classes, the number of classes of the public target "
                    f"{problem.target!r}, for example num_classes = 3"
                )
            return problem
        size = sensitive.build_column().size
        if problem.num_classes not in (None, size):
            raise SpecError(
                f"{where} num_classes must be {size}, the number of declared values of "
                f"{problem.target!r}, got {problem.num_classes}: it may be left out"
            )
        return dataclasses.replace(problem, num_classes=size)

    def _problem(self, spec: ProblemSpec, domain: PrivateDomain) -> Problem:
        loss = spec.build_loss()
        target: PublicTarget | PrivateTarget = PublicTarget(column=spec.target)
        if self._sensitive(spec.target) is not None:
            if isinstance(loss, MultinomialLoss):
                target = PrivateTarget(values=domain.target_classes(spec.target))
            else:
                target = PrivateTarget(values=domain.target_values(spec.target))
            loss.validate_targets(target.values, f"declared values of column {spec.target!r}")
        return Problem(name=spec.name, loss=loss, target=target, l2=spec.l2, radius=spec.radius)


def load_spec(path: str) -> Spec:
    """Reads a specification from a local TOML file.

    Raises:
        SpecError: If the file cannot be read or the specification is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SpecError(f"cannot read {path}: it must be text in UTF-8") from None
    return parse_spec(text, where=str(path))


def parse_spec(text: str, *, where: str = "spec") -> Spec:
    """Builds a specification from TOML text.

    Args:
        text: The TOML text.
        where: What to call it in messages, such as the file's name.

    Raises:
        SpecError: If the text is no TOML or the specification is wrong.
    """
    try:
        return _spec(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{where}: not valid TOML: {error}") from None
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _spec(tables: dict[str, Any]) -> Spec:
    valid = ["data", "privacy", "problem", "fit", "ledger"]
    spec_fields.check_keys(tables, valid, "the specification")
    for name in ("data", "privacy"):
        if name not in tables:
            raise SpecError(f"the specification must have the table [{name}]")
    problems = tables.get("problem", [])
    if not isinstance(problems, list):
        raise SpecError("[[problem]] must be written with double brackets, once for each problem")
    return Spec(
        data=_data(spec_fields.as_table(tables["data"], "[data]")),
        privacy=spec_fields.build(PrivacySpec, tables["privacy"], "[privacy]"),
        problem_specs=tuple(_problem_spec(i, table) for i, table in enumerate(problems, 1)),
        fit=spec_fields.build(FitSpec, tables.get("fit", {}), "[fit]"),
        ledger=spec_fields.build(LedgerSpec, tables.get("ledger", {}), "[ledger]"),
    )


def _data(table: Mapping[str, Any]) -> DataSpec:
    nested = ("encode", "sensitive", "unit")
    spec_fields.check_keys(table, [f.name for f in dataclasses.fields(DataSpec)], "[data]")
    encode = spec_fields.as_table(table.get("encode", {}), "[data.encode]")
    sensitive = spec_fields.as_table(table.get("sensitive", {}), "[data.sensitive]")
    unit = table.get("unit")
    return spec_fields.build(
        DataSpec,
        {key: value for key, value in table.items() if key not in nested},
        "[data]",
        encode=tuple(
            spec_fields.build(ColumnEncoding, value, _header("encode", name), column=name)
            for name, value in encode.items()
        ),
        sensitive=tuple(
            spec_fields.build(SensitiveSpec, value, _header("sensitive", name), column=name)
            for name, value in sensitive.items()
        ),
        unit=None if unit is None else spec_fields.build(UnitSpec, unit, "[data.unit]"),
    )


def _problem_spec(number: int, table: object) -> ProblemSpec:
    name = table.get("name") if isinstance(table, dict) else None
    label = repr(name) if isinstance(name, str) else f"number {number}"
    return spec_fields.build(ProblemSpec, table, f"[[problem]] {label}")


def _header(table: str, column: str) -> str:
    return f"[data.{table}.{spec_fields.toml_key(column)}]"


def _table(header: str, instance: Any, left_out: Sequence[str] = ()) -> str:
    names = [f.name for f in dataclasses.fields(instance) if f.name not in left_out]
    pairs = [(name, getattr(instance, name)) for name in names]
    # TOML has an infinity of its own, but "inf" is what a specification says.
    return spec_fields.toml_table(header, [(k, "inf" if v == math.inf else v) for k, v in pairs])
