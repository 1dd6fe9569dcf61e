"""The paper's hard instances: measured excess risk lies between lower and upper bound."""

import contextlib
import math

import numpy as np
import pytest

from ssdp_core.accounting import ZcdpFilter, rho_from_epsilon
from ssdp_core.bounds import convex_lower_bound, strongly_convex_lower_bound
from ssdp_core.curator import Curator
from ssdp_core.engine import InMemoryEngine
from ssdp_core.errors import OutOfUpdatesError
from ssdp_core.features import PublicRows
from ssdp_core.lower_bounds import selection_instance, strongly_convex_selection_instance
from ssdp_core.noise import NoiseSource
from ssdp_core.paper_parameters import PvmwParameters, solved_parameters
from ssdp_core.pvmw import PrivateVectorAnswerer
from ssdp_core.queries import MarginalQuery

EPSILON = 1.0
RUNS = 12


def answered_marginal(instance, num_codes, delta, seed):
    """mean_i e_(group, code), answered by Algorithm 2 at (EPSILON, delta)."""
    n = instance.num_rows
    rho = rho_from_epsilon(EPSILON, delta)
    engine = InMemoryEngine(
        PublicRows(num_rows=n, columns={"group": instance.group_ids}),
        instance.codes,
        num_codes=num_codes,
    )
    curator = Curator(engine, budget=ZcdpFilter(rho), noise=NoiseSource.seeded(seed))
    # One query, so a single update at full budget is the best use of it.
    parameters = PvmwParameters(
        num_rows=n, rho=rho, tau=1e-3, max_updates=3, eta=3.0 * math.sqrt(instance.num_groups)
    )
    query = MarginalQuery(num_codes=num_codes, group_column="group", num_groups=instance.num_groups)
    answerer = PrivateVectorAnswerer(engine, curator, parameters)
    with contextlib.suppress(OutOfUpdatesError):
        answerer.answer(query)
    assert curator.budget.spent <= rho
    return curator.refresh(curator.pose([query]))[0].belief_mean


@pytest.mark.parametrize("num_codes", [4, 16, 64])
def test_convex_excess_lies_between_the_bounds(num_codes):
    delta = 1e-6
    excesses = []
    for seed in range(RUNS):
        instance = selection_instance(600, num_codes, EPSILON, np.random.default_rng(seed))
        answer = answered_marginal(instance, num_codes, delta, seed)
        # The loss is linear: -G <w, mean e_j>. Its minimiser on the ball for the answered gradient:
        weights = instance.radius * answer / max(np.linalg.norm(answer), 1e-12)
        excesses.append(instance.excess_risk(weights))
    lower = convex_lower_bound(
        num_rows=instance.num_rows,
        num_codes=num_codes,
        epsilon=EPSILON,
        delta=delta,
        lipschitz=instance.lipschitz,
        radius=instance.radius,
    )
    parameters = solved_parameters(
        num_rows=instance.num_rows,
        num_codes=num_codes,
        rho=rho_from_epsilon(EPSILON, delta),
        num_queries=1,
        beta=0.05,
    )
    # Upper: 2RG times the proved answer error 18 eta, or the trivial 2RG.
    upper = 2 * instance.radius * instance.lipschitz * min(1.0, 18 * parameters.eta)
    assert lower <= np.mean(excesses) <= upper


@pytest.mark.parametrize("num_codes", [4, 16, 64])
def test_strongly_convex_excess_lies_between_the_bounds(num_codes):
    delta = 1e-6
    excesses = []
    for seed in range(RUNS):
        instance = strongly_convex_selection_instance(
            600, num_codes, EPSILON, np.random.default_rng(seed)
        )
        answer = answered_marginal(instance, num_codes, delta, seed)
        excesses.append(instance.excess_risk(instance.radius * answer))
    lower = strongly_convex_lower_bound(
        num_rows=instance.num_rows,
        num_codes=num_codes,
        epsilon=EPSILON,
        delta=delta,
        lipschitz=instance.lipschitz,
        strong_convexity=instance.strong_convexity,
    )
    upper = instance.lipschitz**2 / (2 * instance.strong_convexity)
    assert lower <= np.mean(excesses) <= upper
    # Sanity of the instance itself: without privacy the excess is zero, far below the bound.
    exact = np.zeros(instance.dimension)
    np.add.at(exact, instance.group_ids * num_codes + instance.codes, 1 / instance.num_rows)
    assert instance.excess_risk(instance.radius * exact) < lower / 100
