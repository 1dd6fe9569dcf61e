"""Input tables: which files there are, how they are cut into blocks, and their columns as arrays.

Files are taken in sorted order and cut into blocks of ``block_rows`` rows; the last block of a file
may be shorter. A block is named ``ffffff-bbbbbb`` (file, block in it), so the order of names is the
order of rows. Parquet blocks can be read independently; a CSV file is read from its start.

Nothing that Arrow says about a value reaches a message: its errors quote what it could not parse,
which may be private.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from ssdp_core.errors import SsdpError

Columns = dict[str, npt.NDArray[Any]]


class TableError(SsdpError):
    """The input table cannot be used as the specification says."""


@dataclass(frozen=True)
class TableFile:
    """One input file; ``num_rows`` is None for CSV, where only reading tells."""

    index: int
    path: str
    num_rows: int | None


@dataclass(frozen=True)
class ReadTask:
    """A piece of work for one worker: rows of a Parquet file, or a whole CSV file."""

    file: TableFile
    start: int = 0
    stop: int | None = None


def find_files(patterns: Sequence[str]) -> list[str]:
    """All files that match, sorted; an error names a pattern without match."""
    found: set[str] = set()
    for pattern in patterns:
        matches = _matches(pattern)
        if not matches:
            raise TableError(
                f"no file matches {pattern!r}: check [data] path, which is relative to the "
                "working directory"
            )
        found.update(matches)
    for path in found:
        if not path.endswith((".parquet", ".csv")):
            raise TableError(f"{path} must end in .parquet or .csv to be read as a table")
    return sorted(found)


def _matches(pattern: str) -> list[str]:
    if not storage.is_remote(pattern):
        return glob.glob(pattern)
    from apache_beam.io.filesystems import FileSystems

    with storage.explained("list", pattern):
        return [entry.path for entry in FileSystems.match([pattern])[0].metadata_list]


def open_table(patterns: Sequence[str], columns: Sequence[str]) -> list[TableFile]:
    """The files, after checking that each has the columns and that there is a row."""
    files = []
    for index, path in enumerate(find_files(patterns)):
        present, num_rows = _describe(path)
        missing = [name for name in columns if name not in present]
        if missing:
            raise TableError(
                f"{path} has no column {missing[0]!r}; it has {', '.join(sorted(present))}"
            )
        files.append(TableFile(index=index, path=path, num_rows=num_rows))
    if sum(1 if file.num_rows is None else file.num_rows for file in files) == 0:
        raise TableError(f"the table is empty: {files[0].path} has no rows")
    return files


def tasks_of(files: Sequence[TableFile], block_rows: int) -> list[ReadTask]:
    """One task per Parquet block, one per CSV file."""
    tasks = []
    for file in files:
        if file.num_rows is None:
            tasks.append(ReadTask(file))
        else:
            for start in range(0, file.num_rows, block_rows):
                tasks.append(ReadTask(file, start, min(start + block_rows, file.num_rows)))
    return tasks


def read_blocks(
    task: ReadTask, columns: Sequence[str], block_rows: int, numeric: Sequence[str] = ()
) -> Iterator[tuple[str, Columns]]:
    """(block name, columns as arrays) of every block of a task.

    Args:
        task: what to read.
        columns: which columns.
        block_rows: rows per block.
        numeric: columns that CSV must hold as numbers.
    """
    if task.file.num_rows is None:
        tables = _csv_blocks(task.file.path, columns, block_rows, numeric)
        first = 0
    else:
        assert task.stop is not None  # set for every Parquet task
        tables = iter([_parquet_rows(task.file.path, columns, task.start, task.stop)])
        first = task.start // block_rows
    for number, table in enumerate(tables):
        arrays = {name: _array(table, name, task.file.path) for name in columns}
        yield f"{task.file.index:06d}-{first + number:06d}", arrays


def _describe(path: str) -> tuple[set[str], int | None]:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    try:
        with _open(path) as source:
            if path.endswith(".csv"):
                return set(csv.open_csv(source).schema.names), None
            file = parquet.ParquetFile(source)
            return set(file.schema_arrow.names), int(file.metadata.num_rows)
    except pa.ArrowInvalid:
        kind = "CSV with a header line" if path.endswith(".csv") else "Parquet"
        raise TableError(f"{path} cannot be read as {kind}, or is empty") from None


def _open(path: str) -> Any:
    if storage.is_remote(path):
        from apache_beam.io.filesystems import FileSystems

        with storage.explained("read", path):
            return FileSystems.open(path, compression_type="uncompressed")
    try:
        return open(path, "rb")
    except OSError as error:
        raise TableError(f"cannot read {path}: {error.strerror}") from None


def _parquet_rows(path: str, columns: Sequence[str], start: int, stop: int) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with _open(path) as source:
            file = parquet.ParquetFile(source)
            groups, first = [], None
            position = 0
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if position < stop and position + rows > start:
                    first = position if first is None else first
                    groups.append(group)
                position += rows
            table = file.read_row_groups(groups, columns=list(columns))
            return table.slice(start - (first or 0), stop - start)
    except (pa.ArrowInvalid, OSError):
        raise TableError(f"{path} is damaged: its rows cannot be read as Parquet") from None


def _csv_blocks(
    path: str, columns: Sequence[str], block_rows: int, numeric: Sequence[str]
) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv as csv

    options = csv.ConvertOptions(
        include_columns=list(columns),
        column_types={name: pa.float64() for name in numeric},
        strings_can_be_null=True,
    )
    waiting: list[Any] = []
    held = 0
    try:
        with _open(path) as source:
            for batch in csv.open_csv(source, convert_options=options):
                waiting.append(pa.Table.from_batches([batch]))
                held += batch.num_rows
                while held >= block_rows:
                    table = pa.concat_tables(waiting)
                    yield table.slice(0, block_rows)
                    waiting, held = [table.slice(block_rows)], held - block_rows
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError):
        raise TableError(
            f"{path} cannot be read as CSV: a column holds values of more than one type; "
            "convert the table to Parquet, or clean the column"
        ) from None
    if held:
        yield pa.concat_tables(waiting)


def _array(table: Any, name: str, path: str) -> npt.NDArray[Any]:
    """A column as float64 (NaN for nulls) or as objects (None for nulls)."""
    import pyarrow as pa

    column = table.column(name)
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return np.asarray(
            column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
        )
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return np.array(column.to_pylist(), dtype=object)
    raise TableError(
        f"column {name!r} of {path} has type {kind}; expected numbers, strings or bools"
    )
