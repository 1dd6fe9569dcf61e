"""The optimisers: their theorems' error forms, and agreement with scipy and scikit-learn."""

import math

import numpy as np
import pytest
from instances import LOSSES, SMOOTH_LOSSES, loss_id, make_erm, make_table
from scipy import optimize
from sklearn.linear_model import LogisticRegression, Ridge

from ssdp_core import nonprivate
from ssdp_core.accounting import ZcdpFilter
from ssdp_core.bounds import (
    convex_excess_bound,
    inexact_oracle_error,
    strongly_convex_excess_bound,
    strongly_convex_num_steps,
)
from ssdp_core.curator import Curator
from ssdp_core.engine import InMemoryEngine
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.losses import AbsoluteLoss, HingeLoss, LogisticLoss, MultinomialLoss, SquaredLoss
from ssdp_core.noise import NoiseSource
from ssdp_core.oracles import (
    AnsweredGradients,
    MeasuredGradients,
    inexact_gradient_method,
    projected_subgradient,
)
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.problems import LinearErm, Problem, PublicTarget
from ssdp_core.pvmw import PrivateVectorAnswerer


def exact_oracle(table):
    engine = InMemoryEngine(table.rows, table.codes, num_codes=table.num_codes, num_threads=1)
    curator = Curator(engine, budget=ZcdpFilter(math.inf), noise=NoiseSource.seeded(0))
    assert not curator.is_private
    return MeasuredGradients(curator, noise_stddev=0.0)


class Perturbed:
    """Adds an error of norm ``size`` in the direction that hurts most: away from the optimum."""

    def __init__(self, inner, optimum, size):
        self._inner, self._optimum, self._size = inner, optimum, size

    def gradients(self, problems, weights):
        results = self._inner.gradients(problems, weights)
        errors = [w - self._optimum for w in weights]
        return [
            g - self._size * e / max(np.linalg.norm(e), 1e-12)
            for g, e in zip(results, errors, strict=True)
        ]


@pytest.mark.parametrize("private_target", [False, True])
@pytest.mark.parametrize("loss", SMOOTH_LOSSES, ids=loss_id)
def test_inexact_method_without_noise_agrees_with_scipy(loss, private_target):
    rng = np.random.default_rng(3)
    table = make_table(rng, num_rows=60, loss=loss)
    erm = make_erm(table, loss, rng, private_target=private_target, l2=0.5, radius=20.0)
    expected = nonprivate.minimise(erm, table.rows, table.codes)
    (found,) = inexact_gradient_method([erm], exact_oracle(table), num_rows=60, num_steps=900)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_agrees_with_scikit_learn():
    rng = np.random.default_rng(4)
    loss = LogisticLoss()
    table = make_table(rng, num_rows=200, loss=loss)
    erm = make_erm(table, loss, rng, l2=0.5, radius=30.0)
    (found,) = inexact_gradient_method([erm], exact_oracle(table), num_rows=200, num_steps=800)
    x = np.hstack([table.rows.features.values, table.private.matrix[table.codes]])
    peer = LogisticRegression(C=1 / (200 * 0.5), fit_intercept=False, tol=1e-10, max_iter=2000)
    peer.fit(x, table.rows.columns["target"])
    np.testing.assert_allclose(found, peer.coef_[0], atol=1e-6)

    squared = SquaredLoss()
    table = make_table(rng, num_rows=200, loss=squared)
    erm = make_erm(table, squared, rng, l2=0.5, radius=30.0)
    (found,) = inexact_gradient_method([erm], exact_oracle(table), num_rows=200, num_steps=800)
    x = np.hstack([table.rows.features.values, table.private.matrix[table.codes]]).astype(float)
    peer = Ridge(alpha=200 * 0.5, fit_intercept=False, solver="cholesky")
    np.testing.assert_allclose(found, peer.fit(x, table.rows.columns["target"]).coef_, atol=1e-6)

    classes = MultinomialLoss(num_classes=3)
    table = make_table(rng, num_rows=200, loss=classes)
    erm = make_erm(table, classes, rng, l2=0.5, radius=30.0)
    (found,) = inexact_gradient_method([erm], exact_oracle(table), num_rows=200, num_steps=800)
    x = np.hstack([table.rows.features.values, table.private.matrix[table.codes]])
    peer = LogisticRegression(C=1 / (200 * 0.5), fit_intercept=False, tol=1e-10, max_iter=5000)
    peer.fit(x, table.rows.columns["target"])
    np.testing.assert_allclose(found.reshape(3, -1), peer.coef_, atol=1e-6)


@pytest.mark.parametrize("loss", [HingeLoss(), AbsoluteLoss(), LogisticLoss()], ids=loss_id)
@pytest.mark.parametrize("num_steps", [25, 400])
@pytest.mark.parametrize("error", [0.0, 0.02])
def test_subgradient_method_reaches_its_theorem(loss, num_steps, error):
    """Excess <= R G'/sqrt(q) + 2 R * error, with the error placed adversarially."""
    rng = np.random.default_rng(5)
    table = make_table(rng, num_rows=50, loss=loss)
    erm = make_erm(table, loss, rng, l2=0.01, radius=2.0)

    def objective(w):
        return nonprivate.objective(erm, table.rows, table.codes, erm.project(w))

    # A reference optimum by a long run of the method itself, polished without derivatives.
    (rough,) = projected_subgradient([erm], exact_oracle(table), num_steps=4000)
    optimum = optimize.minimize(objective, rough, method="Powell").x
    oracle = Perturbed(exact_oracle(table), erm.project(optimum), error)
    (found,) = projected_subgradient([erm], oracle, num_steps=num_steps)
    excess = objective(found) - objective(optimum)
    bound = convex_excess_bound(
        lipschitz=erm.lipschitz + erm.problem.l2 * erm.problem.radius + error,
        radius=erm.problem.radius,
        num_steps=num_steps,
        answer_error=error / erm.lipschitz,
    )
    assert excess <= bound
    assert np.linalg.norm(found) <= erm.problem.radius * (1 + 1e-12)


def test_subgradient_error_falls_like_one_over_sqrt_q():
    """On |w|-like losses the rate is attained, so the bound is not an empty one."""
    rng = np.random.default_rng(6)
    loss = AbsoluteLoss()
    rows = PublicRows(
        num_rows=50,
        features=DenseFeatures(np.full((50, 1), 1.0)),
        columns={"target": np.full(50, 0.31)},
    )
    table = make_table(rng, num_rows=50, private="none")
    table.rows = rows
    problem = Problem(name="p", loss=loss, target=PublicTarget(column="target"), radius=1.0)
    erm = LinearErm.from_rows(problem, rows, table.private)
    excess = {}
    for q in (25, 400):
        (found,) = projected_subgradient([erm], exact_oracle(table), num_steps=q)
        excess[q] = nonprivate.objective(erm, rows, table.codes, found)
    assert 0 < excess[400] <= 1 / math.sqrt(400)
    assert 0 < excess[25] <= 1 / math.sqrt(25)
    assert excess[400] < excess[25]


@pytest.mark.parametrize("num_steps", [3, 30, 300])
@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_inexact_method_reaches_its_theorem(num_steps, error):
    """Excess <= L~ R0^2/2 exp(-q mu~/L~) + xi^2 (1/mu + 1/(2 lambda))."""
    rng = np.random.default_rng(7)
    loss = LogisticLoss()
    table = make_table(rng, num_rows=50, loss=loss)
    erm = make_erm(table, loss, rng, l2=0.2, radius=10.0)
    optimum = nonprivate.minimise(erm, table.rows, table.codes)
    oracle = Perturbed(exact_oracle(table), optimum, error)
    (found,) = inexact_gradient_method([erm], oracle, num_rows=50, num_steps=num_steps)
    excess = nonprivate.objective(erm, table.rows, table.codes, found) - nonprivate.objective(
        erm, table.rows, table.codes, optimum
    )
    upsilon = inexact_oracle_error(
        gradient_error=error, strong_convexity=0.2, smoothness=erm.smoothness
    )
    start = float(optimum @ optimum)
    bound = erm.smoothness * start * math.exp(-num_steps * 0.2 / (4 * erm.smoothness)) + upsilon
    assert excess <= bound
    assert bound <= strongly_convex_excess_bound(
        lipschitz=erm.lipschitz + 0.2 * 10.0,
        strong_convexity=0.2,
        smoothness=erm.smoothness,
        radius=10.0,
        num_steps=num_steps,
        answer_error=error / erm.lipschitz,
    )


def test_the_papers_number_of_steps_is_the_default():
    rng = np.random.default_rng(8)
    loss = SquaredLoss()
    table = make_table(rng, num_rows=30, loss=loss)
    erm = make_erm(table, loss, rng, l2=1.0, radius=3.0)
    rounds = []
    inexact_gradient_method(
        [erm], exact_oracle(table), num_rows=30, progress=lambda done, total: rounds.append(total)
    )
    expected = strongly_convex_num_steps(
        num_rows=30, strong_convexity=1.0, smoothness=erm.smoothness, radius=3.0
    )
    assert rounds == [expected] * expected


@pytest.mark.parametrize("loss", LOSSES, ids=loss_id)
def test_many_problems_through_the_private_answerer(loss):
    """End to end on the curator: m problems in step, errors within what tau allows."""
    rng = np.random.default_rng(9)
    table = make_table(rng, num_rows=1500, loss=loss)
    erms = [make_erm(table, loss, rng, l2=l2, radius=3.0) for l2 in (0.3, 1.0)]
    engine = InMemoryEngine(table.rows, table.codes, num_codes=table.num_codes)
    rho = 4.0
    curator = Curator(engine, budget=ZcdpFilter(rho), noise=NoiseSource.seeded(1))
    parameters = PvmwParameters(num_rows=1500, rho=rho, tau=0.06, max_updates=20, eta=1.0)
    oracle = AnsweredGradients(PrivateVectorAnswerer(engine, curator, parameters))
    found = projected_subgradient(erms, oracle, num_steps=40)
    exact = projected_subgradient(erms, exact_oracle(table), num_steps=400)
    for erm, ours, best in zip(erms, found, exact, strict=True):
        risks = [nonprivate.objective(erm, table.rows, table.codes, w) for w in (ours, best)]
        bound = convex_excess_bound(
            lipschitz=erm.lipschitz + erm.problem.l2 * 3.0,
            radius=3.0,
            num_steps=40,
            answer_error=0.06 + 5 * parameters.query_noise_scale,
        )
        assert risks[0] - risks[1] <= bound
    assert curator.budget.spent <= rho


def test_problems_that_the_inexact_method_cannot_solve_are_named():
    rng = np.random.default_rng(10)
    table = make_table(rng, loss=HingeLoss())
    erm = make_erm(table, HingeLoss(), rng)
    with pytest.raises(ValueError, match=r"problem 'hinge' must be smooth and have l2 > 0"):
        inexact_gradient_method([erm], exact_oracle(table), num_rows=40)
