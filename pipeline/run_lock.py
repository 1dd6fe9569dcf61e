"""One process at a time works on a run directory.

Two processes that continue the same run would both append to its journal. The lock is an advisory
``flock`` on the file ``lock`` in the directory: the operating system releases it when the process
ends, however it ends, so a crash leaves nothing to clean up. The file itself stays: removing it
would let a third process lock a different file of the same name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from types import TracebackType

from pipeline import storage
from ssdp_core.errors import SsdpError

LOCK_NAME = "lock"

_held: set[int] = set()


class RunBusyError(SsdpError):
    """Another process is working on the run directory; nothing was changed."""


class RunLock:
    """Holds a run directory exclusively, as a context manager.

    A directory in a bucket is NOT locked: object stores have no locks, and starting two processes
    on the same ``gs://`` directory must be prevented by whoever starts them.

    Args:
        path: an existing run directory.

    Raises:
        RunBusyError: on entering, if another process (or another `RunLock` in this one) holds it.
        StorageError: on entering, if the directory is missing or cannot be written to.
    """

    def __init__(self, path: storage.PathName) -> None:
        self._path = os.fspath(path)
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        if self._descriptor is not None:
            raise RunBusyError(f"this process is already working on {self._path}")
        if not storage.is_remote(self._path):
            self._descriptor = _lock(self._path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor in _held:  # not so in a forked child, which has closed it already
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def _lock(folder: str) -> int:
    name = storage.join(folder, LOCK_NAME)
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise storage.StorageError(
            f"cannot lock {folder}: {error.strerror}; it must be an existing run directory that "
            "you may write to"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunBusyError(
                f"another ssdp process is working on {folder}; wait until it has finished, or end "
                "it first"
            ) from error
        raise storage.StorageError(
            f"cannot lock {folder}: {error.strerror}; the file system must support file locks, so "
            "choose a directory on another one"
        ) from error
    _held.add(descriptor)
    return descriptor


def _close_in_forked_child() -> None:
    """A forked child shares its parent's lock; without this it would keep it after a crash."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_forked_child)
