"""A run that is killed with SIGKILL, anywhere, continues as if nothing had happened.

Every kill point is a real process that ends itself with SIGKILL in the middle of a real fit (see
`crashing_fit`), and a second real process that resumes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_tables
from crashing_fit import Ended, ForkServer, Kill, Step

SEED = "7"
NUM_APPENDS = 28  # lines of the reference's journal after its header; checked below

_STATE = "*/work/state/round-00000002.block"
_RESULT = "*/work/passes/*/result"

KILLS: dict[str, Kill] = {
    **{f"line-{k}-written": Kill("done append", k) for k in (1, 2, 5, 8, 11, 17, 22, 25)},
    **{f"line-{k}-torn": Kill("half append", k) for k in (1, 3, 14, 24, NUM_APPENDS)},
    **{f"line-{k}-not-begun": Kill("begin append", k) for k in (12, NUM_APPENDS)},
    "middle-of-a-pass": Kill("done block", 11),
    "before-a-pipeline": Kill("begin launch", 4),
    "after-a-pipeline": Kill("done launch", 5),
    "exact-sums-half-written": Kill(f"half {_RESULT}", 1),
    "exact-sums-not-renamed": Kill(f"whole {_RESULT}", 5),
    "exact-sums-written": Kill(f"done {_RESULT}", 4),
    "pass-half-deleted": Kill("half delete */work/passes/*", 3),
    "beliefs-half-written": Kill("half */work/beliefs/*u2/*", 2),
    "beliefs-not-renamed": Kill("whole */work/beliefs/*u1/*", 1),
    "beliefs-written": Kill("done */work/beliefs/*u5/*", 3),
    "old-beliefs-half-deleted": Kill("half delete */work/beliefs/*", 1),
    "state-half-written": Kill(f"half {_STATE}"),
    "state-not-renamed": Kill(f"whole {_STATE}"),
    "state-written": Kill(f"done {_STATE}"),
    "models-half-written": Kill("half */models.json"),
    "models-written": Kill("done */models.json"),
}

# The last journal line is durable, so the run is finished; only cleaning up is left.
FINISHED_KILLS = {
    "finished-noted": Kill("done append", NUM_APPENDS),
    "work-half-deleted": Kill("half delete */work"),
    "work-deleted": Kill("done delete */work"),
}

PREPARE_KILLS = {
    "scan-half-written": Kill("half */scan-result"),
    "public-block-half-written": Kill("half */public/*", 2),
    "codes-not-renamed": Kill("whole */private/*", 2),
    "records-written": Kill("done */write-result"),
    "manifest-half-written": Kill("half */manifest.json"),
    "header-half-written": Kill("half */journal.jsonl"),
}

# Several kills in a row; the last resume is left alone.
CHAINS = {
    "torn-then-while-cutting-it-off": (
        Kill("half append", 8),
        Kill("begin truncate"),
        Kill("done truncate"),
        Kill("half append", 1),
    ),
    "again-and-again": (
        Kill("done append", 5),
        Kill("done append", 1),
        Kill("done block", 2),
        Kill("half */work/state/*", 1),
        Kill("half */models.json"),
    ),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table, its specification and the reference run's results."""
    folder = tmp_path_factory.mktemp("crash")
    small_tables.write_run(folder)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as running:
        yield running


@pytest.fixture(scope="module")
def reference(home: Path, server: ForkServer) -> Path:
    """The uninterrupted run; also prepares the table for the others."""
    ((ended,),) = server.run([[fit_step(home, "reference")]])
    assert ended.code == 0, ended.stderr.decode()
    return home / "reference"


def fit_step(
    home: Path, out: str, kill: Kill | None = None, *, spec: str = "run.toml", seed: str = SEED
) -> Step:
    seeded = ["--seed", seed] if seed else []
    return Step(
        ["fit", spec, "--out", str(home / out), *seeded],
        str(home),
        f"{out}.fit",
        kill,
        copy=[(str(home / out), str(home / f"{out}.killed"))] if kill else [],
    )


def resume_step(home: Path, out: str, kill: Kill | None = None, number: int = 1) -> Step:
    copy = [(str(home / out), str(home / f"{out}.killed{number}"))] if kill else []
    return Step(["resume", str(home / out)], str(home), f"{out}.resume{number}", kill, copy=copy)


def records(directory: Path) -> list[dict[str, Any]]:
    """The journal without its header and checks, which hold the run's random name."""
    lines = (directory / "journal.jsonl").read_bytes().splitlines()[1:]
    parsed = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k != "check"} for record in parsed]


def files_of(directory: Path) -> set[str]:
    return {str(f.relative_to(directory)) for f in directory.rglob("*")}


def whole_lines(journal: Path) -> bytes:
    data = journal.read_bytes() if journal.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def assert_same_run(directory: Path, reference: Path) -> None:
    """Models, releases, charges and files are those of the uninterrupted run."""
    for name in ("models.json", "privacy.json", "encoder.json"):
        assert (directory / name).read_bytes() == (reference / name).read_bytes(), name
    assert records(directory) == records(reference)
    assert files_of(directory) == files_of(reference)
    privacy = json.loads((directory / "privacy.json").read_text())
    charged = [r["charge"]["rho"] for r in records(directory) if r.get("charge")]
    assert [charge["rho"] for charge in privacy["charges"]] == charged
    assert privacy["rho_spent"] == pytest.approx(sum(charged), rel=1e-12)


def assert_journal_only_grew(killed: Path, directory: Path) -> None:
    before = whole_lines(killed / "journal.jsonl")
    assert (directory / "journal.jsonl").read_bytes().startswith(before)


def assert_refused(ended: Ended, *words: str) -> None:
    """Exit code 1 and one sentence on standard error, without a traceback."""
    message = ended.stderr.decode()
    assert ended.code == 1, message
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) == 1, message
    for word in words:
        assert word in message


@pytest.fixture(scope="module")
def outcomes(home: Path, server: ForkServer, reference: Path) -> dict[str, list[Ended]]:
    """All kill points of a fit whose table is prepared, and their resumes."""
    points = {**KILLS, **FINISHED_KILLS}
    scripts = [
        [fit_step(home, name, kill), resume_step(home, name)] for name, kill in points.items()
    ]
    return dict(zip(points, server.run(scripts), strict=True))


def test_the_uninterrupted_run_has_what_the_kill_points_need(reference: Path) -> None:
    found = records(reference)
    assert len(found) == NUM_APPENDS
    kinds = [record["kind"] for record in found]
    assert kinds.count("measure") >= 5
    assert kinds[-1] == "finished"
    assert not (reference / "work").exists()
    assert len(KILLS) >= 20


def test_the_same_seed_gives_the_same_run(home: Path, server: ForkServer, reference: Path) -> None:
    ((ended,),) = server.run([[fit_step(home, "again")]])
    assert ended.code == 0
    assert_same_run(home / "again", reference)


@pytest.mark.parametrize("point", KILLS)
def test_killed_and_resumed(
    point: str, home: Path, reference: Path, outcomes: dict[str, list[Ended]]
) -> None:
    killed, resumed = outcomes[point]
    assert killed.code == -signal.SIGKILL, "the kill point was not reached"
    assert resumed.code == 0, resumed.stderr.decode()
    assert resumed.stderr == b""
    assert_journal_only_grew(home / f"{point}.killed", home / point)
    assert_same_run(home / point, reference)


def test_a_resume_takes_few_extra_passes(
    home: Path, reference: Path, outcomes: dict[str, list[Ended]]
) -> None:
    """Passes are what a fit costs: the interrupted round may be repeated, but not many times."""

    def num_passes(directory: Path) -> int:
        passes: int = json.loads((directory / "metrics.json").read_text())["passes"]
        return passes

    most = {point: num_passes(home / point) - num_passes(reference) for point in KILLS}
    assert {point: extra for point, extra in most.items() if extra > 2} == {}


@pytest.mark.parametrize("point", FINISHED_KILLS)
def test_killed_while_cleaning_up(
    point: str, home: Path, reference: Path, outcomes: dict[str, list[Ended]]
) -> None:
    """Nothing is left to fit, but what only a running fit needs must still go."""
    killed, resumed = outcomes[point]
    assert killed.code == -signal.SIGKILL
    assert_refused(resumed, "finished", "models.json")
    assert_same_run(home / point, reference)


@pytest.fixture(scope="module")
def prepare_outcomes(home: Path, server: ForkServer, reference: Path) -> dict[str, list[Ended]]:
    scripts = []
    for point, kill in PREPARE_KILLS.items():
        text = small_tables.spec_text(home / "table.parquet", prepared=home / f"{point}.prepared")
        (home / f"{point}.toml").write_text(text)
        scripts.append(
            [fit_step(home, point, kill, spec=f"{point}.toml"), resume_step(home, point)]
        )
    return dict(zip(PREPARE_KILLS, server.run(scripts), strict=True))


@pytest.mark.parametrize("point", PREPARE_KILLS)
def test_killed_while_preparing(
    point: str, home: Path, reference: Path, prepare_outcomes: dict[str, list[Ended]]
) -> None:
    killed, resumed = prepare_outcomes[point]
    assert killed.code == -signal.SIGKILL, "the kill point was not reached"
    assert resumed.code == 0, resumed.stderr.decode()
    assert_same_run(home / point, reference)
    prepared, expected = home / f"{point}.prepared", home / "run.prepared"
    for name in files_of(expected):
        if name.endswith(".block"):
            assert (prepared / name).read_bytes() == (expected / name).read_bytes()
    assert files_of(prepared) == files_of(expected)


@pytest.mark.parametrize("name", CHAINS)
def test_killed_many_times(name: str, home: Path, server: ForkServer, reference: Path) -> None:
    first, *others = CHAINS[name]
    steps = [fit_step(home, name, first)]
    steps += [resume_step(home, name, kill, i) for i, kill in enumerate(others, start=1)]
    (ended,) = server.run([[*steps, resume_step(home, name, number=len(others) + 1)]])
    assert [step.code for step in ended] == [-signal.SIGKILL] * len(CHAINS[name]) + [0]
    copies = [f"{name}.killed", *(f"{name}.killed{i}" for i in range(1, len(others) + 1)), name]
    for before, after in itertools.pairwise(copies):
        assert_journal_only_grew(home / before, home / after)
    assert_same_run(home / name, reference)


def test_a_run_that_stops_early_can_be_killed_too(home: Path, server: ForkServer) -> None:
    (home / "early.toml").write_text(
        small_tables.spec_text(home / "table.parquet", max_updates=4, tau=0.03)
    )
    points = [None, Kill("half append", 9), Kill("done */models.json"), Kill("done append", 12)]
    scripts = [
        [fit_step(home, f"early{i}", kill, spec="early.toml")]
        + ([resume_step(home, f"early{i}")] if kill else [])
        for i, kill in enumerate(points)
    ]
    ended = server.run(scripts[:1]) + server.run(scripts[1:])  # the first one prepares the table
    assert ended[0][0].code == 3
    assert b"stopped early" in ended[0][0].stderr
    for number, (killed, resumed) in enumerate(ended[1:], start=1):
        assert (killed.code, resumed.code) == (-signal.SIGKILL, 3), resumed.stderr.decode()
        assert resumed.stderr == ended[0][0].stderr
        assert_same_run(home / f"early{number}", home / "early0")


def test_an_unseeded_run_draws_no_second_noise(
    home: Path, server: ForkServer, reference: Path
) -> None:
    """Two copies of one killed run continue to the same releases: noise is fixed by its key."""
    server.run([[fit_step(home, "unseeded", Kill("done append", 10), seed="")]])
    twins = server.run([[resume_step(home, "unseeded")], [resume_step(home, "unseeded.killed")]])
    assert [ended.code for (ended,) in twins] == [0, 0]
    assert_same_run(home / "unseeded.killed", home / "unseeded")
    assert records(home / "unseeded") != records(reference)
    assert json.loads((home / "unseeded/privacy.json").read_text())["private"] is True


def test_the_journal_alone_is_enough(home: Path, server: ForkServer, reference: Path) -> None:
    """Beliefs and solver states can be lost: they are computed again from the journal."""
    server.run([[fit_step(home, "bare", Kill("done append", 21))]])
    shutil.rmtree(home / "bare/work")
    ((ended,),) = server.run([[resume_step(home, "bare")]])
    assert ended.code == 0, ended.stderr.decode()
    assert_journal_only_grew(home / "bare.killed", home / "bare")
    assert_same_run(home / "bare", reference)


@pytest.mark.parametrize("at", ["done */spec.toml", "half */run.json", "whole */run.json"])
def test_killed_before_there_is_a_run(
    at: str, home: Path, server: ForkServer, reference: Path
) -> None:
    """A directory that was only begun is no dead end: the same fit starts in it."""
    out = "unborn-" + at.split()[0] + at[-4:]
    killed, resumed, fitted = server.run(
        [
            [
                fit_step(home, out, Kill(at)),
                resume_step(home, out),
                Step(
                    ["fit", "run.toml", "--out", str(home / out), "--seed", SEED],
                    str(home),
                    f"{out}.again",
                ),
            ]
        ]
    )[0]
    assert killed.code == -signal.SIGKILL
    if resumed.code != 0:
        assert_refused(resumed, "not a run")
        assert fitted.code == 0, fitted.stderr.decode()
    assert_same_run(home / out, reference)


@pytest.fixture(scope="module")
def killed_run(home: Path, server: ForkServer, reference: Path) -> Path:
    """A run with a key of its own, killed in the middle; copy it before use."""
    ((ended,),) = server.run([[fit_step(home, "template", Kill("done append", 11), seed="")]])
    assert ended.code == -signal.SIGKILL
    return home / "template"


def resume_changed(server: ForkServer, home: Path, name: str) -> Ended:
    """Resumes a directory that must be refused; nothing in its journal may change."""
    before = (home / name / "journal.jsonl").read_bytes()
    ((ended,),) = server.run([[resume_step(home, name)]])
    assert (home / name / "journal.jsonl").read_bytes() == before
    assert not (home / name / "models.json").exists()
    return ended


def test_a_finished_run_is_not_resumed(home: Path, server: ForkServer, reference: Path) -> None:
    before = {name: (reference / name).read_bytes() for name in files_of(reference)}
    ((ended,),) = server.run([[resume_step(home, "reference")]])
    assert_refused(ended, "reference", "finished", "models.json")
    assert {name: (reference / name).read_bytes() for name in files_of(reference)} == before


def test_a_finished_run_needs_its_table_no_more(
    home: Path, server: ForkServer, reference: Path
) -> None:
    """Nothing is prepared again only to say that there is nothing to do."""
    shutil.copytree(reference, home / "done")
    facts = home / "done/run.json"
    gone = home / "gone.prepared"
    facts.write_text(facts.read_text().replace(str(home / "run.prepared"), str(gone)))
    ((ended,),) = server.run([[resume_step(home, "done")]])
    assert_refused(ended, "finished", "models.json")
    assert not gone.exists()


def test_a_used_directory_is_not_fitted_into(
    home: Path, server: ForkServer, reference: Path
) -> None:
    step = Step(["fit", "run.toml", "--out", str(reference)], str(home), "into-used")
    assert_refused(server.run([[step]])[0][0], "not empty", "--out", "ssdp resume")


def test_what_is_no_run_is_not_resumed(home: Path, server: ForkServer) -> None:
    (home / "no-run").mkdir()
    (home / "no-run" / "notes.txt").write_text("mine")
    for name in ("no-run", "missing"):
        ((ended,),) = server.run([[resume_step(home, name)]])
        assert_refused(ended, name, "not a run")
    assert files_of(home / "no-run") == {"notes.txt"}
    assert not (home / "missing").exists()


def test_a_changed_table_is_refused(home: Path, server: ForkServer) -> None:
    spec = small_tables.write_run(home / "own")
    step = fit_step(home, "changed", Kill("done append", 9), spec=str(spec))
    server.run([[step]])
    small_tables.write_table(home / "own/table.parquet", seed=1)
    assert_refused(resume_changed(server, home, "changed"), "table.parquet", "changed", "restore")
    small_tables.write_table(home / "own/table.parquet")
    ((ended,),) = server.run([[resume_step(home, "changed", number=2)]])
    assert ended.code == 0, ended.stderr.decode()


def test_a_journal_of_another_spec_is_refused(
    home: Path, server: ForkServer, killed_run: Path
) -> None:
    shutil.copytree(killed_run, home / "other-spec")
    spec = home / "other-spec/spec.toml"
    changed = spec.read_text().replace("epsilon = 20.0", "epsilon = 40.0")
    assert changed != spec.read_text()
    spec.write_text(changed)
    assert_refused(resume_changed(server, home, "other-spec"), "belongs to another spec")


def test_a_journal_of_another_run_is_refused(
    home: Path, server: ForkServer, reference: Path, killed_run: Path
) -> None:
    shutil.copytree(killed_run, home / "other-run")
    shutil.copy(reference / "journal.jsonl", home / "other-run/journal.jsonl")
    assert_refused(resume_changed(server, home, "other-run"), "belongs to another run")


@pytest.mark.parametrize("part", ["public", "private"])
def test_a_damaged_block_is_refused(
    part: str, home: Path, server: ForkServer, killed_run: Path
) -> None:
    name = f"damaged-{part}"
    shutil.copytree(killed_run, home / name)
    prepared = home / f"{name}.prepared"
    shutil.copytree(home / "run.prepared", prepared)
    facts = home / name / "run.json"
    facts.write_text(facts.read_text().replace(str(home / "run.prepared"), str(prepared)))
    block = prepared / part / "000000-000001.block"
    data = bytearray(block.read_bytes())
    data[-3] ^= 1
    block.write_bytes(data)
    assert_refused(resume_changed(server, home, name), str(block), "damaged", "checksum")


def test_a_lost_noise_key_is_refused(home: Path, server: ForkServer, killed_run: Path) -> None:
    shutil.copytree(killed_run, home / "keyless")
    (home / "keyless/work/noise.key").unlink()
    assert_refused(resume_changed(server, home, "keyless"), "noise.key", "does not exist")


def test_a_damaged_journal_is_refused(home: Path, server: ForkServer, killed_run: Path) -> None:
    shutil.copytree(killed_run, home / "damaged")
    journal = home / "damaged/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4] + lines[5:]))
    assert_refused(resume_changed(server, home, "damaged"), "journal.jsonl", "damaged")


def console(home: Path, *words: str) -> subprocess.Popen[bytes]:
    """The console command as users start it, in a process of its own."""
    start = "import sys; from pipeline.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", start, *words],
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@contextlib.contextmanager
def stopped_at_line(home: Path, out: str, num_lines: int) -> Iterator[subprocess.Popen[bytes]]:
    """A running ``ssdp fit`` that was halted (not ended) when its journal had some lines."""
    running = console(home, "fit", "run.toml", "--out", out, "--seed", SEED)
    journal = home / out / "journal.jsonl"
    deadline = time.monotonic() + 60
    try:
        while whole_lines(journal).count(b"\n") < num_lines:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline, "the fit made no progress"
            time.sleep(0.005)
        os.kill(running.pid, signal.SIGSTOP)
        yield running
    finally:
        running.kill()
        running.communicate()


def test_killed_from_outside_while_another_resume_waits(home: Path, reference: Path) -> None:
    with stopped_at_line(home, "outside", 9) as running:
        second = console(home, "resume", "outside")
        printed, complaint = second.communicate(timeout=60)
        assert running.poll() is None
    assert_refused(Ended(second.returncode, printed, complaint), "another ssdp process", "outside")
    assert running.returncode == -signal.SIGKILL
    shutil.copytree(home / "outside", home / "outside.killed")
    third = console(home, "resume", "outside")
    _, complaint = third.communicate(timeout=60)
    assert third.returncode == 0, complaint.decode()
    assert_journal_only_grew(home / "outside.killed", home / "outside")
    assert_same_run(home / "outside", reference)
