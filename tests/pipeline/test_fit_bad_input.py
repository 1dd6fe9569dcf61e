"""Everything a user can get wrong, one test each: one sentence, an exit code, nothing lost."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import shutil
import subprocess

import numpy as np
import pyarrow as pa
import pytest
import tiny
from tiny import SECRET, Tiny


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a good table and an earlier run that must survive everything."""
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "t.parquet", tiny.table())
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "models.json").write_text("{}")
    return tmp_path


@pytest.fixture
def refused(folder, capsys, caplog):
    """Runs a command that must fail; returns its sentence after checking the general rules."""

    def check(*arguments, code=1):
        inputs = {name for name in tiny.snapshot(folder) if not name.startswith("out")}
        before = {name: tiny.snapshot(folder)[name] for name in inputs}
        capsys.readouterr()
        assert tiny.run(*arguments) == code
        sentence = _one_sentence(capsys.readouterr().err)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        after = tiny.snapshot(folder)
        assert {name: after.get(name) for name in inputs} == before
        return sentence

    return check


def _one_sentence(error):
    lines = error.splitlines()
    assert len(lines) == 1, error
    assert "Traceback" not in error
    assert SECRET not in error
    assert lines[0].startswith("ssdp ")
    assert 20 < len(lines[0]) < 500, lines[0]
    return lines[0]


def fit(spec_path, *more):
    return ("fit", spec_path, "--out", "out", *more)


def nothing_prepared(folder):
    """Whether the mistake was found before any block was written."""
    return not list(folder.rglob("*.block")) and not list(folder.rglob("manifest.json"))


# Files


def test_missing_table(folder, refused):
    sentence = refused(*fit(Tiny(path="nowhere.parquet").write(folder)))
    assert "no file matches 'nowhere.parquet'" in sentence
    assert "check [data] path" in sentence
    assert nothing_prepared(folder)


def test_missing_spec(folder, refused):
    sentence = refused(*fit("nowhere.toml"))
    assert "cannot read nowhere.toml: No such file" in sentence
    assert not (folder / "out").exists()


def test_spec_that_is_a_directory(folder, refused):
    (folder / "spec").mkdir()
    assert "cannot read spec: Is a directory" in refused(*fit("spec"))
    assert not (folder / "out").exists()


def test_spec_that_is_no_toml(folder, refused):
    (folder / "s.toml").write_text("[data\npath = 3")
    assert "s.toml: not valid TOML" in refused(*fit("s.toml"))


def test_parquet_without_rows(folder, refused):
    tiny.write(folder / "empty.parquet", pa.table(tiny.table()).slice(0, 0))
    sentence = refused(*fit(Tiny(path="empty.parquet").write(folder)))
    assert "the table is empty: empty.parquet has no rows" in sentence
    assert nothing_prepared(folder)


def test_csv_with_only_a_header(folder, refused):
    (folder / "empty.csv").write_text(",".join(tiny.table()) + "\n")
    sentence = refused(*fit(Tiny(path="empty.csv").write(folder)))
    assert "the table is empty: empty.csv has no rows" in sentence
    assert nothing_prepared(folder)


def test_csv_without_a_byte(folder, refused):
    (folder / "empty.csv").write_text("")
    sentence = refused(*fit(Tiny(path="empty.csv").write(folder)))
    assert "the table is empty: empty.csv has no rows" in sentence


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_truncated_parquet(folder, refused, kept):
    content = (folder / "t.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[: int(kept * len(content))])
    sentence = refused(*fit(Tiny(path="cut.parquet").write(folder)))
    assert "cut.parquet cannot be read as Parquet" in sentence
    assert nothing_prepared(folder)


def test_parquet_damaged_in_the_middle(folder, refused):
    content = bytearray((folder / "t.parquet").read_bytes())
    content[4:600] = bytes(596)
    (folder / "bad.parquet").write_bytes(content)
    sentence = refused(*fit(Tiny(path="bad.parquet").write(folder)))
    assert "bad.parquet is damaged" in sentence


def test_csv_with_a_short_line(folder, refused):
    tiny.write(folder / "t.csv", tiny.table())
    with (folder / "t.csv").open("a") as file:
        file.write(f'"{SECRET}",1\n')
    sentence = refused(*fit(Tiny(path="t.csv").write(folder)))
    assert "t.csv cannot be read as CSV" in sentence


def test_table_path_that_is_a_directory(folder, refused):
    (folder / "d.parquet").mkdir()
    sentence = refused(*fit(Tiny(path="d.parquet").write(folder)))
    assert "d.parquet" in sentence
    assert nothing_prepared(folder)


# Columns


@pytest.mark.parametrize("column", ["age", "segment", "click"])
def test_missing_column(folder, refused, column):
    table = tiny.table()
    del table[column]
    tiny.write(folder / "t.parquet", table)
    sentence = refused(*fit(Tiny().write(folder)))
    assert f"t.parquet has no column '{column}'; it has " in sentence
    assert nothing_prepared(folder)


def test_column_missing_in_one_file_of_several(folder, refused):
    table = tiny.table()
    tiny.write(folder / "part-0.parquet", table)
    del table["device"]
    tiny.write(folder / "part-1.parquet", table)
    sentence = refused(*fit(Tiny(path="part-*.parquet").write(folder)))
    assert "part-1.parquet has no column 'device'" in sentence


@pytest.mark.parametrize("kind", ["numeric", "log", "bins"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_text_in_a_column_encoded_as_numbers(folder, refused, kind, suffix):
    tiny.write(folder / f"t.{suffix}", tiny.table())
    more = f'[data.encode.device]\nkind = "{kind}"\n' + ("edges = [0, 1]" if kind == "bins" else "")
    sentence = refused(*fit(Tiny(path=f"t.{suffix}", more=more).write(folder)))
    assert f"column 'device' must hold numbers to be encoded as {kind}" in sentence
    assert nothing_prepared(folder)


def test_timestamps(folder, refused):
    table = tiny.table()
    table["age"] = pa.array([datetime.datetime(2024, 1, 1)] * tiny.NUM_ROWS)
    tiny.write(folder / "t.parquet", table)
    sentence = refused(*fit(Tiny().write(folder)))
    assert "column 'age' of t.parquet has type timestamp[us]; expected numbers, strings" in sentence
    assert nothing_prepared(folder)


def test_sensitive_column_of_a_strange_type(folder, refused):
    table = tiny.table()
    table["segment"] = pa.array([SECRET.encode()] * tiny.NUM_ROWS, pa.binary())
    tiny.write(folder / "t.parquet", table)
    sentence = refused(*fit(Tiny().write(folder)))
    assert "column 'segment' of t.parquet has type binary" in sentence


@pytest.mark.parametrize("type_", [pa.null(), pa.string(), pa.float64()])
def test_public_column_of_nulls(folder, refused, type_):
    table = tiny.table()
    table["age"] = pa.nulls(tiny.NUM_ROWS, type_)
    tiny.write(folder / "t.parquet", table)
    sentence = refused(*fit(Tiny().write(folder)))
    assert "column 'age' must hold at least one value, found only nulls" in sentence
    assert nothing_prepared(folder)


def test_infinity_in_a_public_column(folder, refused):
    table = tiny.table()
    table["age"][7] = np.inf
    tiny.write(folder / "t.parquet", table)
    sentence = refused(*fit(Tiny().write(folder)))
    assert "column 'age' must hold finite numbers" in sentence


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_column_that_occurs_twice(folder, refused, suffix):
    table = pa.table(tiny.table())
    table = table.append_column("age", table["age"])
    tiny.write(folder / f"t.{suffix}", table)
    sentence = refused(*fit(Tiny(path=f"t.{suffix}").write(folder)))
    assert f"t.{suffix} has more than one column 'age'" in sentence
    assert nothing_prepared(folder)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_column_that_occurs_twice_but_is_not_used(folder, suffix):
    table = pa.table(tiny.table())
    table = table.append_column("user", table["age"])
    tiny.write(folder / f"t.{suffix}", table)
    assert tiny.run("prepare", Tiny(path=f"t.{suffix}").write(folder)) == 0


# The specification


@pytest.mark.parametrize(
    ("change", "near"),
    [
        ({"data": 'feature = ["age"]'}, "has no key 'feature': did you mean 'features'?"),
        ({"privacy": "epsilonn = 1\ndelta = 1e-6"}, "did you mean 'epsilon'?"),
        ({"fit": "steps = 3"}, "did you mean 'num_steps'?"),
        ({"more": "[privcy]\nepsilon = 1"}, "did you mean 'privacy'?"),
    ],
)
def test_unknown_key(folder, refused, change, near):
    sentence = refused(*fit(Tiny(**change).write(folder)))
    assert near in sentence
    assert "The valid keys are" in sentence
    assert not (folder / "out").exists()


def test_duplicate_problem_names(folder, refused):
    problems = Tiny().problems * 2
    sentence = refused(*fit(Tiny(problems=problems).write(folder)))
    assert "[[problem]] names must be distinct, got 'click' more than once" in sentence


def test_column_both_public_and_sensitive(folder, refused):
    spec = Tiny(data='features = ["age", "segment"]')
    sentence = refused(*fit(spec.write(folder)))
    assert "[data.sensitive.segment] declares 'segment' as sensitive" in sentence
    assert "lists it as public" in sentence


def test_target_both_public_feature_and_sensitive(folder, refused):
    spec = Tiny(
        data='features = ["age", "click"]',
        sensitive='[data.sensitive.click]\nvalues = [0, 1]\nrole = "target"',
    )
    sentence = refused(*fit(spec.write(folder)))
    assert "'click'" in sentence
    assert "a column must be one or the other" in sentence


def test_target_that_is_also_a_feature(folder, refused):
    sentence = refused(*fit(Tiny(data='features = ["age", "click"]').write(folder)))
    assert "target must not be a feature, but 'click'" in sentence


@pytest.mark.parametrize("epsilon", ["0", "0.0", "-1", "nan", '"two"', "true"])
def test_epsilon_that_is_not_positive(folder, refused, epsilon):
    sentence = refused(*fit(Tiny(privacy=f"epsilon = {epsilon}\ndelta = 1e-6").write(folder)))
    assert '[privacy] epsilon must be a positive number, or "inf"' in sentence
    assert not (folder / "out").exists()


@pytest.mark.parametrize("delta", ["0", "-1e-6", "1", "nan"])
def test_delta_out_of_range(folder, refused, delta):
    sentence = refused(*fit(Tiny(privacy=f"epsilon = 1\ndelta = {delta}").write(folder)))
    assert "[privacy] delta must" in sentence
    assert not (folder / "out").exists()


def test_delta_above_one_over_n_is_a_warning(folder, capsys):
    spec = Tiny(privacy="epsilon = 1\ndelta = 0.01", fit="num_steps = 1")
    assert tiny.run(*fit(spec.write(folder))) == 0
    output = capsys.readouterr()
    assert "warning: delta = 0.01 is above 1/n = 0.0025" in output.out + output.err
    assert (folder / "out" / "models.json").exists()


def test_delta_below_one_over_n_is_no_warning(folder, capsys):
    spec = Tiny(privacy="epsilon = 1\ndelta = 0.002", fit="num_steps = 1")
    assert tiny.run(*fit(spec.write(folder))) == 0
    output = capsys.readouterr()
    assert "warning" not in output.out + output.err


def test_domain_with_one_value(folder, refused):
    sentence = refused(
        *fit(Tiny(sensitive='[data.sensitive.segment]\nvalues = ["a"]').write(folder))
    )
    assert "column 'segment' must have at least 2 possible values" in sentence
    assert not (folder / "out").exists()


def test_seed_must_be_a_number(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        tiny.run(*fit(Tiny().write(folder), "--seed", "x"))
    assert stopped.value.code == 2
    assert "--seed" in capsys.readouterr().err


# Private values


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_value_outside_the_declared_domain(folder, refused, suffix):
    table = tiny.table()
    table["segment"] = table["segment"].astype(object)
    table["segment"][123] = SECRET
    tiny.write(folder / f"t.{suffix}", table)
    sentence = refused(*fit(Tiny(path=f"t.{suffix}").write(folder)))
    assert "column 'segment' holds a null or a value outside its 3 declared values" in sentence
    digits = {
        character for character in sentence.split("column 'segment'")[1] if character.isdigit()
    }
    assert digits == {"3"}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_null_in_a_sensitive_column(folder, refused, suffix):
    table = tiny.table()
    table["segment"] = table["segment"].astype(object)
    table["segment"][5] = None
    tiny.write(folder / f"t.{suffix}", table)
    sentence = refused(*fit(Tiny(path=f"t.{suffix}").write(folder)))
    assert "column 'segment' holds a null or a value outside its 3 declared values" in sentence


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_nulls_and_undeclared_values_go_to_other(folder, suffix, capsys):
    table = tiny.table()
    table["segment"] = table["segment"].astype(object)
    table["segment"][3], table["segment"][4] = None, SECRET
    tiny.write(folder / f"t.{suffix}", table)
    sensitive = '[data.sensitive.segment]\nvalues = ["a", "b", "c"]\nother = true'
    spec = Tiny(path=f"t.{suffix}", sensitive=sensitive, fit="num_steps = 1")
    assert tiny.run(*fit(spec.write(folder))) == 0
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_text_in_a_sensitive_column_of_numbers(folder, refused, suffix):
    table = tiny.table()
    table["segment"] = [str(i % 3) for i in range(tiny.NUM_ROWS)]
    table["segment"][-1] = SECRET
    tiny.write(folder / f"t.{suffix}", table)
    spec = Tiny(path=f"t.{suffix}", sensitive="[data.sensitive.segment]\nvalues = [0, 1, 2]")
    sentence = refused(*fit(spec.write(folder)))
    assert "column 'segment'" in sentence


def test_number_outside_the_declared_bins(folder, refused):
    table = tiny.table()
    table["segment"] = np.linspace(0, 10, tiny.NUM_ROWS)
    table["segment"][9] = 98765.25
    tiny.write(folder / "t.parquet", table)
    spec = Tiny(sensitive="[data.sensitive.segment]\nedges = [0, 5, 10]")
    sentence = refused(*fit(spec.write(folder)))
    assert "outside its 2 declared values" in sentence
    assert "98765" not in sentence


# The privacy unit


def test_more_rows_per_unit_than_declared(folder, refused):
    more = '[data.unit]\ncolumn = "user"\nmax_rows = 1'
    sentence = refused(*fit(Tiny(more=more).write(folder)))
    assert "a privacy unit of column 'user' has 2 rows, but [data.unit] max_rows is 1" in sentence
    assert nothing_prepared(folder)


def test_unit_column_that_is_missing(folder, refused):
    more = '[data.unit]\ncolumn = "person"\nmax_rows = 1'
    assert "has no column 'person'" in refused(*fit(Tiny(more=more).write(folder)))


# Targets


def with_target(values):
    table = tiny.table()
    table["click"] = values
    return table


def test_target_with_nulls(folder, refused):
    values = pa.array([None] + [0, 1] * (tiny.NUM_ROWS // 2 - 1) + [0])
    tiny.write(folder / "t.parquet", with_target(values))
    sentence = refused(*fit(Tiny().write(folder)))
    assert "target column 'click' must have no nulls: drop those rows first" in sentence


def test_target_of_text(folder, refused):
    tiny.write(folder / "t.parquet", with_target(["yes", "no"] * (tiny.NUM_ROWS // 2)))
    sentence = refused(*fit(Tiny().write(folder)))
    assert "target column 'click' must hold numbers without nulls" in sentence


def test_binary_target_with_value_two(folder, refused):
    tiny.write(folder / "t.parquet", with_target(np.arange(tiny.NUM_ROWS) % 3))
    sentence = refused(*fit(Tiny().write(folder)))
    assert "target column 'click'" in sentence
    assert "0" in sentence
    assert "1" in sentence


def test_class_outside_num_classes(folder, refused):
    tiny.write(folder / "t.parquet", with_target(np.arange(tiny.NUM_ROWS) % 4))
    problem = 'name = "click"\ntarget = "click"\nloss = "multinomial"\nnum_classes = 3'
    sentence = refused(*fit(Tiny(problems=[problem]).write(folder)))
    assert "target column 'click'" in sentence


def test_declared_binary_target_with_value_two(folder, refused):
    spec = Tiny(
        sensitive=Tiny().sensitive + '\n[data.sensitive.click]\nvalues = [0, 1, 2]\nrole = "target"'
    )
    sentence = refused(*fit(spec.write(folder)))
    assert "'click'" in sentence
    assert not (folder / "out").exists()


# Storage


def test_unreadable_bucket(folder, refused, monkeypatch):
    """Without credentials or network. The client's own retries take minutes, so it is replaced by
    what it raises in the end."""
    from apache_beam.io.filesystem import BeamIOError
    from apache_beam.io.filesystems import FileSystems

    def match(patterns, limits=None):
        raise BeamIOError("Match operation failed", {patterns[0]: TimeoutError("no answer")})

    monkeypatch.setattr(FileSystems, "match", match)
    spec = Tiny(path="gs://ssdp-nowhere/t.parquet")
    sentence = refused(*fit(spec.write(folder)))
    assert "cannot list gs://ssdp-nowhere/t.parquet: the bucket cannot be reached" in sentence
    assert nothing_prepared(folder)


def test_bucket_without_permission(folder, refused, monkeypatch):
    from apache_beam.io.filesystem import BeamIOError
    from apache_beam.io.filesystems import FileSystems

    class ForbiddenError(Exception):
        code = 403

    def match(patterns, limits=None):
        raise BeamIOError("Match operation failed", {patterns[0]: ForbiddenError(SECRET)})

    monkeypatch.setattr(FileSystems, "match", match)
    sentence = refused(*fit(Tiny(path="gs://ssdp-nowhere/*.parquet").write(folder)))
    assert "permission denied; log in with `gcloud auth application-default login`" in sentence


@contextlib.contextmanager
def small_disk(path, monkeypatch):
    """A disk of 64 KiB if this process may mount one, else writes that fail like on a full one."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "ssdp-test", str(path)]
    if shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0:
        try:
            yield lambda: subprocess.run(
                ["mount", "-o", "remount,size=8m", str(path)], check=True, capture_output=True
            )
        finally:
            subprocess.run(["umount", str(path)], check=True)
        return
    really_write = os.write
    used = [0]

    def write(descriptor, data):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith(str(path)):
            if used[0] + len(data) > 65536:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            used[0] += len(data)
        return really_write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        yield patch.undo


def test_disk_full_while_preparing(folder, refused, monkeypatch):
    tiny.write(folder / "t.parquet", tiny.table(20_000))
    with small_disk(folder / "disk", monkeypatch) as free_space:
        prepared = folder / "disk" / "prepared"
        spec = Tiny()
        spec.data += f'\nprepared = "{prepared}"'
        spec_path = spec.write(folder)
        sentence = refused("prepare", spec_path)
        assert "disk full while writing" in sentence
        assert "free space and run again" in sentence
        assert not (prepared / "manifest.json").exists()
        assert not list(prepared.rglob(".tmp-*"))
        free_space()
        assert tiny.run("prepare", spec_path) == 0
        assert tiny.read_json(prepared / "manifest.json")["num_rows"] == 20_000


@pytest.mark.parametrize("side", ["public", "private"])
def test_corrupted_block(folder, refused, side):
    spec_path = Tiny().write(folder)
    assert tiny.run("prepare", spec_path) == 0
    block = folder / "s.prepared" / side / "000000-000002.block"
    content = bytearray(block.read_bytes())
    content[-1] ^= 1
    block.write_bytes(content)
    sentence = refused(*fit(spec_path))
    assert f"{side}/000000-000002.block is damaged: its checksum differs" in sentence
    assert "delete the prepared folder and run again" in sentence


def test_block_that_is_missing(folder, refused):
    spec_path = Tiny().write(folder)
    assert tiny.run("prepare", spec_path) == 0
    (folder / "s.prepared" / "public" / "000000-000001.block").unlink()
    sentence = refused(*fit(spec_path))
    assert "public/000000-000001.block" in sentence


def test_damaged_manifest_is_prepared_again(folder, capsys):
    spec_path = Tiny().write(folder)
    assert tiny.run("prepare", spec_path) == 0
    manifest = folder / "s.prepared" / "manifest.json"
    whole = tiny.read_json(manifest)
    manifest.write_text(manifest.read_text()[:100])
    assert tiny.run("prepare", spec_path) == 0
    assert "manifest.json cannot be used: preparing" in capsys.readouterr().out
    assert tiny.read_json(manifest)["encoder"] == whole["encoder"]


@pytest.mark.parametrize("side", ["public", "private"])
def test_prepared_folder_with_files_of_somebody_else(folder, refused, side):
    (folder / "mine" / side / "letters").mkdir(parents=True)
    (folder / "mine" / side / "letters" / "a.txt").write_text("dear")
    spec = Tiny()
    spec.data += '\nprepared = "mine"'
    sentence = refused("prepare", spec.write(folder))
    assert f"mine/{side}/letters/a.txt is no file of a prepared dataset" in sentence
    assert "choose another folder as [data] prepared" in sentence


def test_out_directory_with_files_in_it(folder, refused):
    sentence = refused("fit", Tiny().write(folder), "--out", "earlier")
    assert "earlier is not empty: choose another --out" in sentence
    assert "ssdp resume earlier" in sentence
    assert nothing_prepared(folder)


def test_out_that_is_a_file(folder, refused):
    sentence = refused("fit", Tiny().write(folder), "--out", "t.parquet")
    assert "t.parquet" in sentence
    assert nothing_prepared(folder)


def test_out_directory_that_is_not_writable(folder, refused, monkeypatch):
    spec_path = Tiny().write(folder)
    (folder / "locked").mkdir(mode=0o500)
    if os.access(folder / "locked", os.W_OK):  # root may write everywhere
        really_make = os.mkdir

        def mkdir(name, mode=0o777):
            if str(name).startswith(str(folder / "locked")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            really_make(name, mode)

        monkeypatch.setattr(os, "mkdir", mkdir)
    sentence = refused("fit", spec_path, "--out", folder / "locked" / "run")
    assert "locked" in sentence
    assert "permission denied" in sentence
    assert nothing_prepared(folder)


def test_a_run_that_failed_on_its_table_goes_on_when_the_table_is_right(folder, refused):
    spec_path = Tiny().write(folder)
    table = tiny.table()
    table["segment"][7] = "z"
    tiny.write(folder / "t.parquet", table)
    # In a process of its own, so that no worker is still writing when the next command starts.
    assert tiny.ssdp(*fit(spec_path), cwd=folder).returncode == 1
    assert "out is not empty" in refused(*fit(spec_path))
    tiny.write(folder / "t.parquet", tiny.table())
    assert tiny.run("resume", "out") == 0
    assert tiny.read_json(folder / "out" / "models.json")["complete"] is True


# The same in a process of its own, where nothing captures what workers log


def test_errors_in_workers_are_one_sentence_too(folder):
    table = tiny.table()
    table["segment"] = table["segment"].astype(object)
    table["segment"][123] = SECRET
    tiny.write(folder / "t.parquet", table)
    result = tiny.ssdp(*fit(Tiny().write(folder)), cwd=folder)
    assert result.returncode == 1
    assert "column 'segment'" in _one_sentence(result.stderr)
    assert SECRET not in result.stdout


def test_a_corrupted_block_is_one_sentence_too(folder):
    spec_path = Tiny().write(folder)
    assert tiny.run("prepare", spec_path) == 0
    block = folder / "s.prepared" / "private" / "000000-000000.block"
    block.write_bytes(block.read_bytes()[:-4])
    result = tiny.ssdp(*fit(spec_path), cwd=folder)
    assert result.returncode == 1
    assert "is damaged" in _one_sentence(result.stderr)
