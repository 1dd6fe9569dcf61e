"""Beliefs as a whole: starting points, updates through an engine, log-partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import LOSSES, make_erm, make_table, random_weights

from ssdp_core.beliefs import prior_beliefs, uniform_beliefs
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import PublicRows
from ssdp_core.kernels import reference
from ssdp_core.queries import MarginalQuery


def all_products(query, rows, direction):
    return np.concatenate([tile.products for tile in query.inner_products(rows, direction)])


def test_starting_points():
    assert (uniform_beliefs(3, 4) == np.float32(0.25)).all()
    prior = prior_beliefs(3, [2.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(prior, np.tile([0.5, 0.25, 0.25, 0.0], (3, 1)), atol=1e-7)
    assert (prior > 0).all()  # an impossible code may still come back
    own = prior_beliefs(2, [[1.0, 3.0], [3.0, 1.0]])
    np.testing.assert_allclose(own, [[0.25, 0.75], [0.75, 0.25]])
    assert own.dtype == np.float32
    assert own.flags.c_contiguous


@given(
    seed=st.integers(0, 10_000),
    loss=st.sampled_from(LOSSES),
    step=st.sampled_from([0.01, 0.5, -0.3, 20.0]),
    truncation=st.sampled_from([0.05, 3.0, np.inf]),
)
def test_engine_update_equals_algorithm_one(seed, loss, step, truncation):
    rng = np.random.default_rng(seed)
    table = make_table(rng, loss=loss)
    erm = make_erm(table, loss, rng)
    query = erm.query(random_weights(erm, rng))
    direction = rng.normal(size=query.dimension) * 2
    engine = InMemoryEngine(table.rows, table.codes, num_codes=4, block_rows=16)
    before = engine.beliefs.copy()
    products = all_products(query, table.rows, direction).astype(float)
    engine.update(query, direction, step=step, truncation=truncation)
    expected = reference.multiply_weights(before, products, step, truncation)
    np.testing.assert_allclose(engine.beliefs, expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(engine.beliefs.sum(axis=1), 1.0, rtol=1e-5)


@given(seed=st.integers(0, 10_000), shift=st.floats(-5, 5))
def test_a_constant_added_to_all_products_changes_nothing(seed, shift):
    """Normalisation: beliefs only see differences between codes."""
    rng = np.random.default_rng(seed)
    rows = PublicRows(num_rows=10)
    codes = rng.integers(0, 3, 10)
    direction = rng.normal(size=3)
    engines = [InMemoryEngine(rows, codes, num_codes=3) for _ in range(2)]
    query = MarginalQuery(num_codes=3)
    engines[0].update(query, direction, step=0.7, truncation=np.inf)
    engines[1].update(query, direction + shift, step=0.7, truncation=np.inf)
    np.testing.assert_allclose(engines[0].beliefs, engines[1].beliefs, rtol=1e-4)


def test_log_partition_is_the_mean_over_all_blocks_and_convex():
    rng = np.random.default_rng(0)
    table = make_table(rng, num_rows=50, loss=LOSSES[0])
    erm = make_erm(table, LOSSES[0], rng)
    query = erm.query(random_weights(erm, rng))
    direction = rng.normal(size=query.dimension) * 5
    steps = np.linspace(-2, 2, 9)
    engine = InMemoryEngine(table.rows, table.codes, num_codes=4, block_rows=7)
    values = engine.log_partition(query, direction, steps, truncation=2.0)
    products = all_products(query, table.rows, direction).astype(float)
    expected = reference.log_partition(engine.beliefs, products, steps, 2.0) / 50
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)
    assert values[4] == pytest.approx(0.0, abs=1e-6)
    assert (np.diff(values, 2) >= -1e-6).all()
