"""Algorithm 2: draw for draw against a literal transcription, and the paper's claims about it."""

import itertools
import math
from fractions import Fraction

import literal_paper
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdp_core import mechanisms
from ssdp_core.accounting import ZcdpFilter
from ssdp_core.curator import Curator
from ssdp_core.engine import InMemoryEngine
from ssdp_core.errors import BudgetExhaustedError, OutOfUpdatesError
from ssdp_core.features import PublicRows
from ssdp_core.noise import NoiseSource
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.pvmw import PrivateVectorAnswerer
from ssdp_core.queries import TabulatedQuery, mean_query
from ssdp_core.transcript import InMemoryTranscript

N, K, D = 24, 3, 2


def make_queries(rng, count):
    """Tabulated queries with a group per row and norm 1, and the same as arrays f[i, y, :]."""
    tables = rng.normal(size=(count, N, K, D))
    tables /= np.linalg.norm(tables, axis=-1, keepdims=True)
    return [TabulatedQuery(table=table, group_column="row") for table in tables], list(tables)


def make_engine(codes, num_codes=K):
    rows = PublicRows(num_rows=len(codes), columns={"row": np.arange(len(codes), dtype=np.int32)})
    return InMemoryEngine(rows, codes, num_codes=num_codes, num_threads=1)


def start(engine, parameters, *, seed=0, budget=None, tight=False):
    transcript = InMemoryTranscript()
    curator = Curator(
        engine,
        budget=ZcdpFilter(parameters.rho if budget is None else budget),
        noise=NoiseSource.seeded(seed),
        transcript=transcript,
    )
    return PrivateVectorAnswerer(engine, curator, parameters, tight_charges=tight), transcript


def record_noise(patch, parameters):
    """Records every draw in the paper's units, sorted by the role that its scale shows."""
    record = {"chi": [], "nu": [], "z": [], "xi": []}
    draw_laplace = mechanisms.discrete_laplace
    draw_gaussian = mechanisms.discrete_gaussian_vector
    unit = Fraction(1 << 20) / Fraction(parameters.epsilon_prime)

    def laplace(stream, scale):
        noise = draw_laplace(stream, scale)
        role = {Fraction(1): "xi", Fraction(2): "chi", Fraction(4): "nu"}[scale / unit]
        record[role].append(noise / (1 << 20) * 2.0 / parameters.num_rows)
        return noise

    def gaussian(stream, stddev, size):
        noise = draw_gaussian(stream, stddev, size)
        record["z"].append(noise * parameters.measurement_stddev / stddev)
        return noise

    patch.setattr(mechanisms, "discrete_laplace", laplace)
    patch.setattr(mechanisms, "discrete_gaussian_vector", gaussian)
    return record


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    tau=st.floats(0.05, 0.6),
    eta=st.floats(0.1, 1.0),
    truncation=st.floats(0.3, 3.0),
    max_updates=st.integers(2, 8),
    rho=st.floats(5.0, 500.0),
    zeta=st.floats(0.2, 0.8),
)
def test_draw_for_draw_equal_to_the_literal_transcription(
    seed, tau, eta, truncation, max_updates, rho, zeta
):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, K, N)
    queries, tables = make_queries(rng, 6)
    parameters = PvmwParameters(
        num_rows=N,
        rho=rho,
        tau=tau,
        max_updates=max_updates,
        eta=eta,
        truncation=truncation,
        zeta=zeta,
    )
    engine = make_engine(codes)
    answerer, transcript = start(engine, parameters, seed=seed)
    answers, failed = [], False
    with pytest.MonkeyPatch.context() as patch:
        record = record_noise(patch, parameters)
        try:
            for query in queries:
                answers.append(answerer.answer(query).value)
        except OutOfUpdatesError:
            failed = True

    literal = literal_paper.pvmw(
        tables,
        codes,
        K,
        tau,
        max_updates,
        eta,
        truncation,
        literal_paper.Noise(
            # The paper draws one more threshold noise at the end, and uses it for nothing.
            chi=itertools.chain(record["chi"], [math.nan]),
            nu=iter(record["nu"]),
            z=iter(record["z"]),
            xi=iter(record["xi"]),
        ),
    )

    assert [r.values["above"] for r in transcript.releases if r.kind == "ask"] == literal.above
    assert failed == literal.failed
    assert len(answers) == len(literal.answers)
    for ours, theirs in zip(answers, literal.answers, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    np.testing.assert_allclose(engine.beliefs, literal.p, atol=5e-4)


def test_a_batch_gives_the_same_answers_as_one_by_one():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, K, N)
    queries, _ = make_queries(rng, 5)
    parameters = PvmwParameters(num_rows=N, rho=200.0, tau=0.2, max_updates=20, eta=0.5)
    one_by_one, _ = start(make_engine(codes), parameters, seed=3)
    batch, _ = start(make_engine(codes), parameters, seed=3)
    singles = [one_by_one.answer(query) for query in queries]
    together = batch.answer_all(queries)
    assert one_by_one.num_updates == batch.num_updates > 0
    for single, one in zip(singles, together, strict=True):
        assert (single.value == one.value).all()
        assert single.num_updates == one.num_updates


def failing_run(parameters, *, tight=False, budget=None):
    """Codes all 0 and a query that never fits: every test is above until updates run out."""
    engine = make_engine(np.zeros(N, dtype=int))
    answerer, transcript = start(engine, parameters, tight=tight, budget=budget)
    query = mean_query([1.0, -1.0, -1.0])
    with pytest.raises(OutOfUpdatesError, match="FAIL: all 5 belief updates are used"):
        answerer.answer(query)
    return answerer, transcript, query


def test_fail_comes_after_l_minus_one_updates_and_charges_add_up():
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.01, max_updates=6, eta=0.01)
    answerer, transcript, query = failing_run(parameters)
    charges = [r.charge for r in transcript.releases if r.charge is not None]
    per_update = 50.0 / 6
    assert sum(c.rho for c in charges) == pytest.approx(5 * per_update, rel=1e-12)
    for update in range(5):
        share = [c for c in charges if c.label == f"update {update + 1}"]
        assert [c.mechanism for c in share] == [
            "above_threshold",
            "gaussian_measurement",
            "laplace_norm",
        ]
        assert sum(c.rho for c in share) == pytest.approx(per_update, rel=1e-12)
    # All L updates of the paper's proof would cost exactly rho.
    assert parameters.paper_charge_per_update.total * 6 == pytest.approx(50.0, rel=1e-12)
    with pytest.raises(OutOfUpdatesError, match="answers so far stay valid"):
        answerer.answer(query)


def test_tight_charges_differ_by_the_known_factor_only():
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.01, max_updates=6, eta=0.01)
    paper = failing_run(parameters)[1]
    tight = failing_run(parameters, tight=True)[1]
    for one, two in zip(paper.releases, tight.releases, strict=True):
        ratio = 4.0 if one.kind == "measure" else 1.0
        if one.charge is not None:
            assert one.charge.rho / two.charge.rho == pytest.approx(ratio, rel=1e-5)
        # The noise, and so every released number, is the same.
        assert str(one.values) == str(two.values)


def test_noise_scales_are_the_papers(monkeypatch):
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.01, max_updates=6, eta=0.01, zeta=0.3)
    scales = {"laplace": [], "gaussian": [], "sensitivity": []}
    laplace, gaussian = mechanisms.discrete_laplace, mechanisms.discrete_gaussian_vector
    steps = mechanisms._steps
    monkeypatch.setattr(
        mechanisms,
        "discrete_laplace",
        lambda s, scale: scales["laplace"].append(scale) or laplace(s, scale),
    )
    monkeypatch.setattr(
        mechanisms,
        "discrete_gaussian_vector",
        lambda s, sd, size: scales["gaussian"].append(sd) or gaussian(s, sd, size),
    )
    monkeypatch.setattr(
        mechanisms,
        "_steps",
        lambda v, sensitivity: scales["sensitivity"].append(sensitivity) or steps(v, sensitivity),
    )
    _, transcript, _ = failing_run(parameters)
    step = max(scales["sensitivity"]) / (1 << 20) / N  # one integer step of noise, as a mean
    real = sorted({float(scale) * step for scale in scales["laplace"]})
    expected = [
        parameters.norm_noise_scale,
        parameters.threshold_noise_scale,
        parameters.query_noise_scale,
    ]
    assert real == pytest.approx(expected, rel=1e-5)
    assert all(drawn >= nominal for drawn, nominal in zip(real, expected, strict=True))
    measured = [r.values["noise_stddev"] for r in transcript.releases if r.kind == "measure"]
    assert set(measured) == {parameters.measurement_stddev}
    lattice_step = parameters.measurement_stddev * N / scales["gaussian"][0]
    assert math.log2(lattice_step) == round(math.log2(lattice_step))


def test_a_small_budget_refuses_before_releasing():
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.01, max_updates=6, eta=0.01)
    engine = make_engine(np.zeros(N, dtype=int))
    answerer, transcript = start(engine, parameters, budget=50.0 / 6 * 1.5)
    with pytest.raises(BudgetExhaustedError, match="nothing was released"):
        answerer.answer(mean_query([1.0, -1.0, -1.0]))
    assert sum(r.charge.rho for r in transcript.releases if r.charge) <= 50.0 / 6 * 1.5
    assert transcript.releases[-1].kind in ("ask", "open_threshold", "measure")


def test_without_noise_every_answer_is_within_tau():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, K, N)
    queries, tables = make_queries(rng, 20)
    parameters = PvmwParameters(num_rows=N, rho=math.inf, tau=0.05, max_updates=5000, eta=0.3)
    answerer, _ = start(make_engine(codes), parameters)
    for query, table in zip(queries, tables, strict=True):
        error = np.linalg.norm(
            answerer.answer(query).value - literal_paper.value_on_data(table, codes)
        )
        assert error < 0.05 + 1e-6
    assert answerer.num_updates > 0


@pytest.mark.parametrize(("num_codes", "eta"), [(2, 0.03), (8, 0.03), (50, 0.05)])
def test_updates_stay_below_the_papers_bound(num_codes, eta):
    """Theorem: with tau = 16 eta fewer than ln k / eta^2 updates happen, for any queries."""
    rng = np.random.default_rng(num_codes)
    codes = rng.integers(0, 2, 40)
    rows = PublicRows(num_rows=40)
    engine = InMemoryEngine(rows, codes, num_codes=num_codes, num_threads=1)
    bound = math.log(num_codes) / eta**2
    parameters = PvmwParameters(
        num_rows=40, rho=math.inf, tau=16 * eta, max_updates=int(bound) + 2, eta=eta
    )
    answerer, _ = start(engine, parameters)
    for _ in range(10):  # random signs that favour the codes that occur
        signs = rng.choice([-1.0, 1.0], size=num_codes)
        signs[:2] = 1.0
        signs[2:] = np.where(rng.random(num_codes - 2) < 0.9, -1.0, signs[2:])
        if num_codes == 2:
            signs = np.array([1.0, -1.0]) * (1 if codes.mean() < 0.5 else -1)
        answerer.answer(mean_query(signs))
    assert answerer.num_updates < bound
    assert answerer.num_updates > 0 or num_codes == 2


def condition_holds(f, codes, p, v, iota, eta, c):
    """The six items of the paper's Condition for the update analysis."""
    n = len(codes)
    on_data, on_beliefs = (
        literal_paper.value_on_data(f, codes),
        literal_paper.value_on_beliefs(f, p),
    )
    distance = np.linalg.norm(on_data - on_beliefs)
    difference = v - on_beliefs
    phi = difference / iota
    products = f @ phi
    with np.errstate(divide="ignore"):
        shrink = np.where(products == 0, 1.0, np.minimum(1.0, c / np.abs(products)))
    clipped = f * shrink[..., None]
    clip_data = clipped[np.arange(n), codes].mean(axis=0) - on_data
    clip_beliefs = (p[..., None] * clipped).sum(axis=(0, 1)) / n - on_beliefs
    return (
        eta <= 1 / c
        and distance >= (2 * c**2 + 7) * eta
        and (on_data - v) @ (on_beliefs - on_data) <= eta * distance
        and abs(difference @ clip_data) <= eta**2
        and abs(difference @ clip_beliefs) <= eta**2
        and eta <= iota <= 2 * distance
    )


def test_potential_falls_by_eta_squared_whenever_the_condition_holds():
    rng = np.random.default_rng(0)
    met = 0
    for _ in range(300):
        codes = rng.integers(0, 2, N)
        table = rng.normal(size=(1, K, D))
        table[0, 0] = table[0, 1] + 0.1 * rng.normal(size=D)  # the codes that occur lie together
        table /= np.linalg.norm(table, axis=-1, keepdims=True)
        f = np.broadcast_to(table, (N, K, D))
        eta, c = rng.uniform(0.002, 0.03), 3.0
        engine = make_engine(codes)
        p = engine.beliefs.astype(float)
        on_data = literal_paper.value_on_data(f, codes)
        distance = np.linalg.norm(on_data - literal_paper.value_on_beliefs(f, p))
        v = on_data + rng.normal(size=D) * rng.uniform(0, 0.2)
        iota = distance * rng.uniform(0.3, 2.2)
        if not condition_holds(f, codes, p, v, iota, eta, c):
            continue
        met += 1
        direction = (v - literal_paper.value_on_beliefs(f, p)) / iota
        engine.update(TabulatedQuery(table=table), direction, step=eta, truncation=c)
        before = -np.log(p[np.arange(N), codes]).mean()
        after = -np.log(engine.beliefs[np.arange(N), codes].astype(float)).mean()
        assert before - after >= eta**2 - 1e-7
    assert met >= 50


@pytest.mark.parametrize(("sigma", "dimension"), [(0.15, 2), (0.25, 5), (0.4, 3)])
def test_clipping_lemma_by_simulation(sigma, dimension):
    """Pr[|<Z, E clip(U) - mu>| > 2 exp(-0.1/s^2)] < 2 exp(-0.1/s^2), for |mu_Z| <= 2."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(50, dimension))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[0] = np.eye(dimension)[0]
    z = 2.0 * np.eye(dimension)[0] + sigma * rng.normal(size=(20_000, dimension))
    products = z @ points.T
    gap = np.abs((np.clip(products, -3.0, 3.0) - products).mean(axis=1))
    level = 2 * math.exp(-0.1 / sigma**2)
    assert (gap > level).mean() < level


def test_queries_above_norm_one_and_foreign_parameters_are_refused():
    parameters = PvmwParameters(num_rows=N, rho=50.0, tau=0.1, max_updates=6, eta=0.1)
    engine = make_engine(np.zeros(N, dtype=int))
    answerer, _ = start(engine, parameters)
    with pytest.raises(ValueError, match="queries must have norm at most 1, got 3"):
        answerer.answer(mean_query([3.0, 0.0, 0.0]))
    other = PvmwParameters(num_rows=N + 1, rho=50.0, tau=0.1, max_updates=6, eta=0.1)
    with pytest.raises(ValueError, match="parameters are for 25 rows, the table has 24"):
        start(engine, other)
