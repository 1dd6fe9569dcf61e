"""Files of a run directory, on a local disk or in a bucket.

Local paths use the operating system directly, so that a write can be atomic, durable and readable
by its owner only. A path with a scheme (``gs://bucket/run``) goes through Beam's ``FileSystems``,
which is imported only then because that takes seconds.

Guarantee:
    After `write_bytes` returns, the file has its new content even if the machine loses power; if
    it raises or the process dies, the file is absent or has its old content, never a part. On a
    local disk that is a temporary file, ``fsync`` and a rename; in a bucket an object appears only
    when it is closed. Files named ``.tmp-*`` are leftovers of a process that was killed:
    `list_files` hides them and `remove_temporary_files` deletes them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Any, TypeAlias

from ssdp_core.errors import SsdpError

PathName: TypeAlias = "str | os.PathLike[str]"

TEMPORARY_PREFIX = ".tmp-"

_CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class StorageError(SsdpError):
    """A file could not be read or written; the message says which, why and what to do."""


def is_remote(path: PathName) -> bool:
    """Whether the path has a scheme, as ``gs://bucket/run`` does."""
    return "://" in os.fspath(path)


def join(*parts: PathName) -> str:
    """Joins a folder and names inside it, with the separator of the folder's kind."""
    first, *names = [os.fspath(part) for part in parts]
    if not is_remote(first):
        return os.path.join(first, *names)
    return "/".join([first.rstrip("/"), *(name.strip("/") for name in names)])


def parent(path: PathName) -> str:
    """The folder of a file; ``.`` for a bare name."""
    name = os.fspath(path)
    return name.rstrip("/").rpartition("/")[0] if is_remote(name) else os.path.dirname(name) or "."


def read_bytes(path: PathName) -> bytes:
    """The whole content of a file."""
    name = os.fspath(path)
    with explained("read", name), _open_to_read(name) as file:
        return bytes(file.read())


def write_bytes(path: PathName, data: bytes, *, private: bool = False) -> None:
    """Replaces or creates a file, atomically and durably; creates its folder if needed.

    Args:
        path: where to.
        data: the new content.
        private: for exact values: on a local disk only the owner may read the file (0600 from its
            first byte) and its folder if this call creates it (0700). In a bucket the bucket's own
            access rules decide.
    """
    name = os.fspath(path)
    with explained("write", name):
        if not is_remote(name):
            _write_local(name, data, 0o600 if private else 0o666, 0o700 if private else 0o777)
            return
        with _beam().create(_literal(name), compression_type="uncompressed") as file:
            file.write(data)


def append_durably(path: PathName, data: bytes, *, expected_size: int | None = None) -> None:
    """Adds bytes to the end of an existing local file; they are on the disk when it returns.

    If it raises, the file is cut back to what it was (unless even that fails: a reader must be able
    to recognise an incomplete end). Buckets have no append; write numbered objects instead.

    Args:
        path: an existing local file.
        data: what to add; one write, so that readers see all of it or a beginning of it.
        expected_size: refuse if the file is not this long, that is if someone else wrote to it.
    """
    name = _local_only("append to", path)
    with explained("write", name):
        descriptor = os.open(name, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if expected_size is not None and size != expected_size:
                raise StorageError(
                    f"{name} must be {expected_size} bytes long but is {size}: another process "
                    "changed it; make sure that only one process works on this directory"
                )
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                with contextlib.suppress(OSError):  # the first error is the one to report
                    os.ftruncate(descriptor, size)
                    os.fsync(descriptor)
                raise
        finally:
            os.close(descriptor)


def truncate_durably(path: PathName, size: int) -> None:
    """Cuts a local file to its first ``size`` bytes; it stays so after a crash."""
    name = _local_only("truncate", path)
    with explained("write", name):
        descriptor = os.open(name, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def exists(path: PathName) -> bool:
    """Whether there is a file (or, on a local disk, a folder) with this name."""
    name = os.fspath(path)
    if not is_remote(name):
        return os.path.exists(name)
    with explained("look for", name):
        return bool(_beam().exists(_literal(name)))


def list_files(folder: PathName) -> list[str]:
    """Names of all files in a folder and its subfolders, relative to it and sorted.

    Temporary files are left out. A missing folder has no files. Links to folders are not followed.
    """
    name = os.fspath(folder)
    with explained("list", name):
        found = _walk_remote(name) if is_remote(name) else _walk_local(name)
        return sorted(file for file in found if not _is_temporary(file))


def delete(path: PathName) -> None:
    """Deletes one file; a missing one is fine."""
    name = os.fspath(path)
    with explained("delete", name):
        if not is_remote(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        elif _beam().exists(_literal(name)):
            _beam().delete([name])


def delete_folder(path: PathName) -> None:
    """Deletes a folder with everything in it; a missing one is fine."""
    name = os.fspath(path)
    with explained("delete", name):
        if not is_remote(name):
            _remove_tree(name)
            return
        files = _walk_remote(name)
        if files:
            _beam().delete([_literal(join(name, file)) for file in files])


def _remove_tree(name: str) -> None:
    """A worker thread of a failed pipeline may still be writing: then a second look is needed."""
    for attempt in range(20):
        try:
            shutil.rmtree(name)
        except FileNotFoundError:
            if not os.path.lexists(name):
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == 19:
                raise
        else:
            return
        time.sleep(0.05)


def make_folder(path: PathName, *, private: bool = False) -> None:
    """Creates a folder and its parents if missing; buckets have none, so nothing happens there.

    Args:
        path: the folder.
        private: only the owner may enter it, if this call creates it.
    """
    name = os.fspath(path)
    if not is_remote(name):
        with explained("create", name):
            _make_local_folder(name, 0o700 if private else 0o777)


def remove_temporary_files(folder: PathName) -> int:
    """Deletes what killed processes left half-written; returns how many files.

    Call it only while holding the run's lock: a live process's temporary files look the same.
    """
    name = os.fspath(folder)
    if is_remote(name):
        return 0  # objects appear on close, so there is nothing half-written
    with explained("delete", name):
        leftovers = [file for file in _walk_local(name) if _is_temporary(file)]
        for file in leftovers:
            os.unlink(os.path.join(name, file))
    return len(leftovers)


def sha256_of(path: PathName) -> str:
    """The SHA-256 of a file's content, in hexadecimal; reads it piece by piece."""
    name = os.fspath(path)
    digest = hashlib.sha256()
    with explained("read", name), _open_to_read(name) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _is_temporary(file: str) -> bool:
    return os.path.basename(file).startswith(TEMPORARY_PREFIX)


def _open_to_read(name: str) -> Any:
    if is_remote(name):
        return _beam().open(_literal(name), compression_type="uncompressed")
    return open(name, "rb")


def _local_only(action: str, path: PathName) -> str:
    name = os.fspath(path)
    if is_remote(name):
        raise ValueError(f"path must be local to {action} it, got {name!r}")
    return name


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes everything; normally one system call, more if it stops short."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


def _write_local(name: str, data: bytes, file_mode: int, folder_mode: int) -> None:
    folder = parent(name)
    _make_local_folder(folder, folder_mode)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _make_local_folder(name: str, mode: int) -> None:
    if os.path.isdir(name):
        return
    above = parent(os.path.abspath(name))
    _make_local_folder(above, 0o777)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode)
    if not os.path.isdir(name):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    _sync_folder(above)


def _sync_folder(name: str) -> None:
    """Makes names created in a folder durable."""
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and say so
            raise
    finally:
        os.close(descriptor)


def _walk_local(name: str) -> list[str]:
    def stop(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    return [
        os.path.relpath(os.path.join(folder, file), name)
        for folder, _, files in os.walk(name, onerror=stop)
        for file in files
    ]


def _walk_remote(name: str) -> list[str]:
    prefix = _literal(name).rstrip("/") + "/"
    (result,) = _beam().match([prefix + "**"])
    return [entry.path[len(prefix) :] for entry in result.metadata_list]


def _literal(name: str) -> str:
    """Refuses a bucket path that Beam would read as a pattern: one name must mean one file."""
    if any(character in name for character in "*?["):
        raise StorageError(f"a path in a bucket must not contain *, ? or [, got {name}; rename it")
    return name


def _beam() -> Any:
    """Beam's file systems, imported when first needed."""
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


@contextlib.contextmanager
def explained(action: str, name: str) -> Iterator[None]:
    """Turns an error of the operating system or the cloud into one sentence."""
    if not is_remote(name):
        try:
            yield
        except OSError as error:
            raise StorageError(_local_sentence(action, name, error)) from error
        return
    errors = _remote_errors()
    try:
        yield
    except errors as error:
        raise StorageError(_remote_sentence(action, name, error)) from error


def _local_sentence(action: str, name: str, error: OSError) -> str:
    if error.errno in _FULL:
        return f"disk full while writing {name}: free space and run again"
    if error.errno == errno.ENOENT:
        return f"cannot {action} {name}: it does not exist; check the path"
    if error.errno in _DENIED:
        return (
            f"cannot {action} {name}: permission denied; run as a user who may, or change the "
            "permissions of the file and its folder"
        )
    if error.errno == errno.EISDIR:
        return f"cannot {action} {name}: it must be a file, but it is a folder; check the path"
    if error.errno == errno.ENOTDIR:
        return (
            f"cannot {action} {name}: it lies in, or must be, a folder, but there is a file in its "
            "place; check the path"
        )
    return f"cannot {action} {name}: {error.strerror or type(error).__name__}; check the disk"


def _remote_errors() -> tuple[type[Exception], ...]:
    """What Beam's file systems raise: theirs are OSError or ValueError, Google's are their own."""
    errors: list[type[Exception]] = [OSError, ValueError]
    with contextlib.suppress(ImportError):
        from google.api_core import exceptions as api_exceptions

        errors.append(api_exceptions.GoogleAPIError)
    with contextlib.suppress(ImportError):
        from google.auth import exceptions as auth_exceptions

        errors.append(auth_exceptions.GoogleAuthError)
    return tuple(errors)


def _remote_sentence(action: str, name: str, error: Exception) -> str:
    causes = [error, *getattr(error, "exception_details", {}).values()]
    codes = {getattr(cause, "code", None) for cause in causes}
    if 404 in codes or any(isinstance(cause, FileNotFoundError) for cause in causes):
        return f"cannot {action} {name}: it does not exist; check the bucket and the path"
    names = list(dict.fromkeys(type(cause).__name__ for cause in causes))
    if codes & {401, 403} or {"DefaultCredentialsError", "RefreshError"} & set(names):
        return (
            f"cannot {action} {name}: permission denied; log in with `gcloud auth "
            "application-default login` and check your role on the bucket"
        )
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return (
            f"cannot {action} {name}: it must be a local path or start with gs://, and gs:// needs "
            "Beam's Google Cloud support (pip install 'apache-beam[gcp]')"
        )
    return (
        f"cannot {action} {name}: the bucket cannot be reached ({', '.join(names)}); check its "
        "name, the network and your credentials"
    )
