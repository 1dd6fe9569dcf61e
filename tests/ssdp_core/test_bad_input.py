"""Bad input: one clear sentence each, and never a private value in it."""

import math

import numpy as np
import pytest
from instances import make_erm, make_table

from ssdp_core import beliefs
from ssdp_core.accounting import ZcdpFilter, rho_from_epsilon
from ssdp_core.columns import CategoricalColumn
from ssdp_core.domain import PrivateDomain, PrivateFeatures
from ssdp_core.engine import InMemoryEngine
from ssdp_core.exact_sums import Lattice
from ssdp_core.features import CsrFeatures, DenseFeatures, PublicRows
from ssdp_core.losses import LogisticLoss, MultinomialLoss
from ssdp_core.noise import NoiseSource
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.problems import LinearErm, PrivateTarget, Problem, PublicTarget
from ssdp_core.queries import MarginalQuery, TabulatedQuery

SECRET = 7719  # a private code that no message may show


def rows(n=3, **columns):
    return PublicRows(num_rows=n, features=DenseFeatures(np.ones((n, 2))), columns=dict(columns))


def problem(**changes):
    fields = {
        "name": "p",
        "loss": LogisticLoss(),
        "target": PublicTarget(column="t"),
        "radius": 1.0,
    }
    return Problem(**{**fields, **changes})


ONE_HOT = PrivateFeatures.from_matrix(np.eye(3))

BAD = {
    "codes outside the domain": (
        lambda: InMemoryEngine(rows(), [0, 1, SECRET], num_codes=3),
        r"private codes must lie in 0\.\.2, the declared domain",
    ),
    "negative codes": (
        lambda: InMemoryEngine(rows(), [0, 1, -SECRET], num_codes=3),
        r"private codes must lie in 0\.\.2",
    ),
    "codes of the wrong shape": (
        lambda: InMemoryEngine(rows(), [[0, 1, SECRET]], num_codes=3),
        r"one code per row: expected shape \(3,\), got \(1, 3\)",
    ),
    "too few codes": (
        lambda: InMemoryEngine(rows(), [0, SECRET], num_codes=3),
        r"expected shape \(3,\), got \(2,\)",
    ),
    "codes that are not integers": (
        lambda: InMemoryEngine(rows(), [0.0, 1.0, float(SECRET)], num_codes=3),
        "private codes must be integers, got an array of float64",
    ),
    "codes with NaN": (
        lambda: InMemoryEngine(rows(), [0.0, np.nan, float(SECRET)], num_codes=3),
        "private codes must be integers",
    ),
    "one code only": (
        lambda: InMemoryEngine(rows(), [0, 0, 0], num_codes=1),
        "num_codes must be a whole number of at least 2, got 1",
    ),
    "a domain with one value": (
        lambda: PrivateDomain(columns=(CategoricalColumn(name="c", values=("a",)),)),
        "at least 2",
    ),
    "no rows": (lambda: rows(0), "num_rows must be a whole number of at least 1, got 0"),
    "features with NaN": (
        lambda: DenseFeatures([[1.0, np.nan]]),
        "features must hold finite numbers only",
    ),
    "features of the wrong shape": (
        lambda: DenseFeatures([1.0, 2.0]),
        r"features must have 2 dimension\(s\), got shape \(2,\)",
    ),
    "features that are not numbers": (
        lambda: DenseFeatures([["x", "y"]]),
        "features must be an array of numbers",
    ),
    "features with other rows": (
        lambda: PublicRows(num_rows=4, features=DenseFeatures(np.ones((3, 2)))),
        "features must have 4 rows, got 3",
    ),
    "a column of the wrong length": (
        lambda: rows(t=np.zeros(5)),
        r"column 't' must have shape \(3,\), got \(5,\)",
    ),
    "an unknown column": (
        lambda: rows(a=np.zeros(3), b=np.zeros(3)).column("c"),
        "there is no public column 'c'; known columns: a, b",
    ),
    "sparse columns out of range": (
        lambda: CsrFeatures([1.0], [5], [0, 1], 3),
        r"indices must lie in 0\.\.2",
    ),
    "a sparse column twice in a row": (
        lambda: CsrFeatures([1.0, 1.0], [1, 1], [0, 2], 3),
        "sort them and add up duplicates",
    ),
    "falling row pointers": (
        lambda: CsrFeatures([1.0], [0], [0, 2, 1], 3),
        "indptr must start at 0 and never fall",
    ),
    "row pointers that do not fit": (
        lambda: CsrFeatures([1.0], [0], [0, 2], 3),
        r"must both have indptr\[-1\] = 2 entries, got 1 and 1",
    ),
    "radius 0": (
        lambda: problem(radius=0.0),
        r"radius must be a positive finite number, got 0\.0",
    ),
    "negative l2": (
        lambda: problem(l2=-1.0),
        r"l2 must be a non-negative finite number, got -1\.0",
    ),
    "a target that is no label": (
        lambda: LinearErm.from_rows(problem(), rows(t=np.array([0.0, 1.0, 2.0])), ONE_HOT),
        "t must hold only 0 and 1 to be a logistic target",
    ),
    "a private target of the wrong size": (
        lambda: LinearErm.from_rows(
            problem(target=PrivateTarget(values=np.zeros(2))), rows(), ONE_HOT
        ),
        "needs one declared value for each of the 3 codes",
    ),
    "a class outside the loss": (
        lambda: LinearErm.from_rows(
            problem(loss=MultinomialLoss(num_classes=2)), rows(t=np.array([0, 1, 2])), ONE_HOT
        ),
        "t",
    ),
    "no features": (
        lambda: LinearErm.from_rows(problem(), PublicRows(num_rows=2), ONE_HOT),
        "needs public features; the rows have none",
    ),
    "all features zero": (
        lambda: LinearErm(
            problem=problem(),
            num_public=2,
            private_features=PrivateFeatures.from_matrix(np.zeros((3, 1))),
            feature_norm=0.0,
            target_bound=1.0,
        ),
        "all features are zero",
    ),
    "epsilon 0": (lambda: rho_from_epsilon(0.0, 1e-6), "epsilon must be"),
    "negative epsilon": (lambda: rho_from_epsilon(-1.0, 1e-6), "epsilon must be .*got -1"),
    "epsilon NaN": (lambda: rho_from_epsilon(math.nan, 1e-6), "epsilon must be"),
    "delta 0": (lambda: rho_from_epsilon(1.0, 0.0), "delta must be"),
    "delta of one half": (lambda: rho_from_epsilon(1.0, 0.5), "delta must be .*got 0.5"),
    "a negative budget": (lambda: ZcdpFilter(-1.0), "rho_budget must be"),
    "parameters without updates": (
        lambda: PvmwParameters(num_rows=5, rho=1.0, tau=0.1, max_updates=0, eta=0.1),
        "max_updates must be a whole number of at least 1, got 0",
    ),
    "a seed that is no number": (lambda: NoiseSource.seeded("x"), "seed must be a whole number"),
    "a key of the wrong length": (
        lambda: NoiseSource(b"short", is_private=True),
        "key must be 32 bytes, got 5",
    ),
    "a negative prior": (
        lambda: beliefs.prior_beliefs(2, [0.5, -0.5]),
        "prior must be non-negative with a positive sum",
    ),
    "a prior of the wrong shape": (
        lambda: beliefs.prior_beliefs(3, np.ones((2, 4))),
        r"prior must have shape \(k,\) or \(3, k\)",
    ),
    "a prior of another domain": (
        lambda: InMemoryEngine(rows(), [0, 1, 2], num_codes=3, prior=[0.5, 0.5]),
        "prior must have 3 entries per row",
    ),
    "a table with one code": (
        lambda: TabulatedQuery(table=[[1.0]]),
        "table must have at least 2 codes",
    ),
    "a table of zeros": (
        lambda: TabulatedQuery(table=[0.0, 0.0]),
        "table must not be all zero",
    ),
    "groups without a column": (
        lambda: TabulatedQuery(table=np.ones((2, 3))),
        "table has 2 groups: name the group_column",
    ),
    "groups out of range": (
        lambda: TabulatedQuery(table=np.ones((2, 3)), group_column="g").evaluate(
            rows(g=np.array([0, 1, 2]))
        ),
        r"group column 'g' must hold numbers in 0\.\.1",
    ),
    "groups that are not integers": (
        lambda: TabulatedQuery(table=np.ones((2, 3)), group_column="g").evaluate(
            rows(g=np.array([0.0, 1.0, 1.0]))
        ),
        "group column 'g' must hold integers, got float64",
    ),
    "one cell": (
        lambda: MarginalQuery(num_codes=3, cells=[0, 0, 0]),
        "cells must be at least 2 different ones",
    ),
    "cells of the wrong number": (
        lambda: MarginalQuery(num_codes=3, cells=[0, 1]),
        "for each of 3 codes",
    ),
    "a lattice for nothing": (lambda: Lattice.for_sum(0, 1.0), "num_rows must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_one_clear_sentence(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    text = str(caught.value)
    assert str(SECRET) not in text
    assert "\n" not in text
    assert len(text) < 300


def test_weights_outside_the_ball_or_of_the_wrong_size():
    rng = np.random.default_rng(0)
    table = make_table(rng, loss=LogisticLoss())
    erm = make_erm(table, LogisticLoss(), rng, radius=1.0)
    with pytest.raises(ValueError, match="weights must have 9 entries, got 3"):
        erm.query(np.zeros(3))
    with pytest.raises(ValueError, match="must lie in the ball of radius 1"):
        erm.query(np.ones(9))
    with pytest.raises(ValueError, match="weights must hold finite numbers"):
        erm.query(np.full(9, np.nan))


def test_rows_of_another_width_are_refused():
    rng = np.random.default_rng(0)
    table = make_table(rng, loss=LogisticLoss(), num_features=5)
    other = make_table(rng, loss=LogisticLoss(), num_features=4)
    query = make_erm(table, LogisticLoss(), rng).query(np.zeros(9))
    with pytest.raises(ValueError, match="weights expect 5 public features, the rows have 4"):
        query.evaluate(other.rows)
    with pytest.raises(ValueError, match="needs public features; these rows have none"):
        query.evaluate(PublicRows(num_rows=4))
