"""The journal of a run: a durable transcript, and the only truth about its privacy budget.

``journal.jsonl`` has one JSON object per line, in strict ASCII JSON (no ``Infinity``):

    {"sequence":null,"kind":"header","format":1,"run_id":...,"check":"5e0c..."}
    {"sequence":0,"kind":"measure","label":"round 1","charge":{...},"values":{...},"check":"..."}
    {"sequence":null,"kind":"finished","payload":{...},"check":"..."}

Releases are numbered from 0 without gaps; the header and the driver's notes have no number. Finite
floats are written with all their digits, other values as tagged objects: ``{"float":"inf"}``,
``{"float64":BASE64,"shape":[...]}`` (little endian), and for long arrays of a release
``{"float64_file":"releases/00000007-0.f64","sha256":...,"shape":[...]}``. ``check`` is the start of
the SHA-256 of the previous line's ``check`` and of this line's bytes before its own.

Guarantee:
    `Journal.append` and `Journal.note` return only when the record is on the disk. A crash can
    leave the last line incomplete; `Journal.open` drops such a line, whose release was never used.
    Other damage (a changed byte, a missing, repeated or moved line) is a `JournalCorruptError`. Two
    things cannot be seen from the file alone: lines cut off its end, and a forgery whose author
    recomputed every ``check``.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from pipeline import line_log, storage
from ssdp_core.accounting import Charge
from ssdp_core.errors import SsdpError, TranscriptMismatchError
from ssdp_core.transcript import Release

FORMAT = 1
LARGEST_INLINE_ARRAY = 4096  # entries; longer arrays of a release get a file of their own

_ENDING = re.compile(rb',"check":"([0-9a-f]{16})"\}')
_FIRST_CHECK = "0" * 16
_HEADER_KEYS = frozenset({"sequence", "kind", "format", "check"})
_RESERVED_KEYS = frozenset({"float", "float64", "float64_file", "check"})
_RELEASES = "releases"


class JournalCorruptError(SsdpError):
    """The journal was damaged by something other than a crash; nothing can be built on it."""


class JournalMismatchError(TranscriptMismatchError):
    """The journal belongs to another spec, dataset or run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """A record of the driver that releases nothing.

    Attributes:
        kind: for example ``"state"`` or ``"finished"``.
        payload: its content.
        num_releases: how many releases came before it.
    """

    kind: str
    payload: Mapping[str, Any]
    num_releases: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StoredRelease:
    """A release with its values still encoded, so that long arrays stay on the disk."""

    line: int
    sequence: int
    kind: str
    label: str
    charge: Charge | None
    values: Mapping[str, Any]


class Journal:
    """A durable `ssdp_core.transcript.Transcript`; use `create` or `open`.

    Keep one writing journal per run, under the run's lock. After a failed write the journal takes
    no further records, because what is on the disk is then unknown: open it again.
    """

    def __init__(self, path: storage.PathName, *, read_only: bool) -> None:
        self._folder = storage.parent(path)
        self._sink = line_log.open_log(path)
        self._path = self._sink.path
        self._writable = not read_only
        self._check = _FIRST_CHECK
        self._header: dict[str, Any] = {}
        self._releases: list[_StoredRelease] = []
        self._notes: list[Note] = []
        self._num_lines = 0
        self.recovered_torn_line = False

    @classmethod
    def create(cls, path: storage.PathName, header: Mapping[str, Any]) -> Journal:
        """Starts a journal; its folder is created if needed.

        Args:
            path: usually ``RUN/journal.jsonl``.
            header: what the run is about, for example ``run_id``, ``spec_digest``,
                ``dataset_digest``, ``seeded``; public.

        Raises:
            StorageError: a journal exists already, or cannot be written.
        """
        journal = cls(path, read_only=False)
        clash = sorted(_HEADER_KEYS & header.keys())
        if clash:
            raise ValueError(f"header must not contain {clash[0]!r}, which the journal sets itself")
        if journal._sink.exists():
            raise storage.StorageError(
                f"{journal._path} exists already: continue that run with `ssdp resume`, or choose "
                "another directory"
            )
        encoded = _encode_items("header", header)
        record = {"sequence": None, "kind": "header", "format": FORMAT, **encoded}
        line, check = _line(record, journal._check)
        journal._sink.create(line)
        journal._accept(record, check)
        return journal

    @classmethod
    def open(
        cls,
        path: storage.PathName,
        expected_header: Mapping[str, Any] | None = None,
        *,
        read_only: bool = False,
    ) -> Journal:
        """Reads and verifies a journal, and continues it unless ``read_only``.

        A line torn by a crash is dropped, and cut off the file unless ``read_only`` (the run may
        then be alive and just writing it); `recovered_torn_line` tells.

        Args:
            path: as for `create`.
            expected_header: entries that the header must have.
            read_only: change nothing and refuse new records.

        Raises:
            JournalMismatchError: the header has other entries.
            JournalCorruptError: the journal is damaged other than by a crash.
            StorageError: it cannot be read.
        """
        journal = cls(path, read_only=read_only)
        size = journal._load()
        journal._require_header({} if expected_header is None else expected_header)
        journal._verify_files()
        if not read_only:
            if journal.recovered_torn_line:
                journal._sink.drop_last_line(size)
            journal._delete_unused_files()
        return journal

    @property
    def header(self) -> Mapping[str, Any]:
        """What `create` was given."""
        return dict(self._header)

    def __len__(self) -> int:
        """The number of releases."""
        return len(self._releases)

    def recorded(self, sequence: int) -> Release | None:
        """The release with this number, or None; its arrays are fresh copies."""
        if not 0 <= sequence < len(self._releases):
            return None
        stored = self._releases[sequence]
        return Release(
            sequence=sequence,
            kind=stored.kind,
            label=stored.label,
            charge=stored.charge,
            values=self._decode_items(stored.values, stored.line),
        )

    def append(self, release: Release) -> None:
        """Records the next release; returns when it is durable. NaN is refused."""
        if release.sequence != len(self._releases):
            raise ValueError(
                f"release number {release.sequence} does not follow {len(self._releases) - 1}"
            )
        _require_text(kind=release.kind, label=release.label)
        self._require_writable(release.kind)
        values, files = _encode_release_values(release)
        charge = release.charge
        record = {
            "sequence": release.sequence,
            "kind": release.kind,
            "label": release.label,
            "charge": None if charge is None else _encode("charge", dataclasses.asdict(charge)),
            "values": values,
        }
        self._write(record, files)

    def note(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Records something that is not a release; returns when it is durable.

        Args:
            kind: its name, not ``"header"``.
            payload: strings, numbers, bools, None, float64 arrays, and lists and mappings of them;
                public. Tuples come back as lists.
        """
        _require_text(kind=kind)
        self._require_writable(kind)
        encoded = _encode(kind, payload)
        self._write({"sequence": None, "kind": kind, "payload": encoded}, {})

    def notes(self, kind: str | None = None) -> list[Note]:
        """All notes in order, or those of one kind."""
        return [note for note in self._notes if kind is None or note.kind == kind]

    def charges(self) -> list[Charge]:
        """Every charge, in order."""
        return [stored.charge for stored in self._releases if stored.charge is not None]

    def releases(self) -> Iterator[Release]:
        """Every release, in order; each is read when it is reached."""
        for sequence in range(len(self._releases)):
            release = self.recorded(sequence)
            assert release is not None  # the number is in range
            yield release

    def close(self) -> None:
        """Ends writing; recorded releases stay readable."""
        if self._writable:
            self._writable = False
            self._sink.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _require_writable(self, kind: str) -> None:
        if kind == "header":
            raise ValueError("kind must not be 'header', which is the journal's first line")
        if not self._writable:
            raise storage.StorageError(
                f"{self._path} takes no records: it is closed, read-only or a write to it failed; "
                "continue the run with `ssdp resume`"
            )

    def _write(self, record: dict[str, Any], files: Mapping[str, bytes]) -> None:
        line, check = _line(record, self._check)
        self._writable = False  # until the write is known to have succeeded
        for name, data in files.items():
            storage.write_bytes(storage.join(self._folder, name), data)
        self._sink.append(line)
        self._writable = True
        self._accept(record, check)

    def _load(self) -> int:
        """Reads all whole lines; returns how many bytes they have."""
        *lines, tail = self._sink.read().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if not self._read_line(number, line):
                if tail or number < len(lines) or number == 1 or not _is_torn(line + b"\n"):
                    raise self._corrupt(number, "its content does not fit its check")
                self.recovered_torn_line = True
        if not self._num_lines or not (tail == b"" or _is_torn(tail)):
            raise self._corrupt(self._num_lines + 1, "it is not whole, but not torn by a crash")
        self.recovered_torn_line |= tail != b""
        return sum(len(line) + 1 for line in lines[: self._num_lines])

    def _read_line(self, number: int, line: bytes) -> bool:
        """Takes one line into memory, or returns False if its check is wrong."""
        ending = _ENDING.search(line)
        if ending is None or ending.end() != len(line):
            return False
        check = _check_of(self._check, line[: ending.start()])
        if check != ending[1].decode():
            return False
        try:
            record = json.loads(line, parse_constant=_refuse_constant)
            del record["check"]
            self._accept(record, check)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._corrupt(number, "it is not a record of this format") from error
        return True

    def _accept(self, record: Mapping[str, Any], check: str) -> None:
        """Takes a record into memory; raises if it is malformed."""
        sequence, kind = record["sequence"], record["kind"]
        line = self._num_lines + 1
        _require_text(kind=kind)
        if (kind == "header") != (line == 1):
            raise ValueError("the first line, and only that, must be the header")
        if kind == "header":
            if record["format"] != FORMAT:
                raise storage.StorageError(
                    f"{self._path} has journal format {record['format']!r}, but this version of "
                    f"ssdp reads format {FORMAT}; use the version that wrote it"
                )
            own = {name: value for name, value in record.items() if name not in _HEADER_KEYS}
            self._header = self._decode_items(own, line)
        elif sequence is None:
            payload = self._decode_items(record["payload"], line)
            self._notes.append(Note(kind=kind, payload=payload, num_releases=len(self._releases)))
        else:
            if type(sequence) is not int or sequence != len(self._releases):
                raise ValueError("releases must be numbered without gaps")
            _require_text(label=record["label"])
            self._releases.append(
                _StoredRelease(
                    line=line,
                    sequence=sequence,
                    kind=kind,
                    label=record["label"],
                    charge=self._charge_of(record["charge"], line),
                    values=dict(record["values"]),
                )
            )
        self._check = check
        self._num_lines = line

    def _charge_of(self, encoded: Mapping[str, Any] | None, line: int) -> Charge | None:
        if encoded is None:
            return None
        rho = self._decode(encoded["rho"], line)
        return Charge(mechanism=encoded["mechanism"], rho=rho, label=encoded["label"])

    def _require_header(self, expected: Mapping[str, Any]) -> None:
        for name, value in expected.items():
            found = self._header.get(name)
            # As JSON, 1, 1.0 and True differ.
            if name not in self._header or _json_of(name, found) != _json_of(name, value):
                what = name.removesuffix("_digest") if name.endswith("_digest") else "run"
                shown = repr(found) if name in self._header else "missing"
                raise JournalMismatchError(
                    f"{self._path} belongs to another {what}: {name} is {shown} in the journal but "
                    f"{value!r} now; resume with what the run was started with, or start a new run "
                    "in another directory"
                )

    def _files(self) -> Iterator[tuple[int, str, str]]:
        """Line, name and SHA-256 of every array file."""
        for stored in self._releases:
            for value in stored.values.values():
                if isinstance(value, dict) and "float64_file" in value:
                    yield stored.line, value["float64_file"], value["sha256"]

    def _verify_files(self) -> None:
        for line, name, digest in self._files():
            path = storage.join(self._folder, name)
            if not storage.exists(path) or storage.sha256_of(path) != digest:
                raise self._corrupt(line, f"{path} is missing or was changed")

    def _delete_unused_files(self) -> None:
        """Deletes arrays whose line was never written: they were drawn but not charged."""
        used = {name for _, name, _ in self._files()}
        for name in storage.list_files(storage.join(self._folder, _RELEASES)):
            if f"{_RELEASES}/{name}" not in used and name.endswith(".f64"):
                storage.delete(storage.join(self._folder, _RELEASES, name))

    def _decode(self, value: Any, line: int) -> Any:
        if isinstance(value, list):
            return [self._decode(entry, line) for entry in value]
        if not isinstance(value, dict):
            return value
        if "float" in value:
            return float(value["float"])
        if "float64" in value:
            return _array(base64.b64decode(value["float64"], validate=True), value["shape"])
        if "float64_file" in value:
            path = storage.join(self._folder, value["float64_file"])
            data = storage.read_bytes(path)
            if hashlib.sha256(data).hexdigest() != value["sha256"]:
                raise self._corrupt(line, f"{path} was changed")
            return _array(data, value["shape"])
        return self._decode_items(value, line)

    def _decode_items(self, items: Mapping[str, Any], line: int) -> dict[str, Any]:
        return {name: self._decode(value, line) for name, value in items.items()}

    def _corrupt(self, line: int, reason: str) -> JournalCorruptError:
        return JournalCorruptError(
            f"line {line} of {self._path} is damaged: {reason}; restore the run directory from a "
            "backup, or treat the run's whole budget as spent and start a new run"
        )


def _check_of(previous_check: str, content: bytes) -> str:
    return hashlib.sha256(previous_check.encode() + content).hexdigest()[:16]


def _is_torn(rest: bytes) -> bool:
    """Whether a crash can have left these bytes after the last whole line.

    A line is one write, so a crash leaves a beginning of it, or zeros where a block is missing.
    Bytes after an ending mean two lines; a newline after an ending means a line that was whole when
    it was written. Both are damage of another kind, and dropping them could forget a charge.
    """
    ending = _ENDING.search(rest)
    if ending is None:
        return True
    after = rest[ending.end() :].strip(b"\0")
    return after == b"" or (after == b"\n" and b"\0" in rest)


def _line(record: Mapping[str, Any], previous_check: str) -> tuple[bytes, str]:
    """One line with its newline, and its check."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    content = text.encode()[:-1]  # without the closing brace
    check = _check_of(previous_check, content)
    return content + f',"check":"{check}"}}\n'.encode(), check


def _json_of(name: str, value: Any) -> str:
    return json.dumps(_encode(name, value), sort_keys=True)


def _require_text(**argument: Any) -> None:
    for name, value in argument.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _encode(name: str, value: Any) -> Any:
    """JSON for a value; messages call the value ``name`` but never show it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{name} must not be NaN")
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(_array_bytes(name, value)).decode()
        return {"float64": data, "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [_encode(name, entry) for entry in value]
    if isinstance(value, Mapping):
        return _encode_items(name, value)
    raise TypeError(f"{name} must be a number, string or float64 array, got {type(value).__name__}")


def _encode_items(name: str, items: Mapping[str, Any]) -> dict[str, Any]:
    for key in items:
        _require_text(**{f"a key of {name}": key})
        if key in _RESERVED_KEYS:
            raise ValueError(f"{name} must not have the key {key!r}, which the journal uses")
    return {key: _encode(key, value) for key, value in items.items()}


def _encode_release_values(release: Release) -> tuple[dict[str, Any], dict[str, bytes]]:
    """JSON for the values, and the files that it mentions."""
    long_arrays = {
        name: value
        for name, value in release.values.items()
        if isinstance(value, np.ndarray) and value.size > LARGEST_INLINE_ARRAY
    }
    encoded = _encode_items("values", {**release.values, **dict.fromkeys(long_arrays)})
    files: dict[str, bytes] = {}
    for name, value in long_arrays.items():
        file = f"{_RELEASES}/{release.sequence:08d}-{len(files)}.f64"
        files[file] = _array_bytes(name, value)
        digest = hashlib.sha256(files[file]).hexdigest()
        encoded[name] = {"float64_file": file, "sha256": digest, "shape": list(value.shape)}
    return encoded, files


def _array_bytes(name: str, value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype != np.float64:
        raise TypeError(f"{name} must be a float64 array, got dtype {value.dtype}")
    if np.isnan(value).any():
        raise ValueError(f"{name} must not contain NaN")
    return value.astype("<f8").tobytes()


def _array(data: bytes, shape: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.frombuffer(data, dtype="<f8").reshape(shape).astype(np.float64)
