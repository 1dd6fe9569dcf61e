import errno
import hashlib
import io
import os
import stat
import subprocess
import sys

import pytest

from pipeline import storage
from pipeline.storage import StorageError
from ssdp_core.errors import SsdpError


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def failing(error_number, *, after=0, real=None):
    """A replacement for an os function: works ``after`` times, then fails for good."""
    calls = 0

    def function(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(error_number, os.strerror(error_number))
        return real(*arguments, **keywords)

    return function


def everything_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_local_paths_do_not_import_beam(tmp_path):
    code = (
        "import sys; from pipeline import journal, run_lock, storage\n"
        "path = storage.join(sys.argv[1], 'a', 'b')\n"
        "storage.write_bytes(path, b'1'); storage.append_durably(path, b'2')\n"
        "storage.read_bytes(path); storage.sha256_of(path); storage.list_files(sys.argv[1])\n"
        "storage.delete(path); storage.delete_folder(storage.join(sys.argv[1], 'a'))\n"
        "sys.exit('apache_beam' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (["/runs", "a", "b.json"], "/runs/a/b.json"),
        (["run", "a"], "run/a"),
        (["gs://bucket/run/", "a", "/b.json"], "gs://bucket/run/a/b.json"),
        (["gs://bucket"], "gs://bucket"),
    ],
)
def test_join_uses_the_separator_of_the_folder(parts, joined):
    assert storage.join(*parts) == joined


def test_parent_and_is_remote():
    assert storage.parent("run/journal.jsonl") == "run"
    assert storage.parent("journal.jsonl") == "."
    assert storage.parent("gs://bucket/run/journal.jsonl") == "gs://bucket/run"
    assert storage.is_remote("gs://bucket/run")
    assert not storage.is_remote("/runs/gs:/x")


def test_write_read_list_and_delete(tmp_path):
    deep = tmp_path / "beliefs" / "u1" / "b0"
    storage.write_bytes(deep, b"first")
    storage.write_bytes(deep, b"second")
    storage.write_bytes(tmp_path / "empty", b"")
    assert storage.read_bytes(deep) == b"second"
    assert storage.read_bytes(tmp_path / "empty") == b""
    assert storage.list_files(tmp_path) == ["beliefs/u1/b0", "empty"]
    assert storage.sha256_of(deep) == hashlib.sha256(b"second").hexdigest()
    storage.delete(deep)
    storage.delete(deep)
    assert not storage.exists(deep)
    storage.delete_folder(tmp_path / "beliefs")
    storage.delete_folder(tmp_path / "beliefs")
    assert storage.list_files(tmp_path) == ["empty"]
    assert storage.list_files(tmp_path / "nowhere") == []


def test_a_private_file_is_private_from_its_first_byte(tmp_path, monkeypatch):
    seen = []
    real_write = os.write

    def write(descriptor, data):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    path = tmp_path / "sums" / "pass1"
    storage.write_bytes(path, b"exact", private=True)
    storage.write_bytes(tmp_path / "public", b"exact")
    assert seen[0] == mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700
    assert mode_of(tmp_path / "public") != 0o600
    storage.make_folder(tmp_path / "a" / "b", private=True)
    storage.make_folder(tmp_path / "a" / "b", private=True)
    assert mode_of(tmp_path / "a" / "b") == 0o700
    assert mode_of(tmp_path / "a") != 0o700


def test_a_write_is_synced_before_it_is_renamed_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("sync folder" if is_folder else "sync file")
        real_sync(descriptor)

    def replace(*names):
        events.append("rename")
        real_replace(*names)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    storage.write_bytes(tmp_path / "a", b"data")
    assert events == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "open"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, name):
    path = tmp_path / "state"
    storage.write_bytes(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(errno.ENOSPC))
        with pytest.raises(StorageError) as caught:
            storage.write_bytes(path, b"new")
    assert str(caught.value) == f"disk full while writing {path}: free space and run again"
    assert isinstance(caught.value, SsdpError)
    assert path.read_bytes() == b"old"
    assert everything_in(tmp_path) == ["state"]


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path, monkeypatch):
    real_write = os.write

    def half(descriptor, data):
        return real_write(descriptor, bytes(data)[: max(1, len(data) // 2)])

    monkeypatch.setattr(os, "write", failing(errno.ENOSPC, after=2, real=half))
    with pytest.raises(StorageError, match="disk full"):
        storage.write_bytes(tmp_path / "state", b"0123456789")
    assert everything_in(tmp_path) == []
    monkeypatch.setattr(os, "write", half)
    storage.write_bytes(tmp_path / "state", b"0123456789")
    assert (tmp_path / "state").read_bytes() == b"0123456789"


def test_append_adds_to_an_existing_file_only(tmp_path):
    path = tmp_path / "journal"
    with pytest.raises(StorageError, match="does not exist"):
        storage.append_durably(path, b"x")
    path.write_bytes(b"a")
    storage.append_durably(path, b"bc", expected_size=1)
    assert path.read_bytes() == b"abc"
    with pytest.raises(StorageError, match="must be 1 bytes long but is 3: another process"):
        storage.append_durably(path, b"d", expected_size=1)
    assert path.read_bytes() == b"abc"
    storage.truncate_durably(path, 1)
    assert path.read_bytes() == b"a"
    with pytest.raises(ValueError, match="must be local"):
        storage.append_durably("gs://bucket/journal", b"x")


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failed_append_restores_the_file(tmp_path, monkeypatch, name):
    path = tmp_path / "journal"
    path.write_bytes(b"old")
    real_write = os.write
    with monkeypatch.context() as patch:
        if name == "write":
            half = lambda descriptor, data: real_write(descriptor, bytes(data)[:2])  # noqa: E731
            patch.setattr(os, name, failing(errno.EDQUOT, after=1, real=half))
        else:
            patch.setattr(os, name, failing(errno.ENOSPC))
        with pytest.raises(StorageError, match=r"disk full while writing .*journal"):
            storage.append_durably(path, b"new")
    assert path.read_bytes() == b"old"


def test_temporary_files_are_hidden_and_removed(tmp_path):
    leftovers = [tmp_path / ".tmp-1", tmp_path / "beliefs" / ".tmp-2"]
    storage.write_bytes(tmp_path / "beliefs" / "b0", b"kept")
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    assert storage.list_files(tmp_path) == ["beliefs/b0"]
    assert storage.remove_temporary_files(tmp_path) == 2
    assert everything_in(tmp_path) == ["beliefs", "beliefs/b0"]
    assert storage.remove_temporary_files(tmp_path) == 0
    assert storage.remove_temporary_files(tmp_path / "nowhere") == 0


def test_errors_name_the_path_and_the_fix(tmp_path, monkeypatch):
    missing = tmp_path / "nowhere"
    with pytest.raises(StorageError, match=f"cannot read {missing}: it does not exist; check the"):
        storage.read_bytes(missing)
    with pytest.raises(StorageError, match=f"cannot read {missing}"):
        storage.sha256_of(missing)
    with pytest.raises(StorageError, match="must be a file, but it is a folder"):
        storage.read_bytes(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="there is a file in its place"):
        storage.write_bytes(tmp_path / "file" / "b0", b"")
    with pytest.raises(StorageError, match="there is a file in its place"):
        storage.make_folder(tmp_path / "file")
    for number, message in [(errno.EACCES, "permission denied; run as"), (errno.EIO, "check the")]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing(number))
            with pytest.raises(StorageError, match=f"cannot write .*x: .*{message}"):
                storage.write_bytes(tmp_path / "x", b"")


# A bucket, replaced by a Beam file system that keeps objects in memory.


@pytest.fixture(scope="module")
def memory_file_system():
    from apache_beam.io import filesystem

    class MemoryFileSystem(filesystem.FileSystem):
        objects = {}  # noqa: RUF012
        error = None

        @classmethod
        def scheme(cls):
            return "memory"

        def join(self, basepath, *paths):
            return "/".join([basepath, *paths])

        def split(self, path):
            return tuple(path.rsplit("/", 1))

        def mkdirs(self, path):
            raise AssertionError("buckets have no folders")

        def has_dirs(self):
            return False

        def _list(self, dir_or_prefix):
            for path, data in list(self.objects.items()):
                if path.startswith(dir_or_prefix):
                    yield filesystem.FileMetadata(path, len(data))

        def create(self, path, mime_type="", compression_type=""):
            assert compression_type == "uncompressed"
            if self.error:
                raise self.error
            objects = self.objects

            class Writer(io.BytesIO):
                def close(self):
                    if not self.closed:
                        objects[path] = self.getvalue()
                    super().close()

            return Writer()

        def open(self, path, mime_type="", compression_type=""):
            assert compression_type == "uncompressed"
            if self.error:
                raise self.error
            if path not in self.objects:
                raise FileNotFoundError(path)
            return io.BytesIO(self.objects[path])

        def exists(self, path):
            if self.error:
                raise self.error
            return path in self.objects

        def delete(self, paths):
            for path in paths:
                for entry in self.match([path])[0].metadata_list:
                    del self.objects[entry.path]

        def metadata(self, path):
            return filesystem.FileMetadata(path, len(self.objects[path]))

        def copy(self, source_file_names, destination_file_names):
            raise AssertionError("not used")

        rename = size = last_updated = checksum = copy

    return MemoryFileSystem


@pytest.fixture
def bucket(memory_file_system):
    memory_file_system.objects.clear()
    memory_file_system.error = None
    return memory_file_system


def test_a_bucket_behaves_like_a_folder(bucket):
    run = "memory://bucket/run"
    path = storage.join(run, "beliefs", "b0.gz")
    storage.make_folder(run, private=True)
    storage.write_bytes(path, b"first", private=True)
    storage.write_bytes(path, b"second")
    storage.write_bytes("memory://bucket/run2/other", b"")
    assert storage.read_bytes(path) == b"second"
    assert storage.sha256_of(path) == hashlib.sha256(b"second").hexdigest()
    assert storage.list_files(run) == ["beliefs/b0.gz"]
    assert storage.exists(path)
    assert storage.remove_temporary_files(run) == 0
    storage.delete(path)
    storage.delete(path)
    assert not storage.exists(path)
    storage.write_bytes(path, b"x")
    storage.delete_folder(run)
    storage.delete_folder(run)
    assert list(bucket.objects) == ["memory://bucket/run2/other"]


def test_a_bucket_path_is_never_a_pattern(bucket):
    storage.write_bytes("memory://bucket/a", b"")
    for use in [storage.delete, storage.delete_folder, storage.read_bytes, storage.exists]:
        with pytest.raises(StorageError, match=r"must not contain \*, \? or \["):
            use("memory://bucket/*")
    assert list(bucket.objects) == ["memory://bucket/a"]


def test_bucket_errors_are_one_sentence(bucket):
    from apache_beam.io.filesystem import BeamIOError
    from google.api_core import exceptions
    from google.auth.exceptions import DefaultCredentialsError

    path = "memory://bucket/a"
    with pytest.raises(StorageError, match=f"cannot read {path}: it does not exist"):
        storage.read_bytes(path)
    for error, message in [
        (exceptions.NotFound("bucket"), "it does not exist; check the bucket"),
        (exceptions.Forbidden("role"), "permission denied; log in with `gcloud auth"),
        (DefaultCredentialsError("none"), "permission denied; log in"),
        (BeamIOError("list", {path: exceptions.Forbidden("role")}), "permission denied"),
        (exceptions.RetryError("timeout", None), r"cannot be reached \(RetryError\); check its"),
        (ConnectionError("dns"), r"cannot be reached \(ConnectionError\)"),
    ]:
        bucket.error = error
        for use in [storage.read_bytes, storage.exists, lambda p: storage.write_bytes(p, b"")]:
            with pytest.raises(StorageError, match=message) as caught:
                use(path)
            assert path in str(caught.value)
    with pytest.raises(StorageError, match="must be a local path or start with gs://"):
        storage.read_bytes("nosuch://bucket/a")
