"""The lock with real processes: a holder that works, one that is killed, one that forked."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from pipeline.run_lock import RunBusyError, RunLock
from pipeline.storage import StorageError

_HOLD = """
import sys, time
from pipeline.run_lock import RunLock
with RunLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""

_HOLD_WITH_FORKED_CHILD = """
import os, sys, time
from pipeline.run_lock import RunLock
with RunLock(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.3)  # until the child has closed its copy
    print(child, flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holder(code, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_until_the_first_has_finished(tmp_path):
    with holder(_HOLD, tmp_path) as (process, said):
        assert said == "held"
        with pytest.raises(RunBusyError, match=f"another ssdp process is working on {tmp_path}"):
            RunLock(tmp_path).__enter__()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(timeout=30) == 0
        with RunLock(tmp_path):
            pass


def test_a_killed_holder_leaves_no_lock(tmp_path):
    with holder(_HOLD, tmp_path) as (process, said):
        assert said == "held"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        with RunLock(tmp_path):
            pass


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_holder(tmp_path):
    with holder(_HOLD_WITH_FORKED_CHILD, tmp_path) as (process, said):
        child = int(said)
        try:
            with pytest.raises(RunBusyError):
                RunLock(tmp_path).__enter__()
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
            os.kill(child, 0)  # still alive
            with RunLock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_only_one_of_many_processes_gets_the_lock(tmp_path):
    code = (
        "import sys, time; from pipeline.run_lock import RunBusyError, RunLock\n"
        "try:\n"
        "    with RunLock(sys.argv[1]): print('held', flush=True); sys.stdin.readline()\n"
        "except RunBusyError: print('busy', flush=True)"
    )
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(holder(code, tmp_path))[1] for _ in range(4)]
    assert sorted(said) == ["busy", "busy", "busy", "held"]


def test_two_locks_in_one_process_exclude_each_other(tmp_path):
    lock = RunLock(tmp_path)
    with lock:
        with pytest.raises(RunBusyError):
            RunLock(tmp_path).__enter__()
        with pytest.raises(RunBusyError, match="this process"):
            lock.__enter__()
    with lock:
        pass


def test_an_error_inside_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), RunLock(tmp_path):
        raise KeyError
    with RunLock(tmp_path):
        pass


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot lock .*nowhere: .*existing run directory"):
        RunLock(tmp_path / "nowhere").__enter__()


def test_a_bucket_is_not_locked():
    with RunLock("gs://bucket/run"), RunLock("gs://bucket/run"):
        pass
