"""Block files: the public part of some rows, their private codes, and beliefs, as raw arrays.

A public block and the codes of the same rows are separate files in separate folders, so that a
public pass can be given no way to the codes. Format: one line of JSON that lists the arrays, then
their bytes, each aligned to 64. Reading needs no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ssdp_core.errors import SsdpError
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows

_ALIGNMENT = 64  # of every array: compiled loops are slower, and compiled again, on others


class BlockError(SsdpError):
    """A block file is damaged."""


def pack(arrays: Mapping[str, npt.NDArray[Any]], **facts: Any) -> bytes:
    """Arrays and small facts as bytes."""
    listed = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    header = json.dumps({"arrays": listed, "facts": facts}).encode()
    parts = [header + b" " * (-(len(header) + 1) % _ALIGNMENT) + b"\n"]
    for array in arrays.values():
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data + bytes(-len(data) % _ALIGNMENT))
    return b"".join(parts)


def unpack(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays (writable, aligned, on one buffer) and facts of :func:`pack`."""
    space = np.empty(len(data) + _ALIGNMENT, dtype=np.uint8)
    first = -space.ctypes.data % _ALIGNMENT
    buffer = space[first : first + len(data)]
    buffer[:] = np.frombuffer(data, dtype=np.uint8)
    end = data.index(b"\n") + 1
    header = json.loads(data[:end])
    arrays = {}
    for name, (dtype, shape) in header["arrays"].items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        arrays[name] = buffer[end : end + size].view(dtype).reshape(shape)
        end += size + -size % _ALIGNMENT
    return arrays, header["facts"]


def pack_public(rows: PublicRows) -> bytes:
    """Features and public columns of some rows."""
    arrays: dict[str, npt.NDArray[Any]] = {
        f"column/{name}": column for name, column in rows.columns.items()
    }
    features = rows.features
    if isinstance(features, DenseFeatures):
        arrays["values"] = features.values
        return pack(arrays, num_rows=rows.num_rows)
    assert isinstance(features, CsrFeatures)  # prepared rows have one of the two
    arrays.update(data=features.data, indices=features.indices, indptr=features.indptr)
    return pack(arrays, num_rows=rows.num_rows, num_columns=features.num_columns)


def unpack_public(data: bytes) -> PublicRows:
    """The rows of :func:`pack_public`."""
    arrays, facts = unpack(data)
    columns = {
        name.removeprefix("column/"): array
        for name, array in arrays.items()
        if name.startswith("column/")
    }
    features = (
        DenseFeatures(arrays["values"])
        if "values" in arrays
        else CsrFeatures(arrays["data"], arrays["indices"], arrays["indptr"], facts["num_columns"])
    )
    return PublicRows(num_rows=facts["num_rows"], features=features, columns=columns)
