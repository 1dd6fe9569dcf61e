"""The curator: what it charges, records, replays, refuses and hides."""

import contextlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
from instances import make_erm, make_table, random_weights

from ssdp_core.accounting import ZcdpFilter, gaussian_rho
from ssdp_core.curator import Curator
from ssdp_core.engine import InMemoryEngine
from ssdp_core.errors import BudgetExhaustedError, OutOfUpdatesError, TranscriptMismatchError
from ssdp_core.features import PublicRows
from ssdp_core.losses import LogisticLoss
from ssdp_core.noise import NoiseSource
from ssdp_core.paper_parameters import PvmwParameters
from ssdp_core.pvmw import PrivateVectorAnswerer
from ssdp_core.queries import MarginalQuery, mean_query
from ssdp_core.transcript import InMemoryTranscript

N = 500


class CountingEngine(InMemoryEngine):
    private_passes = 0
    public_passes = 0

    def evaluate_private(self, queries):
        self.private_passes += 1
        return super().evaluate_private(queries)

    def evaluate_public(self, queries):
        self.public_passes += 1
        return super().evaluate_public(queries)


def make_curator(rho=1.0, seed=0, transcript=None, rows_per_unit=1):
    codes = np.random.default_rng(0).integers(0, 4, N)
    engine = CountingEngine(PublicRows(num_rows=N), codes, num_codes=4, num_threads=1)
    curator = Curator(
        engine,
        budget=ZcdpFilter(rho),
        noise=NoiseSource.seeded(seed),
        transcript=transcript,
        rows_per_unit=rows_per_unit,
    )
    return curator, engine, codes


def test_histogram_with_and_without_noise():
    curator, _, codes = make_curator(rho=math.inf)
    (question,) = curator.pose([MarginalQuery(num_codes=4)])
    exact = curator.measure(
        question, noise_stddev=0.0, sensitivity=question.reported_sensitivity, label="h"
    )
    np.testing.assert_allclose(exact, np.bincount(codes) / N, rtol=1e-12)
    assert not curator.is_private

    curator, _, _ = make_curator(rho=1.0)
    (question,) = curator.pose([MarginalQuery(num_codes=4)])
    stddev = question.reported_sensitivity / N / math.sqrt(2 * 0.5)
    noisy = curator.measure(
        question, noise_stddev=stddev, sensitivity=question.reported_sensitivity, label="h"
    )
    assert 0 < np.abs(noisy - exact).max() < 6 * stddev
    assert curator.budget.spent == pytest.approx(0.5, rel=1e-6)
    assert question.reported_sensitivity == pytest.approx(math.sqrt(2), rel=1e-5)


def test_measure_charges_the_tight_cost_and_never_less():
    curator, _, _ = make_curator()
    (question,) = curator.pose([mean_query([0.0, 0.2, 0.5, 1.0])])
    sensitivity = question.reported_sensitivity
    curator.measure(question, noise_stddev=0.01, sensitivity=sensitivity, label="a")
    assert curator.budget.charges[0].rho == pytest.approx(
        gaussian_rho(sensitivity, 0.01 * N), rel=1e-12
    )
    with pytest.raises(ValueError, match="charge_rho must be at least the measurement's cost"):
        curator.measure(
            question, noise_stddev=0.01, sensitivity=sensitivity, label="b", charge_rho=1e-6
        )
    assert len(curator.budget.charges) == 1


def test_a_made_up_sensitivity_is_refused():
    curator, _, _ = make_curator()
    (question,) = curator.pose([mean_query([0.0, 0.2, 0.5, 1.0])])
    half = question.reported_sensitivity / 2
    instance = curator.open_threshold(epsilon=0.1, label="t")
    void = "any other number would void the guarantee"
    with pytest.raises(ValueError, match=void):
        curator.ask(instance, question, threshold=0.1, sensitivity=half)
    with pytest.raises(ValueError, match=void):
        curator.norm(question, epsilon=0.1, sensitivity=half, label="n")
    with pytest.raises(ValueError, match=void):
        curator.measure(question, noise_stddev=0.1, sensitivity=half, label="m")


def test_a_privacy_unit_multiplies_the_sensitivity():
    one, _, _ = make_curator()
    three, _, _ = make_curator(rows_per_unit=3)
    query = mean_query([0.0, 0.2, 0.5, 1.0])
    (single,), (unit,) = one.pose([query]), three.pose([query])
    assert unit.reported_sensitivity == 3 * single.reported_sensitivity
    assert unit.worst_case_sensitivity == 3 * single.worst_case_sensitivity


def test_over_budget_releases_and_records_nothing():
    transcript = InMemoryTranscript()
    curator, _, _ = make_curator(rho=1e-4, transcript=transcript)
    (question,) = curator.pose([mean_query([0.0, 0.2, 0.5, 1.0])])
    with pytest.raises(BudgetExhaustedError, match=r"needs rho = .* nothing was released"):
        curator.measure(
            question, noise_stddev=1e-4, sensitivity=question.reported_sensitivity, label="m"
        )
    with pytest.raises(BudgetExhaustedError, match="open_threshold"):
        curator.open_threshold(epsilon=1.0, label="t")
    assert transcript.releases == []
    assert curator.budget.spent == 0.0


def test_a_closed_threshold_stays_closed():
    curator, _, _ = make_curator(rho=math.inf)
    (question,) = curator.pose([mean_query([0.0, 0.2, 0.5, 1.0])])
    instance = curator.open_threshold(epsilon=math.inf, label="t")
    sensitivity = question.reported_sensitivity
    assert not curator.ask(instance, question, threshold=9.0, sensitivity=sensitivity).above
    answer = curator.ask(instance, question, threshold=-1.0, sensitivity=sensitivity)
    assert answer.above
    assert answer.gap >= 1.0
    with pytest.raises(ValueError, match="is closed; open another"):
        curator.ask(instance, question, threshold=-1.0, sensitivity=sensitivity)


def run_pvmw(transcript, stop_after=None):
    """A whole run of Algorithm 2; optionally the process 'dies' after some releases."""

    class Dying(InMemoryTranscript):
        def append(self, release):
            if stop_after is not None and len(self.releases) >= stop_after:
                raise KeyboardInterrupt
            super().append(release)

    log = Dying()
    log.releases = list(transcript.releases)
    curator, engine, _ = make_curator(rho=5.0, seed=11, transcript=log)
    parameters = PvmwParameters(num_rows=N, rho=5.0, tau=0.02, max_updates=8, eta=0.6)
    answerer = PrivateVectorAnswerer(engine, curator, parameters)
    rng = np.random.default_rng(3)
    answers = []
    with contextlib.suppress(KeyboardInterrupt, OutOfUpdatesError):
        for _ in range(6):
            answers.append(answerer.answer(mean_query(rng.uniform(-1, 1, 4))).value)
    return log, curator, engine, answers


def test_a_run_cut_off_anywhere_replays_to_the_same_transcript():
    """Resumption: nothing is charged twice, no second noise is drawn, the answers are the same."""
    full, curator, engine, answers = run_pvmw(InMemoryTranscript())
    assert len(full.releases) > 12
    for stop_after in range(len(full.releases)):
        cut, _, _, _ = run_pvmw(InMemoryTranscript(), stop_after=stop_after)
        assert len(cut.releases) == stop_after
        resumed, resumed_curator, resumed_engine, resumed_answers = run_pvmw(cut)
        assert repr(resumed.releases) == repr(full.releases)
        assert resumed_curator.budget.spent == curator.budget.spent
        assert (resumed_engine.beliefs == engine.beliefs).all()
        for one, two in zip(answers, resumed_answers, strict=True):
            assert (one == two).all()
    # A full replay never touches private data.
    _, _, replayed, _ = run_pvmw(full)
    assert replayed.private_passes == 0
    assert engine.private_passes == 6


def test_a_transcript_of_another_run_is_refused():
    full, _, _, _ = run_pvmw(InMemoryTranscript())
    curator, _, _ = make_curator(rho=5.0, transcript=full)
    (question,) = curator.pose([mean_query([0.0, 0.2, 0.5, 1.0])])
    with pytest.raises(TranscriptMismatchError, match="it belongs to another run"):
        curator.norm(
            question, epsilon=0.1, sensitivity=question.reported_sensitivity, label="other"
        )


def test_nothing_printable_shows_an_exact_sum():
    rng = np.random.default_rng(0)
    table = make_table(rng, loss=LogisticLoss())
    erm = make_erm(table, LogisticLoss(), rng)
    engine = InMemoryEngine(table.rows, table.codes, num_codes=4)
    curator = Curator(engine, budget=ZcdpFilter(1.0), noise=NoiseSource.secure())
    (question,) = curator.pose([erm.query(random_weights(erm, rng))])
    exact = engine.evaluate_private([question.query])[0].exact.open_in_curator()
    shown = repr(question) + repr(curator) + repr(question._evaluation) + repr(engine)
    shown += repr(curator.open_threshold(epsilon=0.1, label="t"))
    assert not any(str(int(unit)) in shown for unit in exact)
    assert "hidden" in repr(question._evaluation)


def test_exact_sums_are_opened_in_the_curator_only(project_root: Path):
    offenders = [
        str(path.relative_to(project_root))
        for folder in ("ssdp_core", "pipeline")
        for path in (project_root / folder).rglob("*.py")
        if path.name != "curator.py"
        and re.search(r"\.open_in_curator\(|\._units\b", path.read_text())
        and path.name != "engine.py"
    ]
    assert offenders == []
    engine_source = (project_root / "ssdp_core" / "engine.py").read_text()
    assert engine_source.count("open_in_curator(") == 1  # its definition


def test_a_threshold_is_reopened_with_its_own_epsilon_only():
    full, _, _, _ = run_pvmw(InMemoryTranscript())
    curator, _, _ = make_curator(rho=5.0, transcript=full)
    epsilon = math.sqrt(2 * full.releases[0].charge.rho)
    curator.reopen_threshold(
        0,
        epsilon=PvmwParameters(num_rows=N, rho=5.0, tau=0.02, max_updates=8, eta=0.6).epsilon_prime,
    )
    with pytest.raises(TranscriptMismatchError, match="for another epsilon"):
        curator.reopen_threshold(0, epsilon=2 * epsilon)
    with pytest.raises(TranscriptMismatchError, match="did not open a threshold"):
        curator.reopen_threshold(1, epsilon=epsilon)


def test_measurements_of_a_unit_cost_the_same_with_more_noise():
    """r rows per unit: r times the sensitivity, r times the noise, the same charge."""
    parameters = PvmwParameters(num_rows=N, rho=5.0, tau=0.01, max_updates=3, eta=0.1)
    costs, deviations = [], []
    for rows_per_unit in (1, 4):
        codes = np.zeros(N, dtype=int)
        engine = InMemoryEngine(PublicRows(num_rows=N), codes, num_codes=4)
        transcript = InMemoryTranscript()
        curator = Curator(
            engine,
            budget=ZcdpFilter(5.0),
            noise=NoiseSource.seeded(0),
            transcript=transcript,
            rows_per_unit=rows_per_unit,
        )
        answerer = PrivateVectorAnswerer(engine, curator, parameters, tight_charges=True)
        with contextlib.suppress(OutOfUpdatesError):
            answerer.answer(mean_query([1.0, -1.0, -1.0, -1.0]))
        release = next(r for r in transcript.releases if r.kind == "measure")
        costs.append(release.charge.rho)
        deviations.append(release.values["noise_stddev"])
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    assert deviations[1] == 4 * deviations[0]
