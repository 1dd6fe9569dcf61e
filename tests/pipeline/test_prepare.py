"""Preparing: from tables to blocks, once, in order, public and private apart."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
import stat

import numpy as np
import pyarrow as pa
import pytest
import tiny
from tiny import Tiny

from pipeline import dataset, tables
from pipeline.blocks import unpack, unpack_public
from pipeline.encode import EncoderPlan
from pipeline.launch import Launcher
from pipeline.prepare import prepare
from pipeline.spec import parse_spec
from ssdp_core.features import CsrFeatures, DenseFeatures

VALUE = 'name = "value"\ntarget = "value"\nloss = "squared"'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "t.parquet", tiny.table())
    return tmp_path


def prepared(spec, name="p", workers=2):
    """Prepares; returns the manifest and what was reported."""
    said = []
    launcher = Launcher([f"--direct_num_workers={workers}"])
    return prepare(parse_spec(spec.toml()), name, launcher, said.append), said


def unkeyed(manifest):
    """A manifest without what is keyed with the folder's own salt."""
    blocks = tuple(dataclasses.replace(block, private_hash="") for block in manifest.blocks)
    return dataclasses.replace(manifest, digest="", blocks=blocks)


def public_rows(folder, manifest):
    return [
        unpack_public((folder / "public" / f"{block.name}.block").read_bytes())
        for block in manifest.blocks
    ]


def codes_of(folder, manifest):
    files = [folder / "private" / f"{block.name}.block" for block in manifest.blocks]
    return np.concatenate([unpack(file.read_bytes())[0]["codes"] for file in files])


def block_files(folder):
    return {
        name: content
        for name, (_, content) in tiny.snapshot(folder).items()
        if name.endswith(".block")
    }


# What is written


def test_counts_and_checksums(folder):
    spec = Tiny(problems=[*Tiny().problems, VALUE])
    manifest, said = prepared(spec)
    assert manifest.num_rows == tiny.NUM_ROWS == 400
    assert manifest.num_codes == 3
    assert manifest.block_rows == 128
    assert [block.num_rows for block in manifest.blocks] == [128, 128, 128, 16]
    assert manifest.num_features == 4  # intercept, age, two devices
    assert manifest.feature_norm <= 1.0
    assert manifest.target_bounds == {"click": 1.0, "value": tiny.table()["value"].max()}
    salt = (folder / "p" / "private" / "salt").read_bytes()
    for block in manifest.blocks:
        public, private = (
            (folder / "p" / side / f"{block.name}.block").read_bytes()
            for side in ("public", "private")
        )
        assert block.public_sha256 == hashlib.sha256(public).hexdigest()
        assert block.private_hash == hmac.new(salt, private, hashlib.sha256).hexdigest()
    assert dataset.load_manifest("p") == manifest
    assert said == ["prepared 400 rows in 4 blocks"]


def test_only_the_manifest_and_the_blocks_are_left(folder):
    manifest, _ = prepared(Tiny())
    names = [f"{block.name}.block" for block in manifest.blocks]
    expected = {f"{side}/{name}" for side in ("public", "private") for name in names}
    assert set(tiny.snapshot(folder / "p")) == {"manifest.json", "private/salt", *expected}


def test_codes_and_features_are_those_of_the_table(folder):
    spec = Tiny(problems=[*Tiny().problems, VALUE])
    manifest, _ = prepared(spec)
    table = tiny.table()
    expected = np.searchsorted(["a", "b", "c"], table["segment"])
    np.testing.assert_array_equal(codes_of(folder / "p", manifest), expected)
    rows = public_rows(folder / "p", manifest)
    for name in ("click", "value"):
        found = np.concatenate([block.columns[name] for block in rows])
        np.testing.assert_array_equal(found, table[name])
    values = np.concatenate([block.features.values for block in rows])
    age = np.clip((table["age"] - table["age"].mean()) / table["age"].std(), -5, 5) / 5
    by_hand = np.stack(
        [np.ones(400), age, table["device"] == "phone", table["device"] == "tablet"], axis=1
    )
    by_hand /= np.maximum(1, np.linalg.norm(by_hand, axis=1))[:, np.newaxis]
    np.testing.assert_allclose(values, by_hand, atol=1e-6)


def test_public_and_private_are_apart_and_private_is_for_the_owner(folder):
    prepared(Tiny())
    assert stat.S_IMODE((folder / "p" / "private").stat().st_mode) == 0o700
    for file in (folder / "p" / "private").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.name == "salt" or set(unpack(file.read_bytes())[0]) == {"codes"}
    for file in (folder / "p" / "public").iterdir():
        assert set(unpack(file.read_bytes())[0]) == {"column/click", "values"}


def test_nothing_private_is_in_the_manifest_or_the_public_blocks(folder):
    table = tiny.table()
    table["segment"] = np.where(table["segment"] == "a", tiny.SECRET, "b")
    tiny.write(folder / "t.parquet", table)
    spec = Tiny(sensitive=f'[data.sensitive.segment]\nvalues = ["{tiny.SECRET}", "b"]')
    prepared(spec)
    for name, (_, content) in tiny.snapshot(folder / "p").items():
        assert tiny.SECRET.encode() not in content, name
    # Other private values with the same public ones change nothing but the private blocks.
    public = block_files(folder / "p" / "public")
    table["segment"] = np.full(400, "b")
    tiny.write(folder / "t.parquet", table)
    prepared(spec)
    assert block_files(folder / "p" / "public") == public


# The same blocks from the same rows


def test_parquet_and_csv_give_the_same_blocks(folder):
    table = tiny.table()
    tiny.write(folder / "t.csv", table)
    problems = [*Tiny().problems, VALUE]
    first, _ = prepared(Tiny(problems=problems), "p")
    second, _ = prepared(Tiny(path="t.csv", problems=problems), "q")
    assert block_files(folder / "p") == block_files(folder / "q")
    assert unkeyed(first) == unkeyed(second)
    assert first.digest != second.digest
    for one, other in zip(first.blocks, second.blocks, strict=True):
        assert one.private_hash != other.private_hash  # nobody learns that the codes are equal


def test_csv_and_parquet_agree_on_declared_text_that_looks_like_numbers(folder):
    table = tiny.table()
    table["segment"] = np.array(["1", "02", "NA", ""])[np.arange(400) % 4].astype(object)
    table["segment"][table["segment"] == ""] = None
    sensitive = '[data.sensitive.segment]\nvalues = ["1", "02", "NA"]\nother = true'
    for suffix in ("parquet", "csv"):
        tiny.write(folder / f"t.{suffix}", table)
        manifest, _ = prepared(Tiny(path=f"t.{suffix}", sensitive=sensitive), suffix)
        np.testing.assert_array_equal(codes_of(folder / suffix, manifest), np.arange(400) % 4)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_nulls_in_public_columns_get_a_feature(folder, suffix):
    table = tiny.table()
    ages = [None if i % 5 == 0 else i for i in range(400)]
    table["age"] = pa.array(ages, pa.int64())
    tiny.write(folder / f"t.{suffix}", table)
    manifest, _ = prepared(Tiny(path=f"t.{suffix}"))
    names = EncoderPlan.from_json(manifest.encoder).feature_names
    assert names == ("intercept", "age", "age?null", "device=phone", "device=tablet")
    values = np.concatenate([b.features.values for b in public_rows(folder / "p", manifest)])
    np.testing.assert_array_equal(values[:, 2] > 0, np.arange(400) % 5 == 0)
    np.testing.assert_array_equal(values[values[:, 2] > 0, 1], 0.0)


def test_row_groups_and_workers_make_no_difference(folder):
    expected, _ = prepared(Tiny(), "p", workers=1)
    contents = block_files(folder / "p")
    for number, (group, workers) in enumerate([(400, 2), (33, 2), (150, 1)]):
        tiny.write(folder / "t.parquet", tiny.table(), row_group_size=group)
        manifest, _ = prepared(Tiny(), f"q{number}", workers)
        assert unkeyed(manifest) == unkeyed(expected)
        assert block_files(folder / f"q{number}") == contents


def test_dictionary_decimal_and_bool_columns(folder):
    table = tiny.table()
    table["device"] = pa.array(table["device"]).dictionary_encode()
    table["segment"] = pa.array(table["segment"]).dictionary_encode()
    table["click"] = table["click"] == 1
    table["age"] = pa.array(table["age"]).cast(pa.decimal128(10, 3))
    expected, _ = prepared(Tiny(), "p")
    tiny.write(folder / "other.parquet", table)
    manifest, _ = prepared(Tiny(path="other.parquet"), "q")
    assert block_files(folder / "p") == block_files(folder / "q")
    assert unkeyed(manifest) == unkeyed(expected)


def test_several_files_are_one_table(folder):
    table = pa.table(tiny.table())
    for number, (start, rows) in enumerate([(0, 150), (150, 200), (350, 50)]):
        tiny.write(folder / f"part-{number}.parquet", table.slice(start, rows), row_group_size=64)
    manifest, _ = prepared(Tiny(path="part-*.parquet"))
    assert [(block.name, block.num_rows) for block in manifest.blocks] == [
        ("000000-000000", 128),
        ("000000-000001", 22),
        ("000001-000000", 128),
        ("000001-000001", 72),
        ("000002-000000", 50),
    ]
    whole, _ = prepared(Tiny(), "whole")
    assert manifest.encoder == whole.encoder
    for read in (
        codes_of,
        lambda *a: np.concatenate([b.features.values for b in public_rows(*a)]),
    ):
        np.testing.assert_array_equal(read(folder / "p", manifest), read(folder / "whole", whole))


# Sparse features


def test_hashed_columns_give_sparse_blocks(folder):
    spec = Tiny(more='[data.encode.device]\nkind = "hashed"\nbits = 12')
    manifest, _ = prepared(spec)
    assert manifest.num_features == 2 + 4096
    plan = EncoderPlan.from_json(manifest.encoder)
    table = tiny.table()
    start = 0
    for rows in public_rows(folder / "p", manifest):
        assert isinstance(rows.features, CsrFeatures)
        stop = start + rows.num_rows
        expected = plan.encode({name: table[name][start:stop] for name in ("age", "device")})
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(rows.features, part), getattr(expected, part))
        assert rows.features.num_columns == 2 + 4096
        start = stop
    assert start == 400


def test_a_model_on_sparse_features_equals_the_one_on_dense(folder):
    """Two values that hash to different columns are a one-hot encoding in another order."""
    dense = Tiny(privacy='epsilon = "inf"\ndelta = 1e-6', fit="num_steps = 5")
    sparse = Tiny(
        privacy=dense.privacy,
        fit=dense.fit,
        more='[data.encode.device]\nkind = "hashed"\nbits = 12',
    )
    weights = []
    for name, spec in (("dense", dense), ("sparse", sparse)):
        assert tiny.run("fit", spec.write(folder, f"{name}.toml"), "--out", name, "--quiet") == 0
        (model,) = tiny.read_json(folder / name / "models.json")["models"]
        named = dict(zip(model["features"], model["weights"][0], strict=True))
        weights.append(sorted(value for value in named.values() if value))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-9)


def test_dense_blocks_have_one_row_per_row(folder):
    manifest, _ = prepared(Tiny())
    for rows, block in zip(public_rows(folder / "p", manifest), manifest.blocks, strict=True):
        assert isinstance(rows.features, DenseFeatures)
        assert rows.features.values.shape == (block.num_rows, 4)
        assert rows.features.values.dtype == np.float32


# Again


def test_unchanged_input_is_not_prepared_again(folder):
    first, _ = prepared(Tiny())
    before = tiny.snapshot(folder / "p")
    second, said = prepared(Tiny())
    assert tiny.snapshot(folder / "p") == before
    assert second == first
    assert said == ["prepared dataset p is up to date: 400 rows"]


def test_a_touched_file_with_the_same_content_is_unchanged(folder):
    prepared(Tiny())
    before = tiny.snapshot(folder / "p")
    os.utime(folder / "t.parquet", (1, 1))
    prepared(Tiny())
    assert tiny.snapshot(folder / "p") == before


def test_changed_input_is_prepared_again(folder):
    first, _ = prepared(Tiny())
    tiny.write(folder / "t.parquet", tiny.table(300, seed=5))
    second, said = prepared(Tiny())
    assert said == [
        "the input has changed: preparing p again",
        "prepared 300 rows in 3 blocks",
    ]
    assert second.digest != first.digest
    assert len(block_files(folder / "p")) == 6  # nothing of the old ones
    np.testing.assert_array_equal(
        codes_of(folder / "p", second),
        np.searchsorted(["a", "b", "c"], tiny.table(300, seed=5)["segment"]),
    )


def test_one_more_file_is_a_change(folder):
    tiny.write(folder / "part-0.parquet", tiny.table())
    prepared(Tiny(path="part-*.parquet"))
    tiny.write(folder / "part-1.parquet", tiny.table(10))
    manifest, said = prepared(Tiny(path="part-*.parquet"))
    assert manifest.num_rows == 410
    assert "the input has changed" in said[0]


@pytest.mark.parametrize(
    "change",
    [
        {"data": 'features = ["age", "device"]\nblock_rows = 64'},
        {"data": 'features = ["age"]\nblock_rows = 128'},
        {"sensitive": '[data.sensitive.segment]\nvalues = ["c", "b", "a"]'},
        {"problems": [VALUE]},
        {"more": '[data.encode.age]\nkind = "bins"\nedges = [0, 40, 100]'},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_way_to_prepare_is_a_change(folder, change):
    prepared(Tiny())
    before = block_files(folder / "p")
    _, said = prepared(Tiny(**change))
    assert "preparing p again" in said[0]
    assert block_files(folder / "p") != before


@pytest.mark.parametrize(
    "change",
    [{"privacy": "epsilon = 9\ndelta = 1e-7"}, {"fit": "num_steps = 77"}],
    ids=lambda change: next(iter(change)),
)
def test_what_only_a_fit_needs_is_no_change(folder, change):
    prepared(Tiny())
    _, said = prepared(Tiny(**change))
    assert said == ["prepared dataset p is up to date: 400 rows"]


def test_an_interrupted_preparation_is_done_again(folder):
    manifest, _ = prepared(Tiny())
    expected = block_files(folder / "p")
    (folder / "p" / "manifest.json").unlink()  # it is written last
    (folder / "p" / "public" / f"{manifest.blocks[1].name}.block").unlink()
    half = folder / "p" / "private" / f"{manifest.blocks[2].name}.block"
    half.write_bytes(half.read_bytes()[:20])
    (folder / "p" / "private" / ".tmp-0123").write_bytes(b"left by a killed process")
    (folder / "p" / "public" / "000009-000000.block").write_bytes(b"of another table")
    again, said = prepared(Tiny())
    assert said == ["prepared 400 rows in 4 blocks"]
    assert unkeyed(again) == unkeyed(manifest)
    assert set(tiny.snapshot(folder / "p")) == {"manifest.json", "private/salt", *expected}
    assert block_files(folder / "p") == expected


def test_a_preparation_that_fails_leaves_no_manifest(folder):
    prepared(Tiny())
    table = tiny.table()
    table["segment"][399] = "z"
    tiny.write(folder / "t.parquet", table)
    with pytest.raises(tables.TableError, match="column 'segment'"):
        prepared(Tiny())
    assert not (folder / "p" / "manifest.json").exists()
    assert not [name for name in tiny.snapshot(folder / "p") if "result" in name or ".tmp" in name]
    tiny.write(folder / "t.parquet", tiny.table())
    assert prepared(Tiny())[0].num_rows == 400


def test_a_manifest_of_another_format_is_prepared_again(folder):
    manifest, _ = prepared(Tiny())
    path = folder / "p" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0}))
    again, said = prepared(Tiny())
    assert unkeyed(again) == unkeyed(manifest)
    assert "cannot be used: preparing p again" in said[0]


# Privacy units


def with_units(folder, *parts):
    for number, units in enumerate(parts):
        table = {name: column[: len(units)] for name, column in tiny.table().items()}
        tiny.write(folder / f"part-{number}.parquet", {**table, "user": units})


def unit_spec(max_rows, suffix="parquet"):
    more = f'[data.unit]\ncolumn = "user"\nmax_rows = {max_rows}'
    return Tiny(path=f"part-*.{suffix}", more=more)


def test_rows_of_a_unit_are_counted_over_files_and_blocks(folder):
    with_units(folder, ["u1", "u2"] * 100, ["u3"] * 5 + ["u1"] * 7, ["u1"])
    with pytest.raises(tables.TableError, match=r"'user' has 108 rows, .* max_rows is 107"):
        prepared(unit_spec(107))
    assert not list((folder / "p").rglob("*.block"))
    assert prepared(unit_spec(108))[0].num_rows == 213


def test_units_may_be_numbers_but_not_null(folder):
    with_units(folder, pa.array([1, 2, 1]), pa.array([2**60, 1]))
    with pytest.raises(tables.TableError, match="has 3 rows"):
        prepared(unit_spec(2))
    assert prepared(unit_spec(3))[0].num_rows == 5
    with_units(folder, pa.array([1, None, 1]))
    with pytest.raises(tables.TableError, match="'user' must have no nulls"):
        prepared(unit_spec(3))


def test_the_unit_is_not_shown(folder):
    with_units(folder, [tiny.SECRET] * 3)
    with pytest.raises(tables.TableError) as caught:
        prepared(unit_spec(2))
    assert tiny.SECRET not in str(caught.value)
    prepared(unit_spec(3))
    for name, (_, content) in tiny.snapshot(folder / "p").items():
        assert tiny.SECRET.encode() not in content, name


def test_files_must_agree_about_the_type_of_a_unit(folder):
    """7 in one file and "007" in another may be one unit: counting them apart would hide rows."""
    with_units(folder, [7, 8], ["007", "8"])
    with pytest.raises(tables.TableError, match="one type in all files, found number and str"):
        prepared(unit_spec(2))


def unit_rows(folder, units, max_rows, suffix):
    table = {name: column[: len(units)] for name, column in tiny.table().items()}
    tiny.write(folder / f"part-0.{suffix}", {**table, "user": units})
    return prepared(unit_spec(max_rows, suffix))[0].num_rows


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_long_identifiers_are_not_confused(folder, suffix):
    assert unit_rows(folder, [2**62 + i for i in range(50)], 1, suffix) == 50
    assert unit_rows(folder, [f"0{i}" for i in range(10)] + list("0123456789"), 1, suffix) == 20
