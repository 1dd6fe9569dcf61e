"""From TOML tables to checked dataclasses and back, and the tables that stand alone.

A dataclass checks its own fields in ``__post_init__`` and names the field that is wrong; `build`
adds which table it came from, and reports keys that are unknown or missing. A specification is
public, so messages show the offending value.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ssdp_core import _validate
from ssdp_core.columns import BinnedColumn, CategoricalColumn, Column, Encoding, Role, Value
from ssdp_core.errors import SsdpError

ENCODING_KINDS = ("auto", "numeric", "log", "bins", "one_hot", "hashed")
FIT_MODES = ("paper",)
SOLVERS = ("auto", "gradient", "subgradient")
_DEFAULT_BITS = 18
_T = TypeVar("_T")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class SpecError(SsdpError, ValueError):
    """A specification is wrong. The message is one sentence: where, what, and what was expected."""


def build(cls: type[_T], table: object, where: str, **fixed: object) -> _T:
    """Builds a dataclass from the keys of a TOML table.

    Args:
        cls: Dataclass whose constructor checks its fields. A field without a default is a required
            key; its metadata may hold an ``example`` for the message.
        table: The table as parsed.
        where: Name of the table in messages, such as ``[privacy]``.
        **fixed: Fields that do not come from keys of this table, or that were converted already.

    Raises:
        SpecError: If a key is unknown or missing, or a value is refused.
    """
    keys = as_table(table, where)
    fields = [f for f in dataclasses.fields(cls) if f.name not in fixed]  # type: ignore[arg-type]
    check_keys(keys, [f.name for f in fields], where)
    for field in fields:
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if field.name not in keys and not has_default:
            example = field.metadata.get("example")
            hint = f", for example {field.name} = {example}" if example else ""
            raise SpecError(f"{where} must set {field.name}{hint}")
    try:
        return cls(**keys, **fixed)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where} {error}") from None
    except OverflowError:
        raise SpecError(f"{where} holds a number that is too large for a float") from None


def required(example: str) -> Any:
    """A dataclass field for a key that must be set, with an example for the message."""
    return dataclasses.field(metadata={"example": example})


def set_fields(instance: object, **values: object) -> None:
    """Sets fields of a frozen dataclass while it checks itself."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def as_table(value: object, where: str) -> Mapping[str, Any]:
    """Returns a value that must be a TOML table."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} must be a table, got {value!r}")
    return value


def check_keys(keys: Iterable[str], valid: Sequence[str], where: str) -> None:
    """Raises SpecError for the first key that is not valid, and names the nearest one that is."""
    for key in keys:
        if key not in valid:
            near = difflib.get_close_matches(key, valid, n=1, cutoff=0.0)[0]
            raise SpecError(
                f"{where} has no key {key!r}: did you mean {near!r}? The valid keys are "
                f"{', '.join(sorted(valid))}"
            )


def text(**argument: Any) -> str:
    """Returns the argument if it is a non-empty string."""
    ((name, value),) = argument.items()
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {value!r}")
    return value


def texts(**argument: Any) -> tuple[str, ...]:
    """Returns the argument as a tuple if it is a list of distinct, non-empty strings."""
    ((name, value),) = argument.items()
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"{name} must be a list of non-empty strings, got {value!r}")
    for item in value:
        if value.count(item) > 1:
            raise ValueError(f"{name} must not repeat an entry, got {item!r} more than once")
    return tuple(value)


def boolean(**argument: Any) -> bool:
    """Returns the argument if it is true or false."""
    ((name, value),) = argument.items()
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def choice(options: Sequence[str], **argument: Any) -> str:
    """Returns the argument if it is one of the options, else names them and the nearest."""
    ((name, value),) = argument.items()
    if not isinstance(value, str) or value not in options:
        near = difflib.get_close_matches(str(value), options, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        known = ", ".join(map(repr, options))
        raise ValueError(f"{name} must be one of {known}, got {value!r}{hint}")
    return value


def rising_numbers(**argument: Any) -> tuple[float, ...]:
    """Returns the argument as floats if it is a list of two or more finite, rising numbers."""
    ((name, value),) = argument.items()
    is_list = isinstance(value, (list, tuple))
    is_valid = is_list and all(
        isinstance(item, (int, float)) and not isinstance(item, bool) for item in value
    )
    numbers = [float(item) for item in value] if is_valid else []
    rising = all(a < b for a, b in itertools.pairwise(numbers))
    if len(numbers) < 2 or not rising or not all(map(math.isfinite, numbers)):
        raise ValueError(
            f"{name} must be a list of at least two finite numbers in rising order, got {value!r}"
        )
    return tuple(numbers)


def plain_values(**argument: Any) -> tuple[Value, ...]:
    """Returns the argument as a tuple if it is a list of distinct strings, numbers or bools."""
    ((name, value),) = argument.items()
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if not is_list or not all(
        isinstance(item, str) or (isinstance(item, (int, float)) and math.isfinite(item))
        for item in value
    ):
        raise ValueError(
            f"{name} must be a list of strings, finite numbers or bools, got {value!r}"
        )
    if min(len(set(value)), len(set(map(str, value)))) < len(value):
        raise ValueError(
            f"{name} must be distinct, as values (true, 1 and 1.0 are equal) and as text (1 and "
            f"'1' look the same), got {value!r}"
        )
    return tuple(value)


def toml_key(key: str) -> str:
    """Returns a key as it is written in TOML, quoted if need be."""
    return key if _BARE_KEY.fullmatch(key) else _toml_text(key)


def toml_table(header: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Returns a table as TOML text; a pair whose value is None is left out."""
    lines = [f"{toml_key(key)} = {_toml_value(v)}" for key, v in pairs if v is not None]
    return "\n".join([header, *lines]) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml_value, value))}]"
    raise TypeError(f"value must be a string, number, bool or list of them, got {value!r}")


def _toml_text(value: str) -> str:
    # JSON escapes what a TOML basic string must escape, except for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnEncoding:
    """How a public column becomes features.

    Attributes:
        column: Name in the table.
        kind: ``auto`` (numbers as ``numeric``, strings and bools as ``one_hot``), ``numeric``
            (standardised), ``log`` (log(1 + value), then standardised; values must not be
            negative), ``bins``, ``one_hot``, or ``hashed`` (to 2^bits sparse columns).
        edges: For ``bins``: [e0, e1), [e1, e2), ..., the last one with its right edge; a value
            outside belongs to no bin.
        values: For ``one_hot``: the values that get a column; None means all that are found.
        bits: For ``hashed``: 4 to 24.
    """

    column: str
    kind: str = "auto"
    edges: tuple[float, ...] | None = None
    values: tuple[Value, ...] | None = None
    bits: int | None = None

    def __post_init__(self) -> None:
        choice(ENCODING_KINDS, kind=self.kind)
        for key, kind in (("edges", "bins"), ("values", "one_hot"), ("bits", "hashed")):
            if getattr(self, key) is not None and self.kind != kind:
                raise ValueError(
                    f"{key} must only be set with kind = {kind!r}, got kind = {self.kind!r}"
                )
        if self.kind == "bins":
            set_fields(self, edges=rising_numbers(edges=self.edges))
        if self.values is not None:
            set_fields(self, values=plain_values(values=self.values))
        if self.kind == "hashed":
            bits = _DEFAULT_BITS if self.bits is None else self.bits
            if _validate.integer_at_least(4, bits=bits) > 24:
                raise ValueError(f"bits must be a whole number in 4..24, got {bits!r}")
            set_fields(self, bits=bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitiveSpec:
    """A sensitive column, with its declared domain.

    Attributes:
        column: Name in the table.
        values: The declared values; or
        edges: the edges of declared bins.
        other: Whether nulls and undeclared values get a value of their own.
        role: ``feature``, ``target`` or ``both``.
        encoding: ``one_hot`` or ``numeric``, as a feature.
        scale: Length of its largest feature row. By default the columns share ``feature_norm``
            equally, so that the private features of a row have at most that norm together.
    """

    column: str
    values: tuple[Value, ...] | None = None
    edges: tuple[float, ...] | None = None
    other: bool = False
    role: str = Role.FEATURE.value
    encoding: str = Encoding.ONE_HOT.value
    scale: float | None = None

    def __post_init__(self) -> None:
        if (self.values is None) == (self.edges is None):
            got = "neither" if self.values is None else "both"
            raise ValueError(
                f"values or edges must declare the domain, exactly one of them, got {got}: a "
                "domain is never learned from the data"
            )
        boolean(other=self.other)
        if self.values is not None:
            set_fields(self, values=plain_values(values=self.values))
        if self.edges is not None:
            set_fields(self, edges=rising_numbers(edges=self.edges))
        if self.scale is not None:
            set_fields(self, scale=_validate.positive(scale=self.scale))
        column = self.build_column()
        set_fields(self, role=column.role.value, encoding=column.encoding.value)

    @property
    def is_feature(self) -> bool:
        """Whether some models may use it as a feature."""
        return self.role != Role.TARGET.value

    @property
    def is_target(self) -> bool:
        """Whether models may predict it."""
        return self.role != Role.FEATURE.value

    def build_column(self) -> Column:
        """Returns the column as ssdp_core knows it."""
        common: dict[str, Any] = {
            "name": self.column,
            "other": self.other,
            "role": self.role,
            "encoding": self.encoding,
            "scale": 1.0 if self.scale is None else self.scale,
        }
        if self.edges is not None:
            return BinnedColumn(edges=self.edges, **common)
        return CategoricalColumn(values=self.values or (), **common)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitSpec:
    """The privacy unit: all rows that share a value of a public column, at most ``max_rows``."""

    column: str = required('"user_id"')
    max_rows: int = required("10")

    def __post_init__(self) -> None:
        text(column=self.column)
        _validate.integer_at_least(1, max_rows=self.max_rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySpec:
    """The guarantee to reach; ``epsilon = "inf"`` in TOML, math.inf here, switches noise off."""

    epsilon: float = required("1.0")
    delta: float = required("1e-6")

    def __post_init__(self) -> None:
        epsilon: Any = self.epsilon
        if epsilon == "inf":
            epsilon = math.inf
        is_number = isinstance(epsilon, (int, float)) and not isinstance(epsilon, bool)
        if not is_number or not epsilon > 0:
            raise ValueError(
                'epsilon must be a positive number, or "inf" to switch noise off, got '
                f"{self.epsilon!r}"
            )
        delta = _validate.open_interval(0, 0.5, delta=self.delta)
        set_fields(self, epsilon=float(epsilon), delta=delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSpec:
    """How to fit; None means that the driver chooses from public numbers.

    Attributes:
        mode: ``paper``, the paper's Algorithm 2.
        tau: Threshold above which the beliefs are updated.
        eta: Step size of an update.
        max_updates: Number of updates the budget is split over.
        truncation: Where the exponent of an update is truncated.
        zeta: Share of the budget for threshold tests.
        num_steps: Gradient steps per problem.
        solver: ``gradient`` (smooth losses), ``subgradient``, or ``auto`` by the loss.
        tight_charges: Charge measurements what they cost instead of what the paper charges.
    """

    mode: str = "paper"
    tau: float | None = None
    eta: float | None = None
    max_updates: int | None = None
    truncation: float = 3.0
    zeta: float = 0.5
    num_steps: int | None = None
    solver: str = "auto"
    tight_charges: bool = True

    def __post_init__(self) -> None:
        choice(FIT_MODES, mode=self.mode)
        choice(SOLVERS, solver=self.solver)
        boolean(tight_charges=self.tight_charges)
        for key in ("tau", "eta", "truncation"):
            if getattr(self, key) is not None:
                set_fields(self, **{key: _validate.positive(**{key: getattr(self, key)})})
        for key in ("max_updates", "num_steps"):
            if getattr(self, key) is not None:
                _validate.integer_at_least(1, **{key: getattr(self, key)})
        set_fields(self, zeta=_validate.open_interval(0, 1, zeta=self.zeta))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerSpec:
    """Where the budget of the dataset over all runs is kept; None means nowhere."""

    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            text(path=self.path)
