import dataclasses
import errno
import hashlib
import json
import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline import journal as journal_module
from pipeline import line_log
from pipeline.journal import Journal, JournalCorruptError, JournalMismatchError
from pipeline.storage import StorageError
from ssdp_core.accounting import Charge
from ssdp_core.errors import TranscriptMismatchError
from ssdp_core.transcript import Release

HEADER = {"run_id": "r1", "spec_digest": "aa", "dataset_digest": "bb", "seeded": False}


def release(sequence, **changes):
    charge = Charge(mechanism="gaussian_measurement", rho=0.1 + sequence, label=f"round {sequence}")
    values = {"mean": np.array([0.1, -0.0, 5e-324]), "noise_stddev": 0.25, "gap": None}
    made = Release(
        sequence=sequence, kind="measure", label=f"round {sequence}", charge=charge, values=values
    )
    return dataclasses.replace(made, **changes)


def bits(value):
    """A form in which two values are equal if and only if they are the same to the last bit."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, float):
        return struct.pack("<d", value)
    return (type(value), value)


def frozen(release):
    charge = release.charge
    return (
        release.sequence,
        release.kind,
        release.label,
        None if charge is None else (charge.mechanism, bits(charge.rho), charge.label),
        [(name, bits(value)) for name, value in release.values.items()],
    )


def contents(journal):
    return [frozen(release) for release in journal.releases()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.jsonl"


@pytest.fixture
def small(path):
    """A journal of header, release, note, release, release; returns its path."""
    with Journal.create(path, HEADER) as journal:
        journal.append(release(0))
        journal.note("state", {"version": 1})
        journal.append(release(1, kind="ask", charge=None, values={"above": True}))
        journal.append(release(2))
    return path


# What is written is what is read.

any_float = st.floats(allow_nan=False, width=64) | st.sampled_from(
    [
        math.inf,
        -math.inf,
        -0.0,
        0.0,
        5e-324,
        -2.2e-308,
        0.1,
        1.7976931348623157e308,
        1e22,
        2.0**-1074,
    ]
)
any_array = hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, min_side=0), elements=any_float)
any_value = any_float | any_array | st.booleans() | st.none() | st.integers() | st.text()
any_name = st.text(max_size=9).filter(lambda name: name not in journal_module._RESERVED_KEYS)
any_charge = st.none() | st.builds(
    Charge,
    mechanism=st.text(min_size=1),
    rho=st.floats(min_value=2.3e-308, allow_nan=False) | st.just(math.inf),
    label=st.text(),
)


@given(
    st.lists(st.tuples(st.text(), st.text(), any_charge, st.dictionaries(any_name, any_value))),
    st.dictionaries(any_name, any_value),
)
def test_releases_come_back_to_the_last_bit(tmp_path_factory, drawn, payload):
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    releases = [
        Release(sequence=i, kind=f"k{kind}", label=label, charge=charge, values=values)
        for i, (kind, label, charge, values) in enumerate(drawn)
    ]
    written = Journal.create(path, HEADER)
    for each in releases:
        written.append(each)
    written.note("state", payload)
    expected = [frozen(each) for each in releases]
    assert contents(written) == expected
    read = Journal.open(path, HEADER)
    assert contents(read) == expected
    assert read.charges() == [each.charge for each in releases if each.charge is not None]
    (note,) = read.notes()
    assert [(name, bits(value)) for name, value in note.payload.items()] == [
        (name, bits(value)) for name, value in payload.items()
    ]
    assert note.num_releases == len(releases)


def test_the_file_is_strict_ascii_json_with_a_chain_of_checks(small):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    infinite = Charge(mechanism="gaussian", rho=math.inf, label="Prüfung")
    with Journal.open(small) as journal:
        journal.append(release(3, charge=infinite, values={"x": -math.inf, "y": np.float32(0.5)}))
    lines = small.read_bytes().decode("ascii").splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [record["sequence"] for record in records] == [None, 0, None, 1, 2, 3]
    assert records[0] == {
        **{"sequence": None, "kind": "header", "format": 1},
        **HEADER,
        "check": records[0]["check"],
    }
    assert records[2]["payload"] == {"version": 1}
    assert records[5]["charge"]["rho"] == {"float": "inf"}
    assert records[5]["values"] == {"x": {"float": "-inf"}, "y": 0.5}
    check = "0" * 16
    for line, record in zip(lines, records, strict=True):
        content, ending = line.rsplit(',"check":', 1)
        check = hashlib.sha256((check + content).encode()).hexdigest()[:16]
        assert ending == f'"{check}"}}'
        assert record["check"] == check


def test_an_open_journal_continues(small):
    with Journal.open(small, HEADER) as journal:
        assert not journal.recovered_torn_line
        assert len(journal) == 3
        assert journal.header == HEADER
        assert journal.recorded(3) is None
        assert journal.recorded(-1) is None
        journal.append(release(3))
        journal.note("finished", {"seconds": 1.5, "models": ["a", {"norm": math.inf}]})
    with Journal.open(small) as journal:
        assert contents(journal)[3] == frozen(release(3))
        assert [note.kind for note in journal.notes()] == ["state", "finished"]
        (note,) = journal.notes("finished")
        assert note.payload == {"seconds": 1.5, "models": ["a", {"norm": math.inf}]}
        assert note.num_releases == 4


def test_a_reader_cannot_change_what_is_recorded(small):
    journal = Journal.open(small)
    journal.recorded(0).values["mean"][:] = 7.0
    assert frozen(journal.recorded(0)) == frozen(release(0))


def test_numbers_come_without_gaps(small):
    journal = Journal.open(small)
    before = small.read_bytes()
    for wrong in (2, 4):
        with pytest.raises(ValueError, match=f"release number {wrong} does not follow 2"):
            journal.append(release(wrong))
    assert small.read_bytes() == before
    journal.append(release(3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": math.nan}, "mean must not be NaN"),
        ({"mean": np.array([1.0, math.nan])}, "mean must not contain NaN"),
        ({"mean": np.array([1, 2])}, "mean must be a float64 array, got dtype int64"),
        ({"mean": np.array([1.0], dtype=np.float32)}, "float64 array, got dtype float32"),
        ({"mean": object()}, "mean must be a number, string or float64 array, got object"),
        ({"check": "0" * 16}, "must not have the key 'check'"),
        ({"mean": {"float64": ""}}, "mean must not have the key 'float64'"),
        ({3: 1.0}, "a key of values must be a string"),
    ],
)
def test_values_that_cannot_be_recorded_are_refused_before_anything_is_written(
    small, values, message
):
    journal = Journal.open(small)
    before = small.read_bytes()
    with pytest.raises((ValueError, TypeError), match=message):
        journal.append(release(3, values=values))
    assert small.read_bytes() == before
    journal.append(release(3))  # a refused value leaves the journal usable


def test_reserved_names_are_refused(path):
    for name in ("kind", "format", "sequence", "check", "float64"):
        with pytest.raises(ValueError, match=f"header must not (contain|have the key) '{name}'"):
            Journal.create(path, {name: 1})
    assert not path.exists()
    journal = Journal.create(path, HEADER)
    for write in (
        lambda: journal.note("header", {}),
        lambda: journal.append(release(0, kind="header")),
    ):
        with pytest.raises(ValueError, match="kind must not be 'header'"):
            write()


def test_a_journal_is_never_overwritten(small):
    before = small.read_bytes()
    with pytest.raises(StorageError, match="exists already: continue that run with `ssdp resume`"):
        Journal.create(small, HEADER)
    assert small.read_bytes() == before


def test_a_missing_journal_is_named(path):
    with pytest.raises(StorageError, match=r"journal\.jsonl: it does not exist"):
        Journal.open(path)


# Long arrays have a file of their own.


def long_array(seed=0):
    return np.random.default_rng(seed).standard_normal((2, 2049))


def test_long_arrays_are_files_written_before_their_line(path, monkeypatch):
    journal = Journal.create(path, HEADER)
    events = []
    real_replace, real_write = os.replace, os.write
    monkeypatch.setattr(
        os, "replace", lambda *names: (events.append(names[1]), real_replace(*names))
    )
    values = {"a": long_array(0), "b": long_array(1), "short": np.zeros(4096)}

    def write(descriptor, data):
        events.append("line" if bytes(data[:12]) == b'{"sequence":' else "data")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    journal.append(release(0, values=values))
    folder = path.parent / "releases"
    names = ["00000000-0.f64", "00000000-1.f64"]
    assert events == ["data", f"{folder}/{names[0]}", "data", f"{folder}/{names[1]}", "line"]
    assert sorted(os.listdir(folder)) == names
    assert (folder / names[0]).read_bytes() == values["a"].tobytes()
    read = Journal.open(path)
    assert contents(read) == [frozen(release(0, values=values))]


def test_a_changed_or_missing_array_file_is_damage(path):
    journal = Journal.create(path, HEADER)
    journal.append(release(0, values={"mean": long_array()}))
    file = path.parent / "releases" / "00000000-0.f64"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(JournalCorruptError, match=r"line 2 of .* is damaged: .*00000000-0\.f64"):
        Journal.open(path)
    with pytest.raises(JournalCorruptError, match="was changed"):
        journal.recorded(0)
    file.unlink()
    with pytest.raises(JournalCorruptError, match="missing"):
        Journal.open(path)


def test_an_array_that_was_drawn_but_not_recorded_is_deleted(path):
    journal = Journal.create(path, HEADER)
    journal.append(release(0, values={"mean": long_array()}))
    size = path.stat().st_size
    journal.append(release(1, values={"mean": long_array(1)}))
    os.truncate(path, size + 10)
    folder = path.parent / "releases"
    assert len(os.listdir(folder)) == 2
    Journal.open(path, read_only=True)
    assert len(os.listdir(folder)) == 2
    journal = Journal.open(path)
    assert os.listdir(folder) == ["00000000-0.f64"]
    journal.append(release(1, values={"mean": long_array(2)}))
    assert contents(Journal.open(path))[1] == frozen(release(1, values={"mean": long_array(2)}))


# Durability.


def test_append_and_note_return_after_one_write_and_a_sync_of_the_journal(path, monkeypatch):
    journal = Journal.create(path, HEADER)
    inode = path.stat().st_ino
    events = []
    real_write, real_sync = os.write, os.fsync

    def write(descriptor, data):
        events.append(("write", os.fstat(descriptor).st_ino, bytes(data)))
        return real_write(descriptor, data)

    def sync(descriptor):
        events.append(("sync", os.fstat(descriptor).st_ino, path.read_bytes()))
        real_sync(descriptor)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", sync)
    for record in (lambda: journal.append(release(0)), lambda: journal.note("state", {})):
        before = path.read_bytes()
        events.clear()
        record()
        (_, written_to, line), (_, synced, at_sync) = events
        assert [event[0] for event in events] == ["write", "sync"]
        assert written_to == synced == inode
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert at_sync == path.read_bytes() == before + line


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failed_append_stops_the_journal_and_loses_nothing(small, monkeypatch, name):
    journal = Journal.open(small)
    before = small.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(StorageError, match=r"disk full while writing .*journal\.jsonl"):
            journal.append(release(3))
    assert small.read_bytes() == before
    assert journal.recorded(3) is None
    with pytest.raises(StorageError, match="takes no records"):
        journal.append(release(3))
    with pytest.raises(StorageError, match="takes no records"):
        journal.note("state", {})
    again = Journal.open(small)
    assert not again.recovered_torn_line
    again.append(release(3))


_APPEND_FOREVER = """
import itertools, sys
from pipeline.journal import Journal
from ssdp_core.accounting import Charge
from ssdp_core.transcript import Release
journal = Journal.create(sys.argv[1], {})
for i in itertools.count():
    charge = Charge(mechanism="m", rho=0.5, label=str(i))
    values = {"x": float(i)}
    journal.append(Release(sequence=i, kind="k", label=str(i), charge=charge, values=values))
    print(i, flush=True)
"""


def test_a_killed_process_has_recorded_every_release_it_used(tmp_path):
    path = tmp_path / "journal.jsonl"
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _APPEND_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(5 + attempt):
            process.stdout.readline()
        process.kill()
        said = process.communicate()[0].split()
        with Journal.open(path) as journal:
            used = int(said[-1]) + 1 if said else 5 + attempt
            assert used <= len(journal) <= used + 1
            labels = [str(i) for i in range(len(journal))]
            assert [charge.label for charge in journal.charges()] == labels
        path.unlink()


def test_a_second_writer_is_noticed(small):
    first, second = Journal.open(small), Journal.open(small)
    first.append(release(3))
    with pytest.raises(StorageError, match="another process changed it"):
        second.append(release(3))
    assert len(Journal.open(small)) == 4


def test_a_closed_or_read_only_journal_refuses_records(small):
    with Journal.open(small) as journal:
        pass
    for refusing in (journal, Journal.open(small, read_only=True)):
        with pytest.raises(StorageError, match="takes no records"):
            refusing.append(release(3))
        assert frozen(refusing.recorded(2)) == frozen(release(2))


# Damage.


def test_truncation_at_every_byte_gives_a_prefix_or_an_error(small):
    whole = small.read_bytes()
    everything = contents(Journal.open(small, HEADER))
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    releases_before = {ends[0]: 0, ends[1]: 1, ends[2]: 1, ends[3]: 2, ends[4]: 3}
    for size in range(len(whole) + 1):
        small.write_bytes(whole[:size])
        if size < ends[0]:  # the header is written atomically, so a crash cannot tear it
            with pytest.raises(JournalCorruptError, match="line 1 of"):
                Journal.open(small, HEADER)
            assert small.read_bytes() == whole[:size]
            continue
        kept = max(end for end in ends if end <= size)
        reader = Journal.open(small, HEADER, read_only=True)
        assert small.read_bytes() == whole[:size]
        journal = Journal.open(small, HEADER)
        for opened in (reader, journal):
            assert contents(opened) == everything[: releases_before[kept]]
            assert opened.recovered_torn_line == (size != kept)
        assert small.read_bytes() == whole[:kept]
        journal.append(release(len(journal)))
        assert not Journal.open(small, HEADER).recovered_torn_line


def test_a_flipped_byte_anywhere_is_an_error_or_drops_the_last_line(small):
    whole = small.read_bytes()
    everything = contents(Journal.open(small))
    start_of_last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for position in range(len(whole)):
        for flip in (0x01, 0x20, 0x80, whole[position] ^ ord("\n"), whole[position]):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            if damaged == whole:
                continue
            small.write_bytes(damaged)
            if position < start_of_last:
                with pytest.raises(JournalCorruptError):
                    Journal.open(small)
                assert small.read_bytes() == damaged
                continue
            try:
                journal = Journal.open(small)
            except JournalCorruptError:
                continue
            assert journal.recovered_torn_line
            assert contents(journal) == everything[:2]


def test_a_missing_repeated_or_moved_line_is_an_error(small):
    lines = small.read_bytes().splitlines(keepends=True)
    for i, line in enumerate(lines):
        damaged = [[*lines[: i + 1], *lines[i:]], [*lines, line]]
        if i < len(lines) - 1:  # nobody can see that the last line is missing
            damaged.append(lines[:i] + lines[i + 1 :])
        for j in range(i + 1, len(lines)):
            swapped = list(lines)
            swapped[i], swapped[j] = lines[j], line
            damaged.append(swapped)
        for case in damaged:
            small.write_bytes(b"".join(case))
            with pytest.raises(JournalCorruptError):
                Journal.open(small)
            assert small.read_bytes() == b"".join(case)


@pytest.mark.parametrize("cut", [1, 40, 100])
def test_two_lines_that_became_one_are_not_taken_for_a_torn_line(small, cut):
    whole = small.read_bytes()
    middle = whole.rindex(b"\n", 0, len(whole) - 1)
    merged = whole[: middle - cut + 1] + whole[middle + 1 :]
    for damaged in (merged, merged[:-1] if cut == 1 else merged):
        small.write_bytes(damaged)
        with pytest.raises(JournalCorruptError, match="line 4 of"):
            Journal.open(small)


def test_a_whole_last_line_that_was_edited_is_an_error(small):
    small.write_bytes(small.read_bytes().replace(b'"rho":2.1', b'"rho":1.1'))
    with pytest.raises(JournalCorruptError, match=r"line 5 of .*content does not fit its check"):
        Journal.open(small)


def test_zeros_left_by_a_crash_are_dropped(small):
    whole = small.read_bytes()
    for torn in (b"\0" * 50, b'{"sequence":3' + b"\0" * 50 + b"}\n"):
        small.write_bytes(whole + torn)
        journal = Journal.open(small)
        assert journal.recovered_torn_line
        assert len(journal) == 3
        assert small.read_bytes() == whole
    small.write_bytes(whole[:-1] + b"\0")
    assert len(Journal.open(small)) == 2


def rewritten(path, change):
    """Rewrites records with valid checks, as only another program could have written them."""
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(records)
    check, lines = "0" * 16, []
    for record in records:
        record.pop("check", None)
        line, check = journal_module._line(record, check)
        lines.append(line)
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records[-1].update(sequence=7),
        lambda records: records[-1].update(sequence=True),
        lambda records: records[-1].pop("values"),
        lambda records: records[-1]["charge"].update(rho=-1.0),
        lambda records: records[-1].update(kind="header"),
        lambda records: records[2].update(payload=[]),
        lambda records: records.pop(0),
    ],
)
def test_a_malformed_record_with_a_valid_check_is_an_error(small, change):
    rewritten(small, change)
    with pytest.raises(JournalCorruptError, match="not a record of this format"):
        Journal.open(small)


def test_another_format_is_refused(small):
    rewritten(small, lambda records: records[0].update(format=2))
    with pytest.raises(StorageError, match="has journal format 2"):
        Journal.open(small)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"spec_digest": "cc"}, "another spec: spec_digest is 'aa' in the journal but 'cc' now"),
        ({"dataset_digest": "cc"}, "belongs to another dataset: .* start a new run in another"),
        ({"run_id": "r2"}, "belongs to another run: run_id is 'r1'"),
        ({"seeded": 0}, "belongs to another run: seeded is False in the journal but 0 now"),
        ({"mode": "paper"}, "mode is missing in the journal"),
    ],
)
def test_a_journal_of_another_run_is_refused_and_left_alone(small, expected, message):
    torn = small.read_bytes()[:-5]
    small.write_bytes(torn)
    with pytest.raises(JournalMismatchError, match=message) as caught:
        Journal.open(small, {**HEADER, **expected})
    assert isinstance(caught.value, TranscriptMismatchError)
    assert small.read_bytes() == torn


# Where files cannot be appended to.


def test_one_object_per_line(tmp_path, monkeypatch):
    monkeypatch.setattr(line_log, "open_log", lambda path: line_log._ObjectLineLog(str(path)))
    path = tmp_path / "journal.jsonl"
    with pytest.raises(StorageError, match=r"cannot read .* but there are 0; check the path"):
        Journal.open(path)
    with Journal.create(path, HEADER) as journal:
        journal.append(release(0))
        journal.note("state", {})
        assert not path.exists()
    folder = tmp_path / "journal"
    names = ["00000000.json", "00000001.json", "00000002.json"]
    assert sorted(os.listdir(folder)) == names
    assert path.read_bytes() == b"".join((folder / name).read_bytes() for name in names)
    with pytest.raises(StorageError, match="exists already"):
        Journal.create(path, HEADER)

    first, second = Journal.open(path, HEADER), Journal.open(path, HEADER)
    first.append(release(1))
    with pytest.raises(StorageError, match="another process is working on this run"):
        second.append(release(1))
    assert contents(Journal.open(path)) == [frozen(release(0)), frozen(release(1))]

    last = folder / "00000003.json"
    last.write_bytes(last.read_bytes()[:-4])
    assert Journal.open(path).recovered_torn_line
    assert not last.exists()
    (folder / "00000001.json").unlink()
    with pytest.raises(StorageError, match="without gaps, but there are 2"):
        Journal.open(path)
