"""Reading tables: the same rows in the same order, whatever the files look like."""

from __future__ import annotations

import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from pipeline import tables
from pipeline.spec import parse_spec
from pipeline.tables import TableError


def blocks_of(pattern, columns, block_rows, **options):
    files = tables.open_table([str(pattern)], columns)
    return [
        block
        for task in tables.tasks_of(files, block_rows)
        for block in tables.read_blocks(task, columns, block_rows, **options)
    ]


def column_of(pattern, name="c", **options):
    """One column of a table, read in blocks of three rows."""
    arrays = [arrays[name] for _, arrays in blocks_of(pattern, [name], 3, **options)]
    return np.concatenate(arrays)


def written(folder, values, suffix="parquet", **options):
    return tiny.write(folder / f"t.{suffix}", {"c": values}, **options)


# Blocks


@given(
    num_rows=st.integers(1, 40),
    group_rows=st.integers(1, 15),
    block_rows=st.integers(1, 15),
)
def test_blocks_do_not_depend_on_row_groups(tmp_path_factory, num_rows, group_rows, block_rows):
    folder = tmp_path_factory.mktemp("groups")
    path = written(folder, np.arange(num_rows), row_group_size=group_rows)
    blocks = blocks_of(path, ["c"], block_rows)
    sizes = [len(arrays["c"]) for _, arrays in blocks]
    assert sizes[:-1] == [block_rows] * (len(blocks) - 1)
    assert 1 <= sizes[-1] <= block_rows
    assert [name for name, _ in blocks] == [f"000000-{i:06d}" for i in range(len(blocks))]
    rows = np.concatenate([arrays["c"] for _, arrays in blocks])
    np.testing.assert_array_equal(rows, np.arange(num_rows))


def test_tasks_can_be_read_in_any_order(tmp_path):
    path = written(tmp_path, np.arange(20), row_group_size=7)
    tasks = tables.tasks_of(tables.open_table([str(path)], ["c"]), 6)
    expected = {0: [0, 6], 1: [6, 12], 2: [12, 18], 3: [18, 20]}
    for order in itertools.permutations(range(4)):
        for number in order:
            ((name, arrays),) = tables.read_blocks(tasks[number], ["c"], 6)
            assert name == f"000000-{number:06d}"
            np.testing.assert_array_equal(arrays["c"], np.arange(*expected[number]))


def test_files_come_in_the_order_of_their_names(tmp_path):
    for name, start in (("b", 10), ("a", 0), ("c", 20)):
        tiny.write(tmp_path / f"{name}.parquet", {"c": np.arange(start, start + 10)})
    blocks = blocks_of(tmp_path / "*.parquet", ["c"], 4)
    expected = [f"{file:06d}-{block:06d}" for file in range(3) for block in range(3)]
    assert [name for name, _ in blocks] == expected
    rows = np.concatenate([arrays["c"] for _, arrays in blocks])
    np.testing.assert_array_equal(rows, np.arange(30))


def test_a_file_that_matches_twice_is_read_once(tmp_path):
    for name in ("a", "b"):
        tiny.write(tmp_path / f"{name}.parquet", {"c": [1]})
    found = tables.find_files([str(tmp_path / "*.parquet"), str(tmp_path / "a.parquet")])
    assert found == [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]


def test_parquet_and_csv_can_be_mixed(tmp_path):
    tiny.write(tmp_path / "a.csv", {"c": np.arange(5)})
    tiny.write(tmp_path / "b.parquet", {"c": np.arange(5, 9)})
    np.testing.assert_array_equal(column_of(tmp_path / "*"), np.arange(9))


def test_an_empty_file_among_others_is_no_error(tmp_path):
    tiny.write(tmp_path / "a.parquet", pa.table({"c": pa.array([], pa.int64())}))
    (tmp_path / "b.csv").write_text("c\n")
    (tmp_path / "c.csv").write_text("")
    tiny.write(tmp_path / "d.parquet", {"c": [4, 5]})
    blocks = blocks_of(tmp_path / "*", ["c"], 3)
    assert [name for name, _ in blocks] == ["000003-000000"]


def test_only_the_columns_that_are_asked_for_are_read(tmp_path):
    for suffix in ("parquet", "csv"):
        path = tiny.write(tmp_path / f"t.{suffix}", {"c": [1], "secret": [tiny.SECRET]})
        ((_, arrays),) = blocks_of(path, ["c"], 3)
        assert list(arrays) == ["c"]


@pytest.mark.parametrize("block_rows", [1, 7, 64, 1000])
def test_csv_is_cut_like_parquet(tmp_path, block_rows):
    table = tiny.table(500)
    found = [
        blocks_of(tiny.write(tmp_path / f"t.{suffix}", table), list(table), block_rows)
        for suffix in ("parquet", "csv")
    ]
    for (name, arrays), (other_name, other) in zip(*found, strict=True):
        assert name == other_name
        for column in table:
            assert arrays[column].dtype == other[column].dtype
            np.testing.assert_array_equal(arrays[column], other[column])


# Types


def test_numbers_are_floats_with_nan_for_nulls(tmp_path):
    values = [1, None, 3, -4]
    for type_ in (pa.int8(), pa.int64(), pa.float64(), pa.decimal128(9, 2)):
        column = column_of(written(tmp_path, pa.array(values, type_)))
        assert column.dtype == np.float64
        np.testing.assert_array_equal(column, [1.0, np.nan, 3.0, -4.0])


def test_unsigned_and_large_numbers(tmp_path):
    column = column_of(written(tmp_path, pa.array([0, 2**63, 2**64 - 1], pa.uint64())))
    assert column.tolist() == [0, 2**63, 2**64 - 1]


def test_whole_numbers_too_large_for_a_float_stay_exact(tmp_path):
    values = [2**53 + 1, None, -(2**60) - 1]
    assert column_of(written(tmp_path, pa.array(values))).tolist() == values


def test_decimals(tmp_path):
    values = [decimal.Decimal("0.10"), None, decimal.Decimal("-12345.67")]
    for type_ in (pa.decimal128(20, 2), pa.decimal256(40, 2)):
        column = column_of(written(tmp_path, pa.array(values, type_)))
        np.testing.assert_array_equal(column, [0.1, np.nan, -12345.67])


def test_float32_keeps_its_precision_so_that_declared_values_match(tmp_path):
    column = column_of(written(tmp_path, pa.array([0.1, None, 0.3], pa.float32())))
    assert column.dtype == np.float32
    spec = parse_spec(
        tiny.Tiny(
            sensitive="[data.sensitive.c]\nvalues = [0.1, 0.3]\nother = true",
            data='features = ["age"]',
        ).toml()
    )
    assert spec.domain().encode({"c": column}).tolist() == [0, 2, 1]


def test_bools_stay_bools(tmp_path):
    for suffix in ("parquet", "csv"):
        column = column_of(written(tmp_path, pa.array([True, None, False]), suffix))
        assert column.dtype == object
        assert column.tolist() == [True, None, False]


def test_text(tmp_path):
    values = ["a", None, "ü", "a b"]
    for type_ in (pa.string(), pa.large_string()):
        assert column_of(written(tmp_path, pa.array(values, type_))).tolist() == values
    assert column_of(written(tmp_path, pa.array(values), "csv")).tolist() == values


@pytest.mark.parametrize(
    "values", [["x", None, "y", "x"], [3, None, 1, 3], [1.5, 2.5, None, 1.5]], ids=str
)
def test_dictionaries_are_their_values(tmp_path, values):
    plain = column_of(written(tmp_path, pa.array(values)))
    encoded = column_of(written(tmp_path, pa.array(values).dictionary_encode()))
    assert encoded.dtype == plain.dtype
    np.testing.assert_array_equal(encoded, plain)


def test_a_column_of_nulls_can_be_read(tmp_path):
    assert column_of(written(tmp_path, pa.nulls(4))).tolist() == [None] * 4


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"x"]),
        pa.array([[1, 2]]),
        pa.array([{"a": 1}]),
        pa.array([0], pa.timestamp("s")),
        pa.array([0], pa.date32()),
        pa.array([0], pa.duration("s")),
    ],
    ids=lambda array: str(array.type),
)
def test_other_types_are_refused_before_a_row_is_read(tmp_path, array):
    path = written(tmp_path, array)
    with pytest.raises(TableError, match=r"column 'c' of .* has type .*; expected numbers, str"):
        tables.open_table([str(path)], ["c"])


def test_text_that_is_not_utf8(tmp_path):
    array = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")],
    )
    with pytest.raises(TableError, match=r"column 'c' of .* must hold text in UTF-8"):
        column_of(written(tmp_path, array))


# What CSV leaves open


def csv_file(folder, text):
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_whole_numbers_may_have_fractions_later(tmp_path):
    # Arrow looks at the first mebibyte to guess a type.
    path = csv_file(tmp_path, "c,d\n" + "123456,7\n" * 200_000 + "0.5,7\n")
    files = tables.open_table([str(path)], ["c"])
    *_, (_, last) = tables.read_blocks(tables.tasks_of(files, 65_536)[0], ["c"], 65_536)
    assert last["c"][-1] == 0.5


def test_a_column_that_changes_its_type_is_named_without_its_values(tmp_path):
    path = csv_file(tmp_path, "x,c\n" + "y,123456\n" * 200_000 + f"y,{tiny.SECRET}\n")
    with pytest.raises(TableError) as caught:
        blocks_of(path, ["c"], 65_536)
    assert "column 'c' of" in str(caught.value)
    assert tiny.SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_declared_text_may_look_like_numbers_dates_or_nulls(tmp_path):
    path = csv_file(tmp_path, "c,d\n01,1\n2024-01-01,NA\nNA,2\n,3\n")
    texts = {"c": ["01", "2024-01-01", "NA"]}
    assert column_of(path, texts=texts).tolist() == ["01", "2024-01-01", "NA", None]
    assert column_of(csv_file(tmp_path, "c\nx\nNA\n")).tolist() == ["x", None]


@pytest.mark.parametrize(
    ("declaration", "entries", "odd"),
    [
        ("values = [true, false]", ["true", "False", "true", ""], "maybe"),
        ('values = [1, "a"]', ["1", "1.0", "1", "1"], "a"),
        ("values = [1, 2]", ["1", "2", "", "2"], "junk"),
        ("edges = [0, 10, 20]", ["5", "15", "", "20"], "junk"),
        ('values = ["01", "NA"]', ["01", "NA", "01", ""], "7"),
    ],
)
def test_one_private_entry_of_a_csv_never_changes_how_others_are_read(
    tmp_path, declaration, entries, odd
):
    """Guessing a column's type from its entries would make every row depend on every other."""
    spec = parse_spec(
        tiny.Tiny(sensitive=f"[data.sensitive.c]\n{declaration}\nother = true").toml()
    )
    sensitive = {"c": tables.sensitive_columns(spec)["c"]}
    domain = spec.domain()
    codes = []
    for neighbour in (entries, [*entries[:-1], odd]):
        path = csv_file(tmp_path, "c,d\n" + "".join(f"{entry},1\n" for entry in neighbour))
        codes.append(domain.encode({"c": column_of(path, sensitive=sensitive)}))
    assert (codes[0][:-1] == codes[1][:-1]).all()
    assert codes[0][0] != domain.num_codes - 1  # declared values are recognised, not all "other"


def test_the_specification_says_how_csv_is_read():
    spec = parse_spec(
        tiny.Tiny(
            sensitive="\n".join(
                [
                    '[data.sensitive.text]\nvalues = ["1", "NA"]',
                    "[data.sensitive.number]\nvalues = [1, 2.5]",
                    "[data.sensitive.bin]\nedges = [0, 1, 2]",
                    "[data.sensitive.flag]\nvalues = [true, false]",
                ]
            ),
            data='features = ["age", "device", "page"]',
            more='[data.encode.device]\nkind = "one_hot"\nvalues = ["7", "8"]\n'
            '[data.encode.page]\nkind = "hashed"\n'
            '[data.unit]\ncolumn = "user"\nmax_rows = 2',
        ).toml()
    )
    assert list(tables.sensitive_columns(spec)) == ["text", "number", "bin", "flag"]
    assert tables.csv_texts(spec) == {
        "device": ["7", "8"],
        "page": [],
        "user": [],
    }


def test_quoted_fields_with_commas_and_quotes(tmp_path):
    path = csv_file(tmp_path, 'c,d\n"a,b",1\n"say ""hi""",2\n')
    assert column_of(path).tolist() == ["a,b", 'say "hi"']


# Errors


def test_a_pattern_without_match_is_named(tmp_path):
    tiny.write(tmp_path / "a.parquet", {"c": [1]})
    patterns = [str(tmp_path / "a.parquet"), str(tmp_path / "z-*.parquet")]
    with pytest.raises(TableError, match=r"no file matches .*z-\*\.parquet"):
        tables.find_files(patterns)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(TableError, match=r"notes\.txt must end in \.parquet or \.csv"):
        tables.find_files([str(tmp_path / "*")])


def test_a_file_that_shrinks_between_planning_and_reading(tmp_path):
    path = written(tmp_path, np.arange(10))
    (task,) = tables.tasks_of(tables.open_table([str(path)], ["c"]), 100)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(TableError, match="is damaged"):
        list(tables.read_blocks(task, ["c"], 100))
    path.unlink()
    with pytest.raises(TableError, match=r"cannot read .*: No such file"):
        list(tables.read_blocks(task, ["c"], 100))
