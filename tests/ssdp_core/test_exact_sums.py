"""Sums that are the same bit for bit, and the slack that rounding costs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import LOSSES, make_erm, make_table, random_weights

from ssdp_core.engine import ExactSum, InMemoryEngine, evaluate_block
from ssdp_core.exact_sums import L2_NORM_RELATIVE_ERROR, Lattice, l2_norm, sum_slack
from ssdp_core.queries import MarginalQuery


@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from(LOSSES),
    block_rows=st.sampled_from([1, 5, 16, 33]),
    num_threads=st.sampled_from([1, 2, 5]),
)
def test_bits_do_not_depend_on_threads_or_block_order(seed, loss, block_rows, num_threads):
    rng = np.random.default_rng(seed)
    table = make_table(rng, num_rows=60, loss=loss)
    erm = make_erm(table, loss, rng)
    queries = [erm.query(random_weights(erm, rng)) for _ in range(2)]
    reference = InMemoryEngine(
        table.rows, table.codes, num_codes=4, block_rows=block_rows, num_threads=1
    )
    threaded = InMemoryEngine(
        table.rows, table.codes, num_codes=4, block_rows=block_rows, num_threads=num_threads
    )
    direction = rng.normal(size=queries[0].dimension)
    for engine in (reference, threaded):
        engine.update(queries[0], direction, step=0.5, truncation=3.0)
    assert (reference.beliefs == threaded.beliefs).all()
    for one, two in zip(
        reference.evaluate_private(queries), threaded.evaluate_private(queries), strict=True
    ):
        assert (one.exact.open_in_curator() == two.exact.open_in_curator()).all()
        assert (one.belief_units == two.belief_units).all()
        assert one.row_sensitivity == two.row_sensitivity

    # Blocks evaluated one by one and added in a random order and tree shape.
    lattices = [Lattice.for_sum(60, q.norm_bound) for q in queries]
    parts = [
        evaluate_block(
            queries,
            lattices,
            table.rows.rows(start, min(start + block_rows, 60)),
            reference.beliefs[start : start + block_rows],
            table.codes[start : start + block_rows],
        )
        for start in range(0, 60, block_rows)
    ]
    while len(parts) > 1:
        first, second = rng.choice(len(parts), size=2, replace=False)
        for a, b in zip(parts[first], parts[second], strict=True):
            a.add(b)
        del parts[second]
    for total, expected in zip(parts[0], reference.evaluate_private(queries), strict=True):
        assert (total.data_units == expected.exact.open_in_curator()).all()
        assert (total.belief_units == expected.belief_units).all()


@given(
    num_rows=st.integers(1, 10**9),
    norm_bound=st.floats(1e-6, 1e6),
    fraction=st.floats(-1.0, 1.0),
)
def test_lattice_holds_the_largest_sum_with_room_for_noise(num_rows, norm_bound, fraction):
    lattice = Lattice.for_sum(num_rows, norm_bound)
    largest = num_rows * norm_bound
    assert largest / lattice.step <= 2.0**54
    assert largest / lattice.step >= 2.0**52
    units = lattice.round(np.array([fraction * largest]))
    assert abs(int(units[0])) < 2**55
    assert abs(lattice.to_float(units)[0] - fraction * largest) <= lattice.step


def test_slack_covers_the_worst_rounding_seen():
    """Float sums of many rows against exact rational sums; the slack must not be exceeded."""
    rng = np.random.default_rng(0)
    rows, dimension = 3000, 3
    terms = rng.normal(size=(rows, dimension))
    terms /= np.linalg.norm(terms, axis=1, keepdims=True)
    lattice = Lattice.for_sum(rows, 1.0)
    total = np.zeros(dimension)
    for term in terms:
        total += term
    exact = np.array([math.fsum(column) for column in terms.T])
    error = np.linalg.norm(lattice.to_float(lattice.round(total.copy())) - exact)
    slack = sum_slack(
        dimension=dimension, block_rows=rows, num_codes=4, norm_bound=1.0, lattice=lattice
    )
    assert error <= slack / 2  # the slack covers this error twice
    assert slack < 1e-5


def test_slack_is_a_millionth_at_the_default_block_size():
    lattice = Lattice.for_sum(10**6, 1.0)
    slack = sum_slack(
        dimension=2**20, block_rows=65_536, num_codes=20, norm_bound=1.0, lattice=lattice
    )
    assert 0 < slack < 2e-6


@given(st.lists(st.integers(-(2**56), 2**56), min_size=1, max_size=300))
def test_norm_is_within_its_stated_error(values):
    exact = math.isqrt(sum(v * v for v in values) << 40) / 2**20
    norm = l2_norm(np.array(values, dtype=np.int64))
    assert abs(norm - exact) <= exact * L2_NORM_RELATIVE_ERROR + 2.0**-20


def test_exact_sums_hide_in_printing_and_refuse_pickling():
    import pickle

    box = ExactSum(np.array([123456789]))
    assert "123456789" not in repr(box)
    with pytest.raises(TypeError, match="exact sums stay with it"):
        pickle.dumps(box)


def test_engine_refuses_a_query_of_another_domain():
    table = make_table(np.random.default_rng(0))
    engine = InMemoryEngine(table.rows, table.codes, num_codes=4)
    with pytest.raises(ValueError, match="query is about 7 private codes, the table has 4"):
        engine.evaluate_public([MarginalQuery(num_codes=7)])


def test_wide_queries_are_worked_out_one_sum_at_a_time_with_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    table = make_table(rng, num_rows=60, loss=LOSSES[0])
    erm = make_erm(table, LOSSES[0], rng)
    query = erm.query(random_weights(erm, rng))
    engine = InMemoryEngine(table.rows, table.codes, num_codes=4, block_rows=16, num_threads=2)
    (usual,) = engine.evaluate_private([query])
    monkeypatch.setattr("ssdp_core.engine._WIDE", 1)
    (wide,) = engine.evaluate_private([query])
    assert (usual.exact.open_in_curator() == wide.exact.open_in_curator()).all()
    assert (usual.belief_units == wide.belief_units).all()
    assert usual.row_sensitivity == wide.row_sensitivity
