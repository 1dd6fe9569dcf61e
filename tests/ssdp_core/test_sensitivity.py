"""Reported sensitivities against brute force over all neighbours."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import LOSSES, loss_id, make_erm, make_table, random_weights

from ssdp_core.columns import BinnedColumn, CategoricalColumn, Role
from ssdp_core.domain import PrivateDomain, PrivateFeatures
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.losses import LogisticLoss, MultinomialLoss, SquaredLoss
from ssdp_core.problems import LinearErm, PrivateTarget, Problem, PublicTarget
from ssdp_core.queries import MarginalQuery, TabulatedQuery, count_query, mean_query


def brute_force(query, rows, num_codes):
    """max over rows and pairs of codes of |f(i, y) - f(i, y')|, through data sums of one row."""
    largest = 0.0
    for i in range(rows.num_rows):
        one_row = rows.rows(i, i + 1)
        sums = [
            query.evaluate(one_row, codes=np.array([code], dtype=np.int32)).data_sum
            for code in range(num_codes)
        ]
        for first, second in itertools.combinations(sums, 2):
            largest = max(largest, float(np.linalg.norm(first - second)))
    return largest


@pytest.mark.parametrize("private_target", [False, True])
@pytest.mark.parametrize("private", ["one_hot", "signed", "none"])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_id)
def test_gradient_sensitivity_is_never_below_brute_force(loss, private, private_target):
    for seed, norm in itertools.product(range(4), (0.0, 0.5, 4.0)):
        rng = np.random.default_rng(seed)
        table = make_table(rng, num_rows=12, private=private, loss=loss, sparse=seed % 2 == 1)
        erm = make_erm(table, loss, rng, private_target=private_target)
        query = erm.query(random_weights(erm, rng, norm))
        reported = query.evaluate(table.rows).row_sensitivity
        actual = brute_force(query, table.rows, table.num_codes)
        assert actual <= reported
        assert reported <= 2.0 * query.norm_bound * (1 + 1e-6) or private == "signed"


@pytest.mark.parametrize("private_target", [False, True])
@pytest.mark.parametrize(
    "loss", [loss for loss in LOSSES if not isinstance(loss, MultinomialLoss)], ids=loss_id
)
def test_gradient_sensitivity_is_exact_for_one_column(loss, private_target):
    """One one-hot column (public target), or a sensitive target only: the bound is attained."""
    rng = np.random.default_rng(7)
    private = "none" if private_target else "one_hot"
    table = make_table(rng, num_rows=12, private=private, loss=loss)
    erm = make_erm(table, loss, rng, private_target=private_target)
    query = erm.query(random_weights(erm, rng, 2.0))
    reported = query.evaluate(table.rows).row_sensitivity
    assert brute_force(query, table.rows, table.num_codes) >= 0.99 * reported


def test_multinomial_sensitivity_is_within_one_percent_for_two_codes():
    """With two codes the box around the scores has them as corners."""
    loss = MultinomialLoss(num_classes=3)
    rng = np.random.default_rng(8)
    table = make_table(rng, num_rows=12, num_codes=2, private="none", loss=loss)
    erm = make_erm(table, loss, rng, private_target=True)
    query = erm.query(random_weights(erm, rng, 2.0))
    reported = query.evaluate(table.rows).row_sensitivity
    assert brute_force(query, table.rows, 2) >= 0.99 * reported


def test_logistic_sensitivity_is_one_over_n_and_not_two():
    """The label case of the logistic loss: |s - s'| = 1, so neighbours move the sum by |x|/G."""
    rng = np.random.default_rng(9)
    table = make_table(rng, num_codes=2, private="none", loss=LogisticLoss())
    problem = Problem(
        name="label",
        loss=LogisticLoss(),
        target=PrivateTarget(values=np.array([0.0, 1.0])),
        radius=3.0,
    )
    erm = LinearErm.from_rows(problem, table.rows, table.private)
    query = erm.query(np.zeros(erm.num_weights))
    assert query.evaluate(table.rows).row_sensitivity == pytest.approx(1.0, rel=1e-6)


def test_product_domain_with_features_and_target():
    """Several sensitive columns, one of them both feature and target."""
    domain = PrivateDomain(
        columns=(
            CategoricalColumn(name="segment", values=("a", "b", "c"), scale=0.5),
            BinnedColumn(name="income", edges=(0.0, 1.0, 3.0), scale=0.5),
            CategoricalColumn(name="bought", values=(0, 1), role=Role.TARGET),
        )
    )
    private = domain.private_features()
    rng = np.random.default_rng(10)
    rows = PublicRows(
        num_rows=10,
        features=DenseFeatures(rng.normal(size=(10, 3)) * 0.3),
        columns={"target": rng.integers(0, 2, 10).astype(float)},
    )
    for target in (
        PublicTarget(column="target"),
        PrivateTarget(values=domain.target_values("bought")),
    ):
        erm = LinearErm.from_rows(
            Problem(name="p", loss=LogisticLoss(), target=target, radius=6.0), rows, private
        )
        for seed in range(6):
            query = erm.query(random_weights(erm, np.random.default_rng(seed), 5.0))
            reported = query.evaluate(rows).row_sensitivity
            actual = brute_force(query, rows, domain.num_codes)
            assert actual <= reported <= 1.5 * actual


@given(seed=st.integers(0, 10_000), dimension=st.integers(1, 4), groups=st.integers(1, 3))
def test_tabulated_sensitivity_is_exact(seed, dimension, groups):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(groups, 5, dimension))
    rows = PublicRows(num_rows=8, columns={"g": rng.integers(0, groups, 8).astype(np.int32)})
    query = TabulatedQuery(table=table, group_column="g")
    reported = query.evaluate(rows).row_sensitivity
    actual = brute_force(query, rows, 5)
    assert actual <= reported
    assert actual >= 0.99 * reported


def test_tabulated_sensitivity_with_very_many_codes_is_a_bound():
    rng = np.random.default_rng(11)
    points = rng.normal(size=(1, 1500, 3))
    rows = PublicRows(num_rows=1)
    reported = TabulatedQuery(table=points).evaluate(rows).row_sensitivity
    distances = np.linalg.norm(points[0][:, None] - points[0][None], axis=2)
    assert distances.max() <= reported <= 1.5 * distances.max()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (MarginalQuery(num_codes=4), math.sqrt(2)),
        (MarginalQuery(num_codes=4, cells=[0, 0, 1, 1], group_column="g", num_groups=2), 2**0.5),
        (count_query([1, 2], num_codes=4), 1.0),
        (mean_query([0.0, 0.25, 0.5, 1.0]), 1.0),
    ],
)
def test_counts_means_and_marginals(query, expected):
    rows = PublicRows(num_rows=3, columns={"g": np.array([0, 1, 1], dtype=np.int32)})
    reported = query.evaluate(rows).row_sensitivity
    assert brute_force(query, rows, 4) == pytest.approx(expected, rel=1e-12)
    assert expected <= reported <= expected * (1 + 1e-6)


@given(
    seed=st.integers(0, 10_000),
    block_rows=st.sampled_from([1, 3, 7, 64]),
    loss=st.sampled_from(LOSSES),
    row=st.integers(0, 19),
)
def test_whole_sums_of_real_neighbours_stay_within_sensitivity_plus_slack(
    seed, block_rows, loss, row
):
    """The quantity a mechanism adds noise to: integer sums of two neighbouring tables."""
    rng = np.random.default_rng(seed)
    table = make_table(rng, num_rows=20, loss=loss)
    erm = make_erm(table, loss, rng)
    query = erm.query(random_weights(erm, rng, 3.0))
    neighbour = table.codes.copy()
    neighbour[row] = (neighbour[row] + 1 + seed % (table.num_codes - 1)) % table.num_codes
    results = [
        InMemoryEngine(
            table.rows, codes, num_codes=table.num_codes, block_rows=block_rows, num_threads=1
        ).evaluate_private([query])[0]
        for codes in (table.codes, neighbour)
    ]
    moved = results[0].exact.open_in_curator() - results[1].exact.open_in_curator()
    distance = np.linalg.norm(moved.astype(float)) * results[0].lattice.step
    assert distance <= results[0].row_sensitivity + results[0].rounding_slack


@pytest.mark.parametrize("loss", [LogisticLoss(), MultinomialLoss(num_classes=2)], ids=loss_id)
def test_nearly_equal_private_features_do_not_hide_a_distance_in_rounding(loss):
    """Differences of nearly equal squares: the square is right to 1e-16, its root only to 1e-8."""
    private = PrivateFeatures.from_matrix([[1.0, 0.0], [1.0, 1e-8]])
    rows = PublicRows(
        num_rows=2, features=DenseFeatures(np.zeros((2, 1))), columns={"t": np.array([0, 1])}
    )
    problem = Problem(name="p", loss=loss, target=PublicTarget(column="t"), radius=1.0)
    query = LinearErm.from_rows(problem, rows, private)
    query = query.query(np.zeros(query.num_weights))
    assert brute_force(query, rows, 2) <= query.evaluate(rows).row_sensitivity < 1e-5


@pytest.mark.parametrize("size", [1e-170, 1e160])
def test_numbers_whose_squares_leave_float64_are_refused(size):
    rows = PublicRows(num_rows=2, features=DenseFeatures(np.ones((2, 1))))
    problem = Problem(
        name="p",
        loss=SquaredLoss(),
        target=PrivateTarget(values=np.array([size, 2 * size])),
        radius=size,
    )
    with pytest.raises(ValueError, match="rescale its features, radius or targets"):
        LinearErm.from_rows(problem, rows, PrivateFeatures.from_matrix(np.zeros((2, 0))))
