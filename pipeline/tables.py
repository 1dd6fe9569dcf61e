"""Input tables: which files there are, how they are cut into blocks, and their columns as arrays.

Files are taken in sorted order and cut into blocks of ``block_rows`` rows; the last block of a file
may be shorter. A block is named ``ffffff-bbbbbb`` (file, block in it), so the order of names is the
order of rows. Parquet blocks can be read independently; a CSV file is read from its start.

Nothing that Arrow says about a value reaches a message: its errors quote what it could not parse,
which may be private.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline import storage
from pipeline.spec import SensitiveSpec, Spec
from ssdp_core.errors import SsdpError
from ssdp_core.losses import Loss, MultinomialLoss

Columns = dict[str, npt.NDArray[Any]]

_EXACT_BELOW = 2.0**53


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
        types, num_rows = _describe(path, columns)
        for name in columns if types else ():
            if name not in types:
                raise TableError(
                    f"{path} has no column {name!r}; it has {', '.join(sorted(types))}"
                )
            if num_rows:  # CSV has no types of its own: reading it decides
                _check_type(types[name], name, path)
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
    task: ReadTask,
    columns: Sequence[str],
    block_rows: int,
    texts: Mapping[str, Sequence[str]] | None = None,
    sensitive: Mapping[str, SensitiveSpec] | None = None,
) -> Iterator[tuple[str, Columns]]:
    """(block name, columns as arrays) of every block of a task.

    Args:
        task: what to read.
        columns: which columns.
        block_rows: rows per block.
        texts: columns that hold text even if CSV shows digits, with the values that are known to
            occur; none of these is read as a null, though CSV may mean one by "NA".
        sensitive: declared columns. CSV has no types, and guessing one from private entries would
            let one row decide how all others are read; so each entry is read by itself.
    """
    if task.file.num_rows is None:
        declared = {n: c for n, c in (sensitive or {}).items() if n in columns}
        known = {name: _declared_texts(column) for name, column in declared.items()}
        tables = _csv_blocks(task.file.path, columns, block_rows, {**(texts or {}), **known})
        first = 0
    else:
        assert task.stop is not None  # set for every Parquet task
        tables = iter([_parquet_rows(task.file.path, columns, task.start, task.stop)])
        first = task.start // block_rows
    for number, table in enumerate(tables):
        arrays = {name: _array(table, name, task.file.path) for name in columns}
        if task.file.num_rows is None:
            for name, column in declared.items():
                arrays[name] = _parsed(arrays[name], column)
        yield f"{task.file.index:06d}-{first + number:06d}", arrays


def sensitive_columns(spec: Spec) -> dict[str, SensitiveSpec]:
    """The declared sensitive columns by name."""
    return {column.column: column for column in spec.data.sensitive}


def _declared_texts(column: SensitiveSpec) -> list[str]:
    return [value for value in column.values or () if isinstance(value, str)]


def _parsed(entries: npt.NDArray[Any], column: SensitiveSpec) -> npt.NDArray[Any]:
    """PRIVATE ``entries``, text from CSV, as values of the declared types, each by itself.

    An entry that is declared as text stays text; otherwise it is a number or a bool if such values
    are declared and it reads as one. What is left matches nothing: ``other``, or an error.
    """
    declared = column.values or ()
    texts = set(_declared_texts(column))
    has_bools = any(isinstance(value, bool) for value in declared)
    has_numbers = column.edges is not None or any(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in declared
    )

    def parse(text: str | None) -> Any:
        if text is None or text in texts:
            return text
        if has_bools and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if has_numbers:
            try:
                return float(text)
            except ValueError:
                pass
        return text

    distinct = {text: parse(text) for text in set(entries.tolist())}
    parsed = np.empty(entries.size, dtype=object)
    parsed[:] = [distinct[text] for text in entries.tolist()]
    return parsed


def csv_texts(spec: Spec) -> dict[str, list[str]]:
    """Public columns that CSV must read as text, with the values that are declared for them.

    Those with declared values that are all text; hashed columns and the privacy unit, because
    identifiers may have leading zeros or more digits than a float.
    """
    declared = {encoding.column: encoding.values or () for encoding in spec.data.encode}
    texts = {
        name: [value for value in values if isinstance(value, str)]
        for name, values in declared.items()
        if values and all(isinstance(value, str) for value in values)
    }
    texts.update({e.column: [] for e in spec.data.encode if e.kind == "hashed"})
    unit = spec.data.unit
    if unit is not None and unit.column not in spec.data.features:
        texts[unit.column] = []
    return texts


def target_column(column: npt.NDArray[Any], name: str, loss: Loss) -> npt.NDArray[Any]:
    """A public target as its loss wants it, checked."""
    if column.dtype == object and all(isinstance(entry, bool) for entry in column):
        column = column.astype(np.float64)
    if column.dtype == object:
        raise TableError(
            f"target column {name!r} must hold numbers without nulls, found text or nulls"
        )
    column = column.astype(np.float64)
    if np.isnan(column).any():
        raise TableError(f"target column {name!r} must have no nulls: drop those rows first")
    if isinstance(loss, MultinomialLoss) and (column == np.rint(column)).all():
        column = column.astype(np.int32)
    loss.validate_targets(column, f"target column {name!r}")
    return column


def _describe(path: str, columns: Sequence[str]) -> tuple[dict[str, Any], int | None]:
    """Types by column, and the number of rows if it is known without reading them."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    try:
        with _open(path) as source:
            if path.endswith(".csv"):
                if not source.read(1):
                    return {}, 0
                source.seek(0)
                reader = csv.open_csv(source)
                _check_names(reader.schema.names, columns, path)
                is_empty = not any(batch.num_rows for batch in reader)
                return _types(reader.schema), 0 if is_empty else None
            file = parquet.ParquetFile(source)
            _check_names(file.schema_arrow.names, columns, path)
            return _types(file.schema_arrow), int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        if path.endswith(".csv"):
            raise _csv_error(path, error, ()) from None
        raise TableError(
            f"{path} cannot be read as Parquet: it is empty, cut off or damaged; write it again"
        ) from None


def _types(schema: Any) -> dict[str, Any]:
    return dict(zip(schema.names, schema.types, strict=True))


def _check_names(names: Sequence[str], columns: Sequence[str], path: str) -> None:
    for name in columns:
        if names.count(name) > 1:
            raise TableError(f"{path} has more than one column {name!r}: rename or drop them")


def _csv_error(path: str, error: Exception, header: Sequence[str]) -> TableError:
    """A sentence without what Arrow quotes; all it takes from there is the number of the column."""
    number = re.match(r"In CSV column #(\d+):", str(error))
    if number and int(number[1]) < len(header):
        return TableError(
            f"column {header[int(number[1])]!r} of {path} must hold one type of values, the type "
            "that is declared if it is declared: clean it"
        )
    return TableError(
        f"{path} cannot be read as CSV: expected UTF-8 text with a header line, as many fields in "
        "every line, and one type of values per column; clean it, or convert it to Parquet"
    )


def _open(path: str) -> Any:
    if storage.is_remote(path):
        from apache_beam.io.filesystems import FileSystems

        with storage.explained("read", path):
            return FileSystems.open(path, compression_type="uncompressed")
    try:
        return open(path, "rb")
    except IsADirectoryError:
        raise TableError(
            f"cannot read {path}: it is a folder; name the files in it, as in {path}/*.parquet"
        ) from None
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
    except (pa.ArrowException, OSError):
        raise TableError(
            f"{path} is damaged: its rows cannot be read as Parquet; write it again"
        ) from None


def _csv_blocks(
    path: str,
    columns: Sequence[str],
    block_rows: int,
    texts: Mapping[str, Sequence[str]],
) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv as csv

    known = {value for values in texts.values() for value in values}
    options = csv.ConvertOptions(
        null_values=[text for text in csv.ConvertOptions().null_values if text not in known],
        strings_can_be_null=True,
    )
    waiting: list[Any] = []
    held = 0
    found: dict[str, Any] = {}
    try:
        with _open(path) as source:
            found = _types(csv.open_csv(source, convert_options=options).schema)
        # Types are guessed from the first lines: whole numbers there may have fractions later.
        whole = [name for name in columns if pa.types.is_integer(found[name])]
        options.include_columns = list(columns)
        options.column_types = {
            **{name: pa.float64() for name in whole},
            **{name: pa.string() for name in texts if name in columns},
        }
        with _open(path) as source:
            # In a file of one column an empty line is a null.
            parsing = csv.ParseOptions(ignore_empty_lines=len(found) > 1)
            for batch in csv.open_csv(source, parse_options=parsing, convert_options=options):
                waiting.append(pa.Table.from_batches([batch]))
                held += batch.num_rows
                while held >= block_rows:
                    table = pa.concat_tables(waiting)
                    yield table.slice(0, block_rows)
                    waiting, held = [table.slice(block_rows)], held - block_rows
    except pa.ArrowException as error:
        raise _csv_error(path, error, tuple(found)) from None
    if held:
        yield pa.concat_tables(waiting)


def _array(table: Any, name: str, path: str) -> npt.NDArray[Any]:
    """A column as floats (NaN for nulls) or as objects (None for nulls).

    Whole numbers are floats too, unless some are too large to be exact: identifiers often are.
    """
    import pyarrow as pa

    column = table.column(name)
    _check_type(column.type, name, path)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    numbers = column
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64(), safe=False)
    if pa.types.is_floating(numbers.type):
        # float32 stays: declared values are compared in the precision of the column.
        array = np.asarray(numbers.to_numpy(zero_copy_only=False))
        if not pa.types.is_integer(kind) or not (np.abs(array) >= _EXACT_BELOW).any():
            return array
    try:
        return np.array(column.to_pylist(), dtype=object)
    except UnicodeDecodeError:
        raise TableError(f"column {name!r} of {path} must hold text in UTF-8") from None


def _check_type(kind: Any, name: str, path: str) -> None:
    """Raises TableError unless a column of this type can be read."""
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_number = (
        pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_decimal(plain)
    )
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    if not (is_number or is_text or pa.types.is_boolean(plain) or pa.types.is_null(plain)):
        raise TableError(
            f"column {name!r} of {path} has type {kind}; expected numbers, strings or bools: "
            "convert it"
        )
