"""Append-only logs of lines: a file on a local disk, numbered objects in a bucket."""

from __future__ import annotations

import os
from typing import Protocol

from pipeline import storage


class LineLog(Protocol):
    """Lines that are only ever added. What a writing method did is durable when it returns."""

    path: str

    def exists(self) -> bool:
        """Whether the log was created."""

    def create(self, line: bytes) -> None:
        """Writes the first line, wholly or not at all."""

    def read(self) -> bytes:
        """All lines, including an incomplete one at the end."""

    def append(self, line: bytes) -> None:
        """Adds a line; refuses if another process added one since `create` or `read`."""

    def drop_last_line(self, size: int) -> None:
        """Removes an incomplete last line; ``size`` is the number of bytes before it."""

    def close(self) -> None:
        """Called once, after the last line."""


def open_log(path: storage.PathName) -> LineLog:
    """The log at a path: a file on a local disk, numbered objects in a bucket."""
    name = os.fspath(path)
    return _ObjectLineLog(name) if storage.is_remote(name) else _FileLineLog(name)


class _FileLineLog:
    """One local file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._size = 0

    def exists(self) -> bool:
        return storage.exists(self.path)

    def create(self, line: bytes) -> None:
        storage.write_bytes(self.path, line)
        self._size = len(line)

    def read(self) -> bytes:
        data = storage.read_bytes(self.path)
        self._size = len(data)
        return data

    def append(self, line: bytes) -> None:
        storage.append_durably(self.path, line, expected_size=self._size)
        self._size += len(line)

    def drop_last_line(self, size: int) -> None:
        storage.truncate_durably(self.path, size)
        self._size = size

    def close(self) -> None:
        pass


class _ObjectLineLog:
    """One object per line, in a folder named after the log: ``journal/00000000.json`` and on.

    The objects are the log; the file at ``path`` is a copy of them for people, made on close.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder = os.path.splitext(path)[0]
        self._num_lines = 0

    def exists(self) -> bool:
        return bool(storage.list_files(self._folder))

    def create(self, line: bytes) -> None:
        self.append(line)

    def read(self) -> bytes:
        names = storage.list_files(self._folder)
        if not names or names != [f"{index:08d}.json" for index in range(len(names))]:
            raise storage.StorageError(
                f"cannot read {self.path}: {self._folder} must hold objects numbered from 00000000 "
                f"without gaps, but there are {len(names)}; check the path, or restore a backup"
            )
        self._num_lines = len(names)
        return b"".join(storage.read_bytes(storage.join(self._folder, name)) for name in names)

    def append(self, line: bytes) -> None:
        name = storage.join(self._folder, f"{self._num_lines:08d}.json")
        if storage.exists(name):
            raise storage.StorageError(
                f"{name} exists already: another process is working on this run; make sure that "
                "only one does"
            )
        storage.write_bytes(name, line)
        self._num_lines += 1

    def drop_last_line(self, size: int) -> None:
        self._num_lines -= 1
        storage.delete(storage.join(self._folder, f"{self._num_lines:08d}.json"))

    def close(self) -> None:
        storage.write_bytes(self.path, self.read())
