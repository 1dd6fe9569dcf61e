"""Runs ``ssdp`` in forked processes that kill themselves with SIGKILL at a chosen point.

Importing Beam takes seconds, so one server process imports everything once and forks a child for
every command. The child wraps the low-level operations of a run; each of them is a named event:

    begin PATH, half PATH, whole PATH, done PATH     a file written by `storage.write_bytes`: not
                                                     begun, half its bytes in the temporary file,
                                                     all of them but not renamed, renamed
    begin append, half append, done append           a line of the journal
    begin truncate, done truncate                    a torn line being cut off
    begin delete PATH, half delete PATH,             a folder being deleted; half is after its first
    done delete PATH                                 file
    begin block, done block                          a block in a pass
    begin launch, done launch                        a pipeline

and the child dies at the k-th event whose name matches a pattern. As a script this file is the
server: one JSON request per line on standard input, one JSON answer per line on standard output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

UNEXPECTED = 70  # exit code for an exception that no command may let through
_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Kill:
    """Die at the ``count``-th event that matches ``at``."""

    at: str
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        argv: arguments of ``ssdp``.
        cwd: working directory, where ``stdout`` and ``stderr`` of all steps are kept too.
        name: unique in ``cwd``.
        kill: where to die, if anywhere.
        copy: pairs (folder, copy): folders to copy after the step, to be looked at later.
        environment: set for this command.
        umask: of this command.
        record: a file for all exact values that the command sees; see `record_exact_values`.
    """

    argv: Sequence[str]
    cwd: str
    name: str
    kill: Kill | None = None
    copy: Sequence[tuple[str, str]] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    umask: int = 0o022
    record: str | None = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a step ended: an exit code, or minus a signal; and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes


class ForkServer:
    """A process that has imported everything; use as a context manager."""

    def __enter__(self) -> ForkServer:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=_SECONDS)

    def run(self, scripts: Sequence[Sequence[Step]]) -> list[list[Ended]]:
        """Runs scripts, two at a time; the steps of a script one after another."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = [[dataclasses.asdict(step) for step in script] for script in scripts]
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [
            [Ended(code, *_printed(step)) for step, code in zip(script, ended, strict=True)]
            for script, ended in zip(scripts, codes, strict=True)
        ]


def _printed(step: Step) -> tuple[bytes, bytes]:
    folder = Path(step.cwd)
    return (
        (folder / f"{step.name}.stdout").read_bytes(),
        (folder / f"{step.name}.stderr").read_bytes(),
    )


def _step(fields: dict[str, Any]) -> Step:
    kill = fields.pop("kill")
    return Step(kill=None if kill is None else Kill(**kill), **fields)


class _Killer:
    """Counts events and ends the process at the chosen one."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._lock = threading.Lock()
        self._seen = 0

    def is_now(self, event: str) -> bool:
        if not fnmatch.fnmatchcase(event, self._kill.at):
            return False
        with self._lock:
            self._seen += 1
            return self._seen == self._kill.count

    def __call__(self, event: str) -> None:
        if self.is_now(event):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: Kill) -> None:
    """Wraps the low-level operations of a run so that they report events."""
    from pipeline import launch, passes, storage

    event = _Killer(kill)
    target = threading.local()
    write, replace = os.write, os.replace

    def write_bytes(path: Any, data: bytes, *, private: bool = False) -> None:
        event(f"begin {path}")
        target.path = str(path)
        try:
            plain_write_bytes(path, data, private=private)
        finally:
            target.path = None
        event(f"done {path}")

    def append_durably(path: Any, data: bytes, **options: Any) -> None:
        event("begin append")
        target.path = "append"
        try:
            plain_append(path, data, **options)
        finally:
            target.path = None
        event("done append")

    def half_write(descriptor: int, data: Any) -> int:
        path = getattr(target, "path", None)
        if path is not None and event.is_now(f"half {path}"):
            write(descriptor, data[: len(data) // 2])
            die()
        return write(descriptor, data)

    def watched_replace(source: Any, destination: Any, **options: Any) -> None:
        event(f"whole {destination}")
        replace(source, destination, **options)

    def delete_folder(path: Any) -> None:
        if not os.path.isdir(path):
            return
        event(f"begin delete {path}")
        files = sorted(file for file in Path(path).rglob("*") if file.is_file())
        if files and event.is_now(f"half delete {path}"):
            files[0].unlink()
            die()
        plain_delete_folder(path)
        event(f"done delete {path}")

    plain_write_bytes, plain_append = storage.write_bytes, storage.append_durably
    plain_delete_folder = storage.delete_folder
    storage.write_bytes = write_bytes
    storage.append_durably = append_durably
    storage.delete_folder = delete_folder
    storage.truncate_durably = _surrounded(storage.truncate_durably, "truncate", event)
    passes.evaluate_block = _surrounded(passes.evaluate_block, "block", event)
    launch.Launcher.run = _surrounded(launch.Launcher.run, "launch", event)  # type: ignore[method-assign]
    os.write = half_write
    os.replace = watched_replace


def record_exact_values(path: str) -> None:
    """Copies every exact sum and norm of a run to a file: what a leak would consist of.

    Lines of JSON: {"exponent", "data", "belief"} for a query on a block, {"data"} for one on the
    table (both in lattice units), {"norm"} for a distance as the curator sees it.
    """
    from pipeline import passes
    from ssdp_core import curator, engine

    evaluate, box, norm = passes.evaluate_block, engine.ExactSum.__init__, curator.l2_norm
    log = open(path, "a")  # noqa: SIM115 - until the process ends
    lock = threading.Lock()

    def write(**facts: Any) -> None:
        with lock:
            print(json.dumps(facts), file=log, flush=True)

    def recorded_block(queries: Any, lattices: Any, *rest: Any) -> Any:
        results = evaluate(queries, lattices, *rest)
        for lattice, result in zip(lattices, results, strict=True):
            if result.data_units is not None:
                data, belief = result.data_units.tolist(), result.belief_units.tolist()
                write(exponent=lattice.exponent, data=data, belief=belief)
        return results

    def recorded_box(self: Any, units: Any) -> None:
        write(data=units.tolist())
        box(self, units)

    def recorded_norm(units: Any) -> float:
        result = norm(units)
        write(norm=result)
        return result

    passes.evaluate_block = recorded_block
    engine.ExactSum.__init__ = recorded_box  # type: ignore[method-assign]
    curator.l2_norm = recorded_norm


def _surrounded(
    function: Callable[..., Any], name: str, event: Callable[[str], None]
) -> Callable[..., Any]:
    def surrounded(*arguments: Any, **options: Any) -> Any:
        event(f"begin {name}")
        result = function(*arguments, **options)
        event(f"done {name}")
        return result

    return surrounded


def _child(step: Step) -> None:
    """Runs one command in this (forked) process and ends it."""
    signal.alarm(_SECONDS)  # a hanging run must not hang the tests
    code = UNEXPECTED
    try:
        os.chdir(step.cwd)
        os.umask(step.umask)
        os.environ.update(step.environment)
        tempfile.tempdir = None
        for number, stream in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
            name = stream if number == 0 else f"{step.name}.{stream}"
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(name, flags, 0o666), number)
        from pipeline.cli import main

        if step.record is not None:
            record_exact_values(step.record)
        if step.kill is not None:
            arm(step.kill)
        code = main(list(step.argv))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else UNEXPECTED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class _Scheduler:
    """Runs scripts in forked children, a few at a time, from a single thread."""

    def __init__(self, scripts: list[list[Step]], num_at_once: int = 2) -> None:
        self._waiting = list(enumerate(map(iter, scripts)))
        self._running: dict[int, tuple[int, Step, Iterator[Step]]] = {}
        self._codes: list[list[int]] = [[] for _ in scripts]
        self._num_at_once = num_at_once

    def run(self) -> list[list[int]]:
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._num_at_once:
                self._next(*self._waiting.pop(0))
            pid, status = os.wait()
            index, step, rest = self._running.pop(pid)
            self._codes[index].append(os.waitstatus_to_exitcode(status))
            for folder, copy in step.copy:
                if os.path.isdir(folder):
                    shutil.copytree(folder, copy)
            self._next(index, rest)
        return self._codes

    def _next(self, index: int, steps: Iterator[Step]) -> None:
        step = next(steps, None)
        if step is None:
            return
        pid = os.fork()
        if pid == 0:
            _child(step)
        self._running[pid] = (index, step, steps)


def _import_everything() -> None:
    for name in (
        "apache_beam.runners.portability.fn_api_runner",
        "apache_beam.runners.worker.sdk_worker",
        "pyarrow.csv",
        "pyarrow.parquet",
        "pipeline.commands",
        "pipeline.fit",
    ):
        importlib.import_module(name)


def _load_kernels() -> None:
    """A few updates in memory and on one thread, so that children find compiled code."""
    import numpy as np
    import small_tables

    from pipeline.spec import parse_spec
    from ssdp_core.accounting import ZcdpFilter
    from ssdp_core.curator import Curator
    from ssdp_core.engine import InMemoryEngine
    from ssdp_core.features import DenseFeatures, PublicRows
    from ssdp_core.noise import NoiseSource
    from ssdp_core.oracles import AnsweredGradients, InexactGradientSolver
    from ssdp_core.paper_parameters import PvmwParameters
    from ssdp_core.problems import LinearErm
    from ssdp_core.pvmw import PrivateVectorAnswerer

    spec = parse_spec(small_tables.spec_text("table.parquet"))
    domain = spec.domain()
    table = small_tables.columns()
    rows = PublicRows(
        num_rows=small_tables.NUM_ROWS,
        features=DenseFeatures(np.full((small_tables.NUM_ROWS, 4), 0.5, dtype=np.float32)),
        columns={"clicked": table["clicked"].astype(float), "spend": table["spend"]},
    )
    engine = InMemoryEngine(
        rows, domain.encode({"segment": table["segment"]}), num_codes=3, num_threads=1
    )
    erms = [
        LinearErm(
            problem=problem,
            num_public=4,
            private_features=spec.private_features(domain, problem),
            feature_norm=1.0,
            target_bound=4.0,
        )
        for problem in spec.problems(domain)
    ]
    parameters = PvmwParameters(
        num_rows=rows.num_rows, rho=5.0, tau=0.08, max_updates=40, eta=1.0, truncation=3.0, zeta=0.5
    )
    curator = Curator(engine, budget=ZcdpFilter(5.0), noise=NoiseSource.seeded(0))
    answerer = PrivateVectorAnswerer(engine, curator, parameters, tight_charges=True)
    solver = InexactGradientSolver(erms, num_rows=rows.num_rows, num_steps=2)
    AnsweredGradients(answerer).gradients(erms, solver.points())


def _serve() -> None:
    _import_everything()
    _load_kernels()
    if threading.active_count() > 1:
        raise RuntimeError("a thread is running: forking would not be safe")
    for line in sys.stdin:
        scripts = [[_step(fields) for fields in script] for script in json.loads(line)]
        print(json.dumps(_Scheduler(scripts).run()), flush=True)


if __name__ == "__main__":
    _serve()
