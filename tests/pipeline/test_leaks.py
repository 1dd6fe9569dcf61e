"""Nothing private leaves a run except through the curator.

The private values are recognisable strings and numbers, and every exact sum that a run computes is
recorded on the side (`crashing_fit.record_exact_values`). Every byte that a run prints or leaves
behind is then searched for them, in all the ways in which they could be written.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import shutil
import signal
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from crashing_fit import Ended, ForkServer, Kill, Step

from pipeline import blocks
from ssdp_core.domain import PrivateDomain
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.problems import LinearErm

ALPHA, BETA = "PRIVATEVALUEALPHA", "PRIVATEVALUEBETA"  # declared
GAMMA = "PRIVATEVALUEGAMMA"  # only in the table
COUNTS = {ALPHA: 1237, BETA: 811, GAMMA: 363}
NUM_ROWS = sum(COUNTS.values())
BLOCK_ROWS = 1_000
SEED = ["--seed", "5"]


def columns() -> dict[str, npt.NDArray[Any]]:
    """Public ``x``, ``y``; sensitive ``disease`` (strings) and ``income`` (numbers)."""
    rng = np.random.default_rng(11)
    disease = rng.permutation(np.repeat(list(COUNTS), list(COUNTS.values())))
    x = rng.normal(size=NUM_ROWS)
    income = np.round(rng.uniform(10_000, 90_000, NUM_ROWS), 5) + 1e-6
    score = 4.0 * (disease == ALPHA) - 3.0 * (income > 50_000) + 0.3 * x
    y = (rng.random(NUM_ROWS) < 1.0 / (1.0 + np.exp(-score))).astype(np.int64)
    return {"x": x, "y": y, "disease": disease, "income": income}


SPEC = f"""
[data]
path = "table.parquet"
features = ["x"]
block_rows = {BLOCK_ROWS}
[data.sensitive.disease]
values = ["{ALPHA}", "{BETA}"]
other = true
[data.sensitive.income]
edges = [0, 50000, 100000]
[privacy]
epsilon = 20.0
delta = 1e-6
[[problem]]
name = "y"
target = "y"
loss = "logistic"
l2 = 0.01
[fit]
num_steps = 3
tau = 0.06
eta = 1.0
max_updates = 12
"""


@dataclasses.dataclass(frozen=True)
class Needle:
    """A way in which something private could be written.

    Attributes:
        what: for messages.
        data: the bytes to look for.
        alone: whether it counts only if no letter or digit touches it.
    """

    what: str
    data: bytes
    alone: bool = False

    def is_in(self, haystack: bytes) -> bool:
        if self.data not in haystack:
            return False
        if not self.alone:
            return True
        pattern = rb"(?<![0-9A-Za-z.+/_-])" + re.escape(self.data) + rb"(?![0-9A-Za-z.+/_-])"
        return re.search(pattern, haystack) is not None


def number_needles(what: str, value: float) -> Iterator[Needle]:
    """A number as text and as bytes; short ones only if they stand alone."""
    whole = float(value).is_integer() and abs(value) < 2**63
    texts = {repr(float(value)), f"{value:.10g}", f"{value:.6f}"}
    if whole:
        texts |= {str(int(value)), f"{int(value):,}"}
        yield Needle(f"{what} as int64", struct.pack("<q", int(value)))
    yield Needle(f"{what} as float64", struct.pack("<d", value))
    for text in texts:
        if sum(character.isdigit() for character in text) >= 4:
            yield Needle(f"{what} as text", text.encode(), alone=len(text) < 12)


VALUE_NEEDLES = [
    Needle(GAMMA, GAMMA.encode()),
    Needle("in UTF-16", GAMMA.encode("utf-16-le")),
]
for _name, _count in COUNTS.items():
    VALUE_NEEDLES += number_needles(f"count of {_name}", _count)
for _income in columns()["income"][:200]:
    VALUE_NEEDLES += number_needles("an income", float(_income))
DECLARED_NEEDLES = [Needle(value, value.encode()) for value in (ALPHA, BETA)]


def sum_needles(record: Path) -> list[Needle]:
    """Every exact sum, mean and norm of a run that the public beliefs do not give already."""
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    public = {unit for entry in entries for unit in entry.get("belief", ())}
    exponents = {entry["exponent"] for entry in entries if "exponent" in entry}
    assert len(exponents) == 1  # all queries of one problem share a lattice
    (exponent,) = exponents
    needles: dict[bytes, Needle] = {}

    def add(what: str, value: float) -> None:
        needles.update((needle.data, needle) for needle in number_needles(what, value))

    for entry in entries:
        what = "exact sum of a block" if "belief" in entry else "exact sum"
        for unit in entry.get("data", ()):
            if unit in public or abs(unit) < 2**30:
                continue
            needles.setdefault(b"%d" % unit, Needle(f"{what} in units", b"%d" % unit))
            packed = struct.pack("<q", unit)
            needles.setdefault(packed, Needle(f"{what} in units as int64", packed))
            add(what, math.ldexp(unit, exponent))
            add(what + " as mean", math.ldexp(unit, exponent) / NUM_ROWS)
        if "norm" in entry:
            add("exact norm in units", entry["norm"])
            add("exact norm", math.ldexp(entry["norm"], exponent))
            add("exact norm as mean", math.ldexp(entry["norm"], exponent) / NUM_ROWS)
    assert len(needles) >= 20
    return list(needles.values())


def contents(path: Path) -> bytes:
    """A file's bytes, and what is hidden in its base64 strings."""
    data = path.read_bytes()
    hidden = [base64.b64decode(text) for text in re.findall(rb'"float64":"([^"]*)"', data)]
    return b"\n".join([data, *hidden])


def files_under(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def leaks(files: Iterable[Path], needles: Sequence[Needle]) -> dict[str, set[str]]:
    """Which file holds what; names are searched too."""
    found: dict[str, set[str]] = {}
    for file in files:
        haystack = str(file.name).encode() + b"\n" + contents(file)
        hits = {needle.what for needle in needles if needle.is_in(haystack)}
        if hits:
            found[file.name] = hits
    return found


@pytest.mark.parametrize(
    "leak",
    [
        "sum=-1234.5678901234567, n=3",
        '{"mean": [0.1, -1234.5678901234567]}',
        "about -1234.567890 in all",
        struct.pack("<3d", 1.0, -1234.5678901234567, 2.0),
        json.dumps({"float64": base64.b64encode(struct.pack("<d", -1234.5678901234567)).decode()}),
    ],
)
def test_the_search_finds_a_number_however_it_is_written(leak: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(leak if isinstance(leak, bytes) else leak.replace(': "', ':"').encode())
    assert leaks([file], list(number_needles("secret", -1234.5678901234567)))


def test_the_search_tells_a_count_from_other_digits(tmp_path: Path) -> None:
    file = tmp_path / "file"
    needles = list(number_needles("count", 1237))
    for text, is_leak in {
        "1237 rows": True,
        "[5,1237]": True,
        "1,237 rows": True,
        "ab1237cd": False,
        "0.1237": False,
        "12374": False,
    }.items():
        file.write_text(text)
        assert bool(leaks([file], needles)) == is_leak, text


@dataclasses.dataclass(frozen=True)
class Home:
    """A working directory with a table, a specification and an empty folder for temporary files."""

    path: Path

    def step(self, name: str, *argv: str, kill: Kill | None = None) -> Step:
        """A command whose exact values are recorded outside the working directory."""
        # With this umask a file is only private if its writer made sure of it.
        return Step(
            list(argv),
            str(self.path),
            name,
            kill,
            environment={"TMPDIR": str(self.temporary)},
            umask=0,
            record=str(self.record),
        )

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    @property
    def record(self) -> Path:
        return self.path.with_suffix(".record")

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def prepared(self) -> Path:
        return self.path / "spec.prepared"

    def all_but_the_table(self) -> list[Path]:
        return [file for file in files_under(self.path) if not file.name.startswith("table.")]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


@pytest.fixture(scope="module")
def make_home(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Home]:
    def make(name: str, *, spec: str = SPEC, table: pa.Table | None = None) -> Home:
        home = Home(tmp_path_factory.mktemp("leaks") / name)
        home.temporary.mkdir(parents=True)
        (home.path / "spec.toml").write_text(spec)
        written = pa.table(columns()) if table is None else table
        if "table.csv" in spec:
            csv.write_csv(written, home.path / "table.csv")
        else:
            pq.write_table(written, home.path / "table.parquet")
        return home

    return make


def code_files(prepared: Path) -> list[Path]:
    return [file for file in files_under(prepared / "private") if file.suffix == ".block"]


def codes_needles(prepared: Path) -> list[Needle]:
    """Runs of private codes as any integer or float type."""
    needles = []
    for file in code_files(prepared):
        codes = blocks.unpack(file.read_bytes())[0]["codes"]
        for kind in ("i1", "<i2", "<i4", "<i8", "<f4", "<f8"):
            needles.append(Needle(f"codes as {kind}", codes[100:140].astype(kind).tobytes()))
        needles.append(Needle("codes as text", ",".join(map(str, codes[100:120])).encode()))
        needles.append(Needle("codes as text", ", ".join(map(str, codes[100:120])).encode()))
    return needles


def assert_owner_only(path: Path, top: Path) -> None:
    """The file is 0600 and some folder between it and ``top`` is 0700."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    modes = [stat.S_IMODE(f.stat().st_mode) for f in path.parents if f.is_relative_to(top)]
    assert 0o700 in modes, path


@pytest.fixture(scope="module", params=["seeded", "unseeded", "json-logs", "quiet"])
def finished(
    request: pytest.FixtureRequest, server: ForkServer, make_home: Callable[..., Home]
) -> tuple[Home, Ended]:
    home = make_home(request.param)
    flags = {"seeded": SEED, "unseeded": [], "json-logs": ["--json-logs"], "quiet": ["--quiet"]}
    step = home.step("fit", "fit", "spec.toml", "--out", "run", *flags[request.param])
    ((ended,),) = server.run([[step]])
    assert ended.code == 0, ended.stderr.decode()
    return home, ended


def test_a_finished_run_holds_nothing_exact(finished: tuple[Home, Ended]) -> None:
    home, ended = finished
    assert ended.stderr == b""
    needles = VALUE_NEEDLES + sum_needles(home.record)
    assert leaks(home.all_but_the_table(), needles) == {}
    assert not (home.run / "work").exists()
    assert files_under(home.temporary) == []


def test_declared_values_occur_only_where_the_spec_and_the_models_name_them(
    finished: tuple[Home, Ended],
) -> None:
    home, _ = finished
    found = leaks(home.all_but_the_table(), DECLARED_NEEDLES)
    assert set(found) <= {"spec.toml", "models.json"}
    models = (home.run / "models.json").read_text()
    assert all(models.count(value) <= 2 for value in (ALPHA, BETA, GAMMA))


def test_codes_lie_only_in_the_private_folder(finished: tuple[Home, Ended]) -> None:
    home, _ = finished
    private = home.prepared / "private"
    needles = codes_needles(home.prepared)
    inside = code_files(home.prepared)
    assert len(inside) == math.ceil(NUM_ROWS / BLOCK_ROWS)
    assert len(leaks(inside, needles)) == len(inside)  # the search does find them
    others = [file for file in home.all_but_the_table() if file not in inside]
    assert leaks(others, needles) == {}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files_under(private)} == {0o600}


def test_the_recorded_sums_are_the_exact_ones(finished: tuple[Home, Ended]) -> None:
    """The needles are right: the first ones agree with sums over the table, computed here."""
    from pipeline.dataset import load_manifest
    from pipeline.spec import parse_spec

    home, _ = finished
    spec = parse_spec(SPEC)
    domain: PrivateDomain = spec.domain()
    manifest = load_manifest(str(home.prepared))
    assert manifest is not None
    parts = [blocks.unpack_public(f.read_bytes()) for f in files_under(home.prepared / "public")]
    features = [p.features.values for p in parts if isinstance(p.features, DenseFeatures)]
    rows = PublicRows(
        num_rows=NUM_ROWS,
        features=DenseFeatures(np.concatenate(features)),
        columns={"y": np.concatenate([p.columns["y"] for p in parts])},
    )
    table = columns()
    codes = domain.encode({name: table[name] for name in ("disease", "income")})
    (problem,) = spec.problems(domain)
    erm = LinearErm(
        problem=problem,
        num_public=manifest.num_features,
        private_features=spec.private_features(domain, problem),
        feature_norm=manifest.feature_norm,
        target_bound=manifest.target_bounds["y"],
    )
    engine = InMemoryEngine(
        rows, codes, num_codes=domain.num_codes, block_rows=BLOCK_ROWS, num_threads=1
    )
    weights = np.zeros(manifest.num_features + erm.private_features.num_features)
    (evaluation,) = engine.evaluate_private([erm.query(weights)])
    assert evaluation.exact is not None
    entries = [json.loads(line) for line in home.record.read_text().splitlines()]
    totals = [e["data"] for e in entries if "data" in e and "belief" not in e]
    assert evaluation.exact.open_in_curator().tolist() == totals[0]


@pytest.mark.parametrize(
    "at",
    [
        "half */work/passes/*/result",
        "whole */work/passes/*/result",
        "done */work/passes/*/result",
        "done block",
        "half append",
        "half */work/state/*",
    ],
)
def test_a_killed_run_holds_exact_sums_only_where_the_owner_reads(
    at: str, server: ForkServer, make_home: Callable[..., Home]
) -> None:
    home = make_home("killed")
    step = home.step("fit", "fit", "spec.toml", "--out", "run", kill=Kill(at))
    ((killed,),) = server.run([[step]])
    assert killed.code == -signal.SIGKILL
    needles = VALUE_NEEDLES + sum_needles(home.record)
    work = home.run / "work"
    inside = files_under(work / "passes")
    exact = [file for file in inside if leaks([file], needles)]
    for file in [*exact, work / "noise.key"]:
        assert_owner_only(file, home.run)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    # The first pass is private, so the search must find its sums if they were on the disk.
    assert bool(exact) == at.endswith("/result")
    outside = [file for file in home.all_but_the_table() if file not in inside]
    assert leaks(outside, needles) == {}
    key = (work / "noise.key").read_bytes()
    key_needles = [
        Needle("key", key),
        Needle("key in hex", key.hex().encode()),
        Needle("key in base64", base64.b64encode(key)),
    ]
    assert set(leaks(home.all_but_the_table(), key_needles)) == {"noise.key"}

    ((resumed,),) = server.run([[home.step("resume", "resume", "run")]])
    assert resumed.code == 0, resumed.stderr.decode()
    needles = VALUE_NEEDLES + sum_needles(home.record)
    assert leaks(home.all_but_the_table(), needles + key_needles) == {}
    assert not work.exists()
    assert files_under(home.temporary) == []


def test_codes_that_a_killed_prepare_leaves_are_the_owners(
    server: ForkServer, make_home: Callable[..., Home]
) -> None:
    home = make_home("killed-prepare")
    step = home.step("fit", "fit", "spec.toml", "--out", "run", kill=Kill("whole */private/*", 3))
    ((killed,),) = server.run([[step]])
    assert killed.code == -signal.SIGKILL
    inside = files_under(home.prepared / "private")
    assert any(file.name.startswith(".tmp-") for file in inside)
    for file in inside:
        assert_owner_only(file, home.path)
    assert leaks(home.all_but_the_table(), VALUE_NEEDLES) == {}


UNDECLARED = SPEC.replace("other = true", "other = false")
NUMBERS = SPEC.replace("edges = [0, 50000, 100000]", "values = [0, 1]").replace(
    "table.parquet", "table.csv"
)


def text_among_numbers() -> pa.Table:
    table = columns()
    income = (table["income"] > 50_000).astype(int).astype(str).astype(object)
    income[1_700] = GAMMA
    return pa.table({**table, "income": pa.array(income.tolist(), pa.string())})


def text_after_numbers() -> pa.Table:
    """Arrow would take the column's type from its first megabyte, and then stumble."""
    many = 60_000
    rng = np.random.default_rng(0)
    disease = ["12345678901234567890.5"] * (many - 1) + [GAMMA]
    return pa.table(
        {
            "x": rng.normal(size=many),
            "y": rng.integers(0, 2, many),
            "disease": pa.array(disease, pa.string()),
            "income": np.full(many, 20_000.0),
        }
    )


def with_null(column: str) -> pa.Table:
    values = columns()
    entries: list[Any] = values[column].tolist()
    entries[1_500] = None
    return pa.table({**values, column: pa.array(entries)})


def income_as_text() -> pa.Table:
    values = columns()
    return pa.table({**values, "income": pa.array([f"{GAMMA}{v}" for v in values["income"]])})


def income_as_bytes() -> pa.Table:
    values = columns()
    return pa.table({**values, "income": pa.array([GAMMA.encode()] * NUM_ROWS, pa.binary())})


def income_outside() -> pa.Table:
    values = columns()
    values["income"][77] = 7_654_321.125
    return pa.table(values)


FAILING: dict[str, tuple[str, Callable[[], pa.Table], str]] = {
    "undeclared value": (UNDECLARED, lambda: pa.table(columns()), "disease"),
    "null": (UNDECLARED, lambda: with_null("disease"), "disease"),
    "null among numbers": (SPEC, lambda: with_null("income"), "income"),
    "number outside the bins": (SPEC, income_outside, "income"),
    "strings for numbers": (SPEC, income_as_text, "income"),
    "bytes for numbers": (SPEC, income_as_bytes, "income"),
    "csv, text among numbers": (NUMBERS, text_among_numbers, "income"),
    "csv, text after numbers": (
        UNDECLARED.replace("table.parquet", "table.csv"),
        text_after_numbers,
        "disease",
    ),
}


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("flags", [(), ("--json-logs",)], ids=["plain", "json-logs"])
def test_a_failing_prepare_shows_no_value(
    case: str, flags: tuple[str, ...], server: ForkServer, make_home: Callable[..., Home]
) -> None:
    spec, table, named = FAILING[case]
    home = make_home(re.sub(r"\W+", "-", case), spec=spec, table=table())
    step = home.step("fit", "fit", "spec.toml", "--out", "run", *flags)
    ((ended,),) = server.run([[step]])
    message = ended.stderr.decode()
    assert ended.code == 1, message
    assert named in message
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) == 1
    extra = [
        *number_needles("an income", 7_654_321.125),
        Needle("a number of the CSV", b"12345678901234567890"),
        Needle("the row of a value", b"1500", alone=True),
        Needle("the row of a value", b"1700", alone=True),
    ]
    searched = [file for file in home.all_but_the_table() if "private" not in file.parts]
    assert leaks(searched, VALUE_NEEDLES + extra) == {}
    declared = leaks(searched, DECLARED_NEEDLES)
    assert set(declared) <= {"spec.toml"}
    assert not (home.run / "journal.jsonl").exists()


@pytest.mark.parametrize("flags", [(), ("--json-logs",)], ids=["plain", "json-logs"])
def test_a_failing_pass_shows_no_value(
    flags: tuple[str, ...], server: ForkServer, make_home: Callable[..., Home]
) -> None:
    home = make_home("damaged")
    server.run([[home.step("prepare", "prepare", "spec.toml")]])
    block = code_files(home.prepared)[1]
    block.write_bytes(block.read_bytes()[:-8] + b"\xff" * 8)
    step = home.step("fit", "fit", "spec.toml", "--out", "run", *flags)
    ((ended,),) = server.run([[step]])
    message = ended.stderr.decode()
    assert ended.code == 1, message
    assert "checksum" in message
    assert "Traceback" not in message
    needles = VALUE_NEEDLES + codes_needles(home.prepared)
    private = files_under(home.prepared / "private")
    assert leaks([f for f in home.all_but_the_table() if f not in private], needles) == {}
    assert files_under(home.run / "work" / "passes") == []
    assert files_under(home.temporary) == []


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_failing_prediction_shows_no_value(
    command: str, server: ForkServer, make_home: Callable[..., Home]
) -> None:
    home = make_home("predict", spec=UNDECLARED, table=declared_only())
    pq.write_table(pa.table(columns()), home.path / "table.new.parquet")
    out = ["--out", "scores.parquet"] if command == "predict" else []
    fitted, ended = server.run(
        [
            [
                home.step("fit", "fit", "spec.toml", "--out", "run", *SEED),
                home.step(command, command, "run", "table.new.parquet", *out),
            ]
        ]
    )[0]
    assert fitted.code == 0, fitted.stderr.decode()
    assert ended.code == 1
    assert "disease" in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()
    assert leaks(home.all_but_the_table(), VALUE_NEEDLES) == {}


def declared_only() -> pa.Table:
    values = columns()
    values["disease"][values["disease"] == GAMMA] = BETA
    return pa.table(values)


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """All numbers and strings of some JSON, by their place in it."""
    if isinstance(value, dict):
        return {k: v for key in value for k, v in leaves(value[key], f"{name}.{key}").items()}
    if isinstance(value, list):
        return {
            k: v for i, part in enumerate(value) for k, v in leaves(part, f"{name}[{i}]").items()
        }
    return {name: value}


def public_facts(home: Home) -> dict[str, Any]:
    """What a run shows before its first release."""
    header = json.loads((home.run / "journal.jsonl").read_text().splitlines()[0])
    facts = leaves(header, "journal.jsonl")
    for file in [home.prepared / "manifest.json", home.run / "run.json"]:
        facts.update(leaves(json.loads(file.read_text()), file.name))
    for file in files_under(home.prepared / "public"):
        facts[file.name] = file.read_bytes()
    facts["spec.toml"] = (home.run / "spec.toml").read_bytes()
    return facts


def test_no_fingerprint_of_private_data_is_public(
    server: ForkServer, make_home: Callable[..., Home]
) -> None:
    """Whoever knows all values but one could otherwise try them all until a checksum fits.

    The same table is prepared twice, then a table with one other sensitive value. What is equal in
    the first two must be equal in the third: then it is no function of the sensitive value. What
    differs in the first two is random, or depends on a key.
    """
    home = make_home("fingerprint")
    step = home.step("fit", "fit", "spec.toml", "--out", "run", kill=Kill("done */journal.jsonl"))

    def facts_of(values: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
        pq.write_table(pa.table(values), home.path / "table.parquet")
        ((ended,),) = server.run([[step]])
        assert ended.code == -signal.SIGKILL
        facts = public_facts(home)
        shutil.rmtree(home.run)
        shutil.rmtree(home.prepared)
        return facts

    neighbour = columns()
    neighbour["disease"][0] = ALPHA if neighbour["disease"][0] != ALPHA else BETA
    first, second, third = facts_of(columns()), facts_of(columns()), facts_of(neighbour)
    assert first.keys() == second.keys() == third.keys()
    fingerprints = [
        name for name in first if first[name] == second[name] and first[name] != third[name]
    ]
    assert fingerprints == []
