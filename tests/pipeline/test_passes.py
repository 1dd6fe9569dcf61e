"""Every pass transform alone, with TestPipeline, and the whole engine against the in-memory one."""

import stat
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import dataset, passes, storage
from pipeline.beam_engine import BeamEngine
from pipeline.blocks import BlockError, pack, pack_public, unpack_public
from pipeline.dataset import BlockRecord, Manifest
from pipeline.launch import Launcher
from ssdp_core.accounting import ZcdpFilter
from ssdp_core.curator import Curator
from ssdp_core.domain import PrivateFeatures
from ssdp_core.engine import InMemoryEngine, evaluate_block
from ssdp_core.errors import OutOfUpdatesError
from ssdp_core.exact_sums import Lattice
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows
from ssdp_core.losses import HuberLoss, LogisticLoss
from ssdp_core.noise import NoiseSource
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.problems import LinearErm, Problem, PublicTarget
from ssdp_core.pvmw import PrivateVectorAnswerer

N, D, K = 200, 4, 3
SALT = b"s" * 32


def make_rows(seed=0, sparse=False):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(N, D)) * 0.4).astype(np.float32)
    if sparse:
        values[rng.random((N, D)) < 0.5] = 0
        indptr = np.concatenate([[0], np.cumsum((values != 0).sum(axis=1))])
        row, column = np.nonzero(values)
        features = CsrFeatures(values[row, column], column, indptr, D)
    else:
        features = DenseFeatures(values)
    rows = PublicRows(
        num_rows=N,
        features=features,
        columns={"t": rng.integers(0, 2, N).astype(float), "v": rng.normal(size=N)},
    )
    return rows, rng.integers(0, K, N).astype(np.int32)


def store(folder, rows, codes, block_rows):
    """A prepared folder written by hand."""
    records = []
    storage.write_bytes(dataset.salt_path(folder), SALT, private=True)
    for number, start in enumerate(range(0, N, block_rows)):
        stop = min(start + block_rows, N)
        part = rows.rows(start, stop)
        if isinstance(part.features, CsrFeatures):
            part = PublicRows(
                num_rows=part.num_rows,
                features=part.features.take(np.arange(part.num_rows)),
                columns=part.columns,
            )
        public, private = pack_public(part), pack({"codes": codes[start:stop]})
        name = f"000000-{number:06d}"
        storage.write_bytes(dataset.public_path(folder, name), public)
        storage.write_bytes(dataset.private_path(folder, name), private, private=True)
        records.append(
            BlockRecord(
                name=name,
                num_rows=stop - start,
                public_sha256=dataset.sha256(public),
                private_hash=dataset.keyed_hash(SALT, private),
            )
        )
    return Manifest(
        digest="d",
        num_rows=N,
        num_codes=K,
        block_rows=block_rows,
        num_features=D,
        feature_norm=float(np.sqrt(rows.features.squared_norms().max())),
        target_bounds={"t": 1.0},
        blocks=tuple(records),
        encoder="{}",
    )


def make_erms(rows):
    private = PrivateFeatures.from_matrix(np.eye(K) * 0.7)
    problems = [
        Problem(name="a", loss=LogisticLoss(), target=PublicTarget(column="t"), radius=3.0, l2=0.1),
        Problem(name="b", loss=HuberLoss(), target=PublicTarget(column="v"), radius=3.0, l2=0.1),
    ]
    return [LinearErm.from_rows(problem, rows, private) for problem in problems]


@pytest.fixture
def prepared(tmp_path):
    rows, codes = make_rows()
    folder = str(tmp_path / "prepared")
    manifest = store(folder, rows, codes, block_rows=64)
    rng = np.random.default_rng(1)
    erms = make_erms(rows)
    queries = tuple(erm.query(rng.normal(size=erm.num_weights) * 0.3) for erm in erms)
    request = passes.PassRequest(
        num_codes=K,
        belief_folder=str(tmp_path / "beliefs"),
        queries=queries,
        lattices=tuple(Lattice.for_sum(N, q.norm_bound) for q in queries),
    )
    return rows, codes, folder, manifest, request, str(tmp_path / "request")


def check_transform(elements, transform, check):
    """Runs a transform alone; ``check`` gets the one element it ends with."""

    def matcher(actual):
        (element,) = actual
        check(element)

    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        assert_that(pipeline | beam.Create(elements) | transform, matcher)


def same_units(expected):
    def check(units):
        assert len(units) == len(expected)
        for one, two in zip(units, expected, strict=True):
            assert (one.data_units is None) == (two.data_units is None)
            if one.data_units is not None:
                assert np.array_equal(one.data_units, two.data_units)
            assert np.array_equal(one.belief_units, two.belief_units)
            assert one.row_sensitivity == two.row_sensitivity

    return check


def expected_units(rows, codes, request, beliefs, block_rows=64):
    total = None
    for start in range(0, N, block_rows):
        stop = min(start + block_rows, N)
        part = evaluate_block(
            request.queries,
            request.lattices,
            rows.rows(start, stop),
            beliefs[start:stop],
            None if codes is None else codes[start:stop],
        )
        if total is None:
            total = part
        else:
            for into, unit in zip(total, part, strict=True):
                into.add(unit)
    return total


UNIFORM = np.full((N, K), 1 / K, dtype=np.float32)


def test_evaluate_privately(prepared):
    rows, codes, folder, manifest, request, path = prepared
    passes.write_request(path, request)
    blocks = passes.private_blocks(folder, manifest.blocks)
    expected = expected_units(rows, codes, request, UNIFORM)
    check_transform(blocks, passes.EvaluatePrivately(path), same_units(expected))


def test_evaluate_publicly_sees_no_codes(prepared):
    rows, _, folder, manifest, request, path = prepared
    passes.write_request(path, request)
    storage.delete_folder(storage.join(folder, "private"))
    blocks = passes.public_blocks(folder, manifest.blocks)
    assert not any("private" in str(vars(block)) for block in blocks)
    expected = expected_units(rows, None, request, UNIFORM)
    check_transform(blocks, passes.EvaluatePublicly(path), same_units(expected))


def test_update_is_applied_written_and_evaluated_in_one_pass(prepared):
    rows, codes, folder, manifest, request, path = prepared
    engine = InMemoryEngine(rows, codes, num_codes=K, block_rows=64)
    query = request.queries[0]
    direction = np.random.default_rng(2).normal(size=query.dimension)
    update = passes.Update(query, direction, 0.7, 3.0)
    request = passes.PassRequest(**{**vars(request), "update": update})
    passes.write_request(path, request)
    engine.update(query, direction, step=0.7, truncation=3.0)
    expected = expected_units(rows, None, request, engine.beliefs)
    blocks = passes.public_blocks(folder, manifest.blocks)
    check_transform(blocks, passes.EvaluatePublicly(path), same_units(expected))
    stored = [
        dataset.load_file(
            passes.belief_path(request.belief_folder, 1, block.name),
            lambda data: passes.unpack(data)[0]["beliefs"],
        )
        for block in blocks
    ]
    assert np.array_equal(np.concatenate(stored), engine.beliefs)


def test_log_partition_grid(prepared):
    rows, codes, folder, manifest, request, path = prepared
    query = request.queries[0]
    rng = np.random.default_rng(3)
    grid = passes.Grid(query, rng.normal(size=query.dimension), np.array([0.1, 1.0, 5.0]), 3.0)
    passes.write_request(path, passes.PassRequest(**{**vars(request), "grid": grid}))
    engine = InMemoryEngine(rows, codes, num_codes=K, block_rows=64)
    expected = engine.log_partition(query, grid.direction, grid.steps, truncation=3.0)

    def check(parts):
        assert np.array_equal(sum(parts[name] for name in sorted(parts)) / N, expected)

    check_transform(passes.public_blocks(folder, manifest.blocks), passes.LogPartition(path), check)


@pytest.mark.parametrize("sparse", [False, True])
def test_row_sample_takes_every_nth_row_of_the_table(tmp_path, sparse):
    rows, codes = make_rows(sparse=sparse)
    manifest = store(str(tmp_path / "p"), rows, codes, block_rows=64)
    engine = BeamEngine(Launcher(), manifest, str(tmp_path / "p"), str(tmp_path / "w"), run_id="r")
    parts, beliefs = engine.sample_rows(7)
    chosen = np.arange(0, N, 7)
    assert sum(part.num_rows for part in parts) == chosen.size == beliefs.shape[0]
    weights = np.arange(1.0, D + 1)
    margins = np.concatenate([part.features.margins(weights) for part in parts])
    assert np.allclose(margins, rows.features.margins(weights)[chosen])
    assert np.array_equal(
        np.concatenate([part.columns["t"] for part in parts]), rows.columns["t"][chosen]
    )


def test_blocks_round_trip(tmp_path):
    for sparse in (False, True):
        rows, _ = make_rows(sparse=sparse)
        again = unpack_public(pack_public(rows))
        weights = np.arange(1.0, D + 1)
        assert np.array_equal(again.features.margins(weights), rows.features.margins(weights))
        assert np.array_equal(again.columns["v"], rows.columns["v"])


def test_unpacked_arrays_are_aligned_whatever_the_header(tmp_path):
    for length in range(1, 70, 7):
        arrays = {"x" * length: np.arange(5.0), "y": np.arange(3, dtype=np.int32)}
        again, facts = passes.unpack(pack(arrays, note="n" * length))
        assert facts == {"note": "n" * length}
        for name, array in arrays.items():
            assert np.array_equal(again[name], array)
            assert again[name].ctypes.data % 64 == 0
            assert again[name].flags.writeable


def run_answerer(engine, rows, num_rounds=4):
    """Algorithm 2 on an engine: the transcript and where the beliefs have gone."""
    curator = Curator(engine, budget=ZcdpFilter(50.0), noise=NoiseSource.seeded(5))
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.02, max_updates=6, eta=0.8)
    answerer = PrivateVectorAnswerer(engine, curator, parameters)
    erms = make_erms(rows)
    rng = np.random.default_rng(0)
    answers = []
    try:
        for _ in range(num_rounds):
            queries = [erm.query(rng.normal(size=erm.num_weights) * 0.3) for erm in erms]
            answers += [answer.value for answer in answerer.answer_all(queries)]
    except OutOfUpdatesError:
        pass
    (last,) = engine.evaluate_public([erms[0].query(np.zeros(erms[0].num_weights))])
    return answers, answerer.num_updates, last.belief_units, curator.budget.spent


@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    block_rows=st.sampled_from([13, 50, 64, 200]),
    workers=st.sampled_from([1, 2, 3]),
    sparse=st.booleans(),
    shuffle=st.booleans(),
)
def test_beam_and_memory_give_identical_bits(
    tmp_path_factory, seed, block_rows, workers, sparse, shuffle
):
    folder = tmp_path_factory.mktemp("engine")
    rows, codes = make_rows(seed, sparse)
    manifest = store(str(folder / "p"), rows, codes, block_rows)
    memory = InMemoryEngine(rows, codes, num_codes=K, block_rows=block_rows)
    expected = run_answerer(memory, rows)
    launcher = Launcher([f"--direct_num_workers={workers}"])
    engine = BeamEngine(launcher, manifest, str(folder / "p"), str(folder / "w"), run_id="r")
    if shuffle:
        order = np.random.default_rng(seed).permutation(len(engine._private))
        engine._private = [engine._private[i] for i in order]
    answers, updates, beliefs, spent = run_answerer(engine, rows)
    assert len(answers) == len(expected[0])
    for ours, theirs in zip(answers, expected[0], strict=True):
        assert np.array_equal(ours, theirs)
    assert updates == expected[1] > 0
    assert np.array_equal(beliefs, expected[2])
    assert spent == expected[3]
    assert storage.list_files(str(folder / "w" / "passes")) == []


def test_results_with_exact_sums_are_for_the_owner_only(tmp_path, monkeypatch):
    rows, codes = make_rows()
    manifest = store(str(tmp_path / "p"), rows, codes, block_rows=64)
    engine = BeamEngine(Launcher(), manifest, str(tmp_path / "p"), str(tmp_path / "w"), run_id="r")
    modes = {}
    read = storage.read_bytes

    def watch(path):
        if str(path).endswith("result"):
            modes["file"] = stat.S_IMODE(Path(path).stat().st_mode)
            modes["folder"] = stat.S_IMODE(Path(path).parent.stat().st_mode)
        return read(path)

    monkeypatch.setattr(storage, "read_bytes", watch)
    erm = make_erms(rows)[0]
    engine.evaluate_private([erm.query(np.zeros(erm.num_weights))])
    assert modes == {"file": 0o600, "folder": 0o700}
    assert storage.list_files(str(tmp_path / "w" / "passes")) == []


def test_direct_runner_means_in_process():
    launcher = Launcher(["--runner=DirectRunner"])
    assert launcher._options.get_all_options()["runner"] == "FnApiRunner"


def test_the_cache_serves_only_the_content_that_was_asked_for(tmp_path):
    """A folder prepared again in one process must not give the old codes."""
    folder = str(tmp_path / "p")
    for seed in (0, 1):
        rows, codes = make_rows(seed)
        manifest = store(folder, rows, codes, block_rows=N)
        (record,) = manifest.blocks
        path = dataset.private_path(folder, record.name)
        loaded = dataset.load_codes(path, record.private_hash, N, K)
        assert np.array_equal(loaded, codes)


def test_codes_that_do_not_fit_are_refused(tmp_path):
    rows, codes = make_rows()
    (record,) = store(str(tmp_path), rows, codes, block_rows=N).blocks
    path = dataset.private_path(str(tmp_path), record.name)
    for num_rows, num_codes in ((N - 1, K), (N, K - 1)):
        with pytest.raises(BlockError, match="does not fit its manifest"):
            dataset.load_codes(path, record.private_hash, num_rows, num_codes)


def test_nothing_public_is_a_plain_function_of_private_data(tmp_path):
    """Hashes of private data are keyed: without the salt no candidate can be tried."""
    rows, codes = make_rows()
    (record,) = store(str(tmp_path), rows, codes, block_rows=N).blocks
    assert record.private_hash != dataset.sha256(pack({"codes": codes}))
    assert record.private_hash == dataset.keyed_hash(SALT, pack({"codes": codes}))
    assert record.private_hash != dataset.keyed_hash(b"t" * 32, pack({"codes": codes}))
