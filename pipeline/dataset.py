"""A prepared dataset: its manifest, and block loading with a cache that outlives a pass.

Layout of a prepared folder:

    manifest.json               counts, checksums, schema, encoder; written last
    public/<block>.block        features and public columns
    private/<block>.block       codes (folder and files readable by the owner only)
    private/salt                secret key of every hash that depends on private data
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.blocks import BlockError, unpack, unpack_public
from ssdp_core.features import PublicRows

FORMAT = 1
DEFAULT_CACHE_BYTES = 512 << 20


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """One block of the manifest; ``private_hash`` is keyed with the dataset's salt."""

    name: str
    num_rows: int
    public_sha256: str
    private_hash: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is public about a prepared dataset.

    Attributes:
        digest: identifies inputs, encoding and domain; a fit records it.
        num_rows: n.
        num_codes: k.
        block_rows: largest number of rows of a block.
        num_features: d, the intercept included.
        feature_norm: largest |x_i|.
        target_bounds: largest |target| of every public target.
        blocks: all blocks, in the order of rows.
        encoder: the encoder plan as JSON text.
    """

    digest: str
    num_rows: int
    num_codes: int
    block_rows: int
    num_features: int
    feature_norm: float
    target_bounds: dict[str, float]
    blocks: tuple[BlockRecord, ...]
    encoder: str

    def to_json(self) -> str:
        """The manifest as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest of :meth:`to_json`."""
        fields = json.loads(text)
        if fields.pop("format") != FORMAT:
            raise BlockError("the prepared dataset has another format: prepare it again")
        fields["blocks"] = tuple(BlockRecord(**record) for record in fields["blocks"])
        return cls(**fields)


def manifest_path(folder: str) -> str:
    """Where the manifest of a prepared folder lies."""
    return storage.join(folder, "manifest.json")


def load_manifest(folder: str) -> Manifest | None:
    """The manifest, or None if the folder has not been prepared to the end."""
    path = manifest_path(folder)
    if not storage.exists(path):
        return None
    return Manifest.from_json(storage.read_bytes(path).decode())


def public_path(folder: str, name: str) -> str:
    """The file with the public part of a block."""
    return storage.join(folder, "public", f"{name}.block")


def private_path(folder: str, name: str) -> str:
    """The file with the PRIVATE codes of a block."""
    return storage.join(folder, "private", f"{name}.block")


def sha256(data: bytes) -> str:
    """Hex digest of a public block."""
    return hashlib.sha256(data).hexdigest()


def salt_path(folder: str) -> str:
    """The file with the dataset's salt: as private as the codes."""
    return storage.join(folder, "private", "salt")


def read_salt(folder: str) -> bytes:
    """The dataset's salt."""
    return storage.read_bytes(salt_path(folder))


def keyed_hash(salt: bytes, data: bytes) -> str:
    """Hex digest of private data that nobody can compute without the dataset's salt.

    Manifest, journal and Beam graph are public. A plain hash of private data in them would let
    anyone who knows all but one value try every candidate for it.
    """
    return hmac.new(salt, data, hashlib.sha256).hexdigest()


def load_public(path: str, checksum: str) -> PublicRows:
    """The public part of a block, verified, from the cache if it is there."""
    return _CACHE.get(path, checksum, lambda: unpack_public(_verified(path, checksum, sha256)))


def load_codes(path: str, checksum: str, num_rows: int, num_codes: int) -> npt.NDArray[np.int32]:
    """PRIVATE. The codes of a block, verified, and checked to fit what is computed with them."""

    def load() -> npt.NDArray[np.int32]:
        salt = read_salt(storage.parent(storage.parent(path)))
        codes = unpack(_verified(path, checksum, lambda data: keyed_hash(salt, data)))[0]["codes"]
        # Compiled loops use codes as positions without checks of their own.
        if codes.size != num_rows or codes.min() < 0 or codes.max() >= num_codes:
            raise BlockError(f"{path} does not fit its manifest: delete the prepared folder")
        return codes

    return _CACHE.get(path, checksum, load)


def load_file(path: str, decode: Callable[[bytes], Any]) -> Any:
    """A file whose name is used once ever (a run's own id is part of it), through the cache."""
    return _CACHE.get(path, "", lambda: decode(storage.read_bytes(path)))


def forget(path: str) -> None:
    """Drops a file that has been deleted from the cache."""
    _CACHE.forget(path)


def _verified(path: str, checksum: str, hash_of: Callable[[bytes], str]) -> bytes:
    data = storage.read_bytes(path)
    if hash_of(data) != checksum:
        raise BlockError(
            f"{path} is damaged: its checksum differs from the manifest's; delete the prepared "
            "folder and run again"
        )
    return data


class _BlockCache:
    """Least recently used files of this process, up to a number of bytes.

    Module-level, because a worker process serves many passes and most runners keep it alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[Any, int, str]] = OrderedDict()
        self._bytes = 0
        self.num_loads = 0

    def get(self, path: str, checksum: str, load: Callable[[], Any]) -> Any:
        with self._lock:
            held = self._entries.get(path)
            # A folder may have been prepared again: only the content that was asked for counts.
            if held is not None and held[2] == checksum:
                self._entries.move_to_end(path)
                return held[0]
        value = load()  # outside the lock: two threads may load two files at once
        size = _size_of(value)
        limit = int(os.environ.get("SSDP_CACHE_BYTES", DEFAULT_CACHE_BYTES))
        with self._lock:
            self.num_loads += 1
            if path in self._entries:
                self._bytes -= self._entries.pop(path)[1]
            if size <= limit:
                self._entries[path] = (value, size, checksum)
                self._bytes += size
            while self._bytes > limit:
                self._bytes -= self._entries.popitem(last=False)[1][1]
        return value

    def forget(self, path: str) -> None:
        with self._lock:
            if path in self._entries:
                self._bytes -= self._entries.pop(path)[1]


def _size_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, PublicRows):
        cells = 0 if value.features is None else value.features.cells_per_row
        return value.num_rows * (4 * cells + 16 + 8 * len(value.columns))
    return 1 << 16


_CACHE = _BlockCache()


def block_loads() -> int:
    """How many files this process has read, for metrics."""
    return _CACHE.num_loads
