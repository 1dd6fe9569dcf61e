"""The non-private reference itself, by finite differences."""

import numpy as np
import pytest
from instances import LOSSES, loss_id, make_erm, make_table, random_weights

from ssdp_core import nonprivate
from ssdp_core.losses import HingeLoss, LogisticLoss


@pytest.mark.parametrize("private_target", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_id)
def test_gradient_is_the_derivative_of_the_objective(loss, private_target):
    rng = np.random.default_rng(0)
    table = make_table(rng, loss=loss)
    erm = make_erm(table, loss, rng, private_target=private_target)
    weights = random_weights(erm, rng)
    direction = random_weights(erm, rng, 1.0)
    step = 1e-6
    forward, backward = (
        nonprivate.objective(erm, table.rows, table.codes, weights + s * direction)
        for s in (step, -step)
    )
    slope = nonprivate.gradient(erm, table.rows, table.codes, weights) @ direction
    assert slope == pytest.approx((forward - backward) / (2 * step), abs=1e-6)


def test_the_query_gives_the_same_gradient():
    rng = np.random.default_rng(1)
    table = make_table(rng, loss=LogisticLoss())
    erm = make_erm(table, LogisticLoss(), rng)
    weights = random_weights(erm, rng)
    answer = erm.query(weights).evaluate(table.rows, codes=table.codes).data_sum / 40
    np.testing.assert_allclose(
        erm.gradient(weights, answer),
        nonprivate.gradient(erm, table.rows, table.codes, weights),
        atol=1e-12,
    )


def test_minimise_says_what_it_cannot_do():
    rng = np.random.default_rng(2)
    table = make_table(rng, loss=HingeLoss())
    with pytest.raises(ValueError, match="has kinks"):
        nonprivate.minimise(make_erm(table, HingeLoss(), rng), table.rows, table.codes)
    erm = make_erm(table, LogisticLoss(), rng, radius=0.01, l2=1e-3)
    with pytest.raises(ValueError, match=r"outside its ball of radius 0\.01"):
        nonprivate.minimise(erm, table.rows, table.codes)
