"""Every compiled kernel against its plain NumPy namesake, for every loss and kind of target."""

import itertools

import numpy as np
import pytest
from instances import LOSSES, loss_id, make_erm, make_table, random_beliefs, random_weights

from ssdp_core.kernels import belief_kernels, reference
from ssdp_core.kernels.elementary import EXP32_LIMIT, exp32_array
from ssdp_core.losses import MultinomialLoss

CASES = list(itertools.product([False, True], ["one_hot", "signed"], [False, True]))


def grid(erm, table, weights, public_target, private_targets):
    """Scores over (rows, codes) straight from the loss."""
    matrix = weights.reshape(erm.num_outputs, -1)
    x = dense(table)
    public = x @ matrix[:, : erm.num_public].T
    offsets = table.private.matrix @ matrix[:, erm.num_public :].T
    n, k = x.shape[0], table.num_codes
    if isinstance(erm.problem.loss, MultinomialLoss):
        row = np.full(n, -1, np.int32) if public_target is None else public_target.astype(np.int32)
        code = (
            np.full(k, -1, np.int32)
            if private_targets is None
            else private_targets.astype(np.int32)
        )
        return reference.grid_class_scores(erm.problem.loss, public, row, offsets, code)
    row = np.zeros(n) if public_target is None else public_target
    code = np.zeros(k) if private_targets is None else private_targets
    return reference.grid_scores(erm.problem.loss, public[:, 0], row, offsets[:, 0], code)[
        ..., None
    ]


def dense(table):
    features = table.rows.features
    return np.stack([features.margins(unit) for unit in np.eye(features.num_columns)], axis=1)


def gradient_terms(erm, table, scores):
    """f(i, y), unfactored: (rows, codes, dimension)."""
    x = dense(table)
    n, k = x.shape[0], table.num_codes
    phi = np.concatenate(
        [
            np.broadcast_to(x[:, None, :], (n, k, x.shape[1])),
            np.broadcast_to(table.private.matrix[None], (n, k, table.private.matrix.shape[1])),
        ],
        axis=2,
    )
    outer = scores[:, :, :, None] * phi[:, :, None, :]
    return outer.reshape(n, k, -1) / erm.lipschitz


@pytest.mark.parametrize(("sparse", "private", "private_target"), CASES)
@pytest.mark.parametrize("loss", LOSSES, ids=loss_id)
def test_gradient_query_equals_the_unfactored_gradient(loss, sparse, private, private_target):
    rng = np.random.default_rng(1)
    table = make_table(rng, num_rows=70, private=private, sparse=sparse, loss=loss)
    erm = make_erm(table, loss, rng, private_target=private_target)
    weights = random_weights(erm, rng)
    target = erm.problem.target
    scores = grid(
        erm,
        table,
        weights,
        None if private_target else table.rows.columns["target"],
        target.values if private_target else None,
    )
    terms = gradient_terms(erm, table, scores)
    beliefs = random_beliefs(rng, 70, table.num_codes)
    query = erm.query(weights)

    result = query.evaluate(table.rows, beliefs=beliefs, codes=table.codes)

    exact = terms[np.arange(70), table.codes].sum(axis=0)
    np.testing.assert_allclose(result.data_sum, exact, rtol=1e-12, atol=1e-12)
    average = (beliefs[:, :, None].astype(float) * terms).sum(axis=(0, 1))
    np.testing.assert_allclose(result.belief_sum, average, rtol=2e-6, atol=2e-5)
    direction = rng.normal(size=query.dimension)
    products = np.concatenate([t.products for t in query.inner_products(table.rows, direction)])
    np.testing.assert_allclose(products, terms @ direction, rtol=1e-5, atol=2e-6)
    assert np.linalg.norm(terms, axis=2).max() <= query.norm_bound


@pytest.mark.parametrize("loss", [LOSSES[0]], ids=loss_id)
@pytest.mark.parametrize("size", [1.0, 30.0, 60.0, 200.0])
def test_logistic_scores_stay_right_far_outside_the_fast_range(loss, size):
    """Where exp(-z) exp(-b) would leave float32, the grid falls back to one exp per cell."""
    rng = np.random.default_rng(2)
    table = make_table(rng, private="one_hot", loss=loss)
    erm = make_erm(table, loss, rng, radius=1000.0)
    weights = random_weights(erm, rng, norm=size)
    scores = grid(erm, table, weights, table.rows.columns["target"], None)
    terms = gradient_terms(erm, table, scores)
    beliefs = random_beliefs(rng, 40, table.num_codes)
    result = erm.query(weights).evaluate(table.rows, beliefs=beliefs)
    average = (beliefs[:, :, None].astype(float) * terms).sum(axis=(0, 1))
    np.testing.assert_allclose(result.belief_sum, average, rtol=1e-5, atol=2e-5)


def test_exp32_is_within_two_units_in_the_last_place():
    x = np.linspace(-EXP32_LIMIT, EXP32_LIMIT, 2_000_001, dtype=np.float32)
    out = np.empty_like(x)
    exp32_array(x, out)
    exact = np.exp(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(out - exact) / ulp).max() < 2.0


@pytest.mark.parametrize("num_codes", [2, 3, 17, 64])
@pytest.mark.parametrize(
    "kernel", [belief_kernels.multiply_weights, belief_kernels.multiply_weights_shifted]
)
def test_multiplicative_weights(kernel, num_codes):
    rng = np.random.default_rng(3)
    beliefs = random_beliefs(rng, 50, num_codes)
    products = (rng.normal(size=(50, num_codes)) * 3).astype(np.float32)
    expected = reference.multiply_weights(beliefs, products.astype(float), 0.7, 2.5)
    kernel(beliefs, products, np.float32(0.7), np.float32(2.5))
    np.testing.assert_allclose(beliefs, expected, rtol=3e-6, atol=1e-12)
    np.testing.assert_allclose(beliefs.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("step", [30.0, 1000.0, 1e6])
def test_huge_steps_stay_normalised_and_let_underflown_codes_come_back(step):
    rng = np.random.default_rng(4)
    beliefs = random_beliefs(rng, 20, 5)
    products = rng.normal(size=(20, 5)).astype(np.float32)
    expected = reference.multiply_weights(beliefs, products.astype(float), step, np.inf)
    belief_kernels.multiply_weights_shifted(beliefs, products, np.float32(step), np.float32(np.inf))
    # exp of a float32 product of size 30 is good to about 30 * 2^-23.
    np.testing.assert_allclose(beliefs, expected, rtol=1e-4, atol=1e-9)
    assert (beliefs > 0).all()


@pytest.mark.parametrize("truncation", [0.5, np.inf])
def test_log_partition(truncation):
    rng = np.random.default_rng(5)
    beliefs = random_beliefs(rng, 30, 7)
    products = rng.normal(size=(30, 7)).astype(np.float32)
    steps = np.array([0.0, 0.1, 1.0, 20.0, 300.0])
    totals = np.zeros(5)
    belief_kernels.add_log_partition(
        beliefs, products, steps.astype(np.float32), np.float32(truncation), totals
    )
    expected = reference.log_partition(beliefs, products.astype(float), steps, truncation)
    np.testing.assert_allclose(totals, expected, rtol=1e-5, atol=1e-4)


def test_group_mass():
    rng = np.random.default_rng(6)
    beliefs = random_beliefs(rng, 30, 4)
    groups = rng.integers(0, 3, 30).astype(np.int32)
    mass = np.zeros((3, 4))
    belief_kernels.add_group_mass(groups, beliefs, mass)
    expected = np.stack([beliefs[groups == g].astype(float).sum(axis=0) for g in range(3)])
    np.testing.assert_allclose(mass, expected, rtol=1e-12)
