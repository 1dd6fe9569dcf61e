"""Exactness and distribution of the noise.

Every statistical test is seeded, so it always gives the same answer. The p-value threshold beside
an assertion is the probability that the test would fail for a fresh seed although the code is
right.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import math
import os
import pickle
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from ssdp_core.noise import (
    NoiseSource,
    WordStream,
    discrete_gaussian,
    discrete_gaussian_vector,
    discrete_laplace,
    gaussian_kernel,
    samplers,
)

WORD = 1 << 64
STDDEVS = (0.3, 0.5, 1.0, 1.4, 4.2, 1e3, 2.0**20 + 0.5, 3.0e9, 2.0**40, 2.0**56)
LAPLACE_SCALES = (
    Fraction(1, 2),
    Fraction(1),
    Fraction(37, 10),
    Fraction(4 << 20),
    Fraction(10**9, 3),
)
ABOVE_EVERY_WORD = WORD - 1  # a uniform that is never below exp(-gamma) for gamma > 1e-19
BELOW_MOST = 0

gammas = st.fractions(min_value=Fraction(1, 10**6), max_value=200, max_denominator=10**12)


def stream_of(seed: int, label: str = "question") -> WordStream:
    return NoiseSource.seeded(seed).stream(label)


def scripted_stream(words: list[int], seed: int = 0) -> WordStream:
    """A stream that starts with the given words."""
    stream = stream_of(seed, "after the script")
    stream.give_back(np.array(words, dtype=np.uint64))
    return stream


def exact_exp(gamma: Fraction) -> mpmath.mpf:
    """exp(-gamma) at the working precision."""
    return mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator)


def boundary_word(gamma: Fraction) -> int:
    """The only 64-bit word that does not settle whether a uniform real is below exp(-gamma)."""
    with mpmath.workdps(80):
        return int(mpmath.floor(exact_exp(gamma) * WORD))


# --- exactness


@pytest.mark.parametrize("stddev", STDDEVS)
def test_vector_sampler_equals_the_scalar_sampler_draw_for_draw(stddev):
    vector_stream, scalar_stream = stream_of(1), stream_of(1)
    vector = discrete_gaussian_vector(vector_stream, stddev, 500)
    assert vector.tolist() == [discrete_gaussian(scalar_stream, stddev) for _ in range(500)]
    assert vector_stream.word() == scalar_stream.word()  # and no word is lost or used twice


def test_a_long_vector_equals_its_parts():
    # Longer than one batch of words (65,536 variates), against many short vectors.
    whole_stream, part_stream = stream_of(2), stream_of(2)
    whole = discrete_gaussian_vector(whole_stream, 4.2, 70_000)
    parts = [discrete_gaussian_vector(part_stream, 4.2, 7_000) for _ in range(10)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert whole_stream.word() == part_stream.word()


def gaussian_acceptance_gamma(magnitude: int, stddev: float) -> Fraction:
    unit = 1 << samplers._unit_bits(stddev)
    return (magnitude / Fraction(stddev) - Fraction(stddev) / unit) ** 2 / 2


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([3, boundary_word(Fraction(3, 4))], id="keep the uniform part"),
        pytest.param([3, BELOW_MOST, boundary_word(Fraction(1))], id="one more unit"),
        pytest.param(
            [3, BELOW_MOST, ABOVE_EVERY_WORD, boundary_word(gaussian_acceptance_gamma(3, 4.2))],
            id="accept the variate",
        ),
        pytest.param([3, *[BELOW_MOST] * 71, ABOVE_EVERY_WORD, BELOW_MOST], id="far tail"),
    ],
)
def test_vector_sampler_leaves_what_doubles_cannot_decide_to_the_scalar_sampler(words, monkeypatch):
    stddev, size = 4.2, 50
    scalar_stream = scripted_stream(words)
    expected = [discrete_gaussian(scalar_stream, stddev) for _ in range(size)]
    handed_over = []

    def counting(stream: WordStream, stddev: float) -> int:
        handed_over.append(stddev)
        return discrete_gaussian(stream, stddev)

    monkeypatch.setattr(samplers, "discrete_gaussian", counting)
    vector_stream = scripted_stream(words)
    assert discrete_gaussian_vector(vector_stream, stddev, size).tolist() == expected
    assert handed_over == [stddev]
    assert vector_stream.word() == scalar_stream.word()


def test_the_largest_noise_does_not_overflow_in_the_far_tail():
    # 200 units of 2^56 exceed an int64; such a proposal is as good as always rejected.
    words = [1, *[BELOW_MOST] * 201, ABOVE_EVERY_WORD, BELOW_MOST]
    vector = discrete_gaussian_vector(scripted_stream(words), samplers.MAX_STDDEV, 20)
    stream = scripted_stream(words)
    assert vector.tolist() == [discrete_gaussian(stream, samplers.MAX_STDDEV) for _ in range(20)]


@pytest.mark.parametrize(
    ("sampler", "scale"),
    [
        *[(discrete_laplace, scale) for scale in LAPLACE_SCALES],
        *[(discrete_gaussian, stddev) for stddev in STDDEVS],
    ],
)
def test_deciding_everything_exactly_changes_no_draw(sampler, scale, monkeypatch):
    fast_stream, exact_stream = stream_of(3), stream_of(3)
    fast = [sampler(fast_stream, scale) for _ in range(100)]
    settle = samplers._less_than_exp_exactly
    exact_decisions = []

    def counting(stream: WordStream, word: int, gamma: Fraction) -> bool:
        exact_decisions.append(gamma)
        return settle(stream, word, gamma)

    # No uniform is further than 2 from a probability: doubles never decide.
    monkeypatch.setattr(samplers, "ABSOLUTE_BAND", 2.0)
    monkeypatch.setattr(samplers, "_less_than_exp_exactly", counting)
    assert [sampler(exact_stream, scale) for _ in range(100)] == fast
    assert exact_stream.word() == fast_stream.word()
    assert len(exact_decisions) >= 100


@given(gamma=gammas, digits=st.integers(20, 60))
@example(gamma=Fraction(1, 3), digits=40)
@example(gamma=Fraction(10**5), digits=40)
def test_exp_bounds_enclose_the_exponential_tightly(gamma, digits):
    low, high = samplers._exp_bounds(gamma, digits)
    with mpmath.workdps(100):
        exact = exact_exp(gamma)
        low_value = mpmath.mpf(low.numerator) / low.denominator
        high_value = mpmath.mpf(high.numerator) / high.denominator
        assert low_value < exact < high_value
        # A few units in the last digit, and gamma's own rounding times the slope.
        assert high_value - low_value <= exact * (10 + 2 * float(gamma)) * mpmath.mpf(10) ** -(
            digits - 1
        )


@given(
    gamma=st.fractions(min_value=Fraction(1, 10**6), max_value=40, max_denominator=10**9),
    step=st.sampled_from([-2, -1, 0, 1, 2]),
)
def test_the_word_next_to_the_probability_is_settled_by_further_bits(gamma, step):
    """The first 64 bits are those of exp(-gamma); the next 64 are the same or a little off."""
    with mpmath.workdps(120):
        bits = int(mpmath.floor(exact_exp(gamma) * mpmath.mpf(2) ** 192))
    first, second, third = bits >> 128, (bits >> 64) % WORD, bits % WORD
    crafted = second + step
    assume(0 <= crafted < WORD)
    assume(third > 2)
    # With step 0 the second word does not settle it either, and a third one just below does.
    stream = scripted_stream([crafted, third - 2, 1234, 5678])
    assert samplers._less_than_exp_exactly(stream, first, gamma) == (step <= 0)
    assert stream.word() == (1234 if step == 0 else third - 2)  # used no more than it needed


@given(gamma=gammas, offset=st.integers(1, 2**30))
def test_one_word_settles_everything_but_the_boundary(gamma, offset):
    boundary = boundary_word(gamma)
    stream = scripted_stream([77])
    if boundary >= offset:
        assert samplers._less_than_exp_exactly(stream, boundary - offset, gamma)
    if boundary + offset < WORD:
        assert not samplers._less_than_exp_exactly(stream, boundary + offset, gamma)
    assert stream.word() == 77


@given(
    gamma=st.fractions(min_value=Fraction(1, 10**6), max_value=60, max_denominator=10**9),
    distance=st.integers(0, 60),
    sign=st.sampled_from([-1, 1]),
)
def test_compiled_decisions_are_right_or_withheld(gamma, distance, sign):
    boundary = boundary_word(gamma)
    word = boundary + sign * (1 << distance)
    assume(0 <= word < WORD)
    probability = math.exp(-float(gamma))
    verdict = gaussian_kernel._decide(np.uint64(word), probability)
    assert verdict in (int(word < boundary), gaussian_kernel.UNDECIDED)
    if (1 << distance) > 2 * probability * 2.0**28 + 64:  # twice the band
        assert verdict != gaussian_kernel.UNDECIDED


# --- distribution


def laplace_pmf(values, scale: float):
    ratio = math.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(values)


def gaussian_pmf(values, stddev: float):
    support = np.arange(-int(40 * stddev) - 5, int(40 * stddev) + 6)
    total = np.exp(-(support**2) / (2 * stddev**2)).sum()
    return np.exp(-(np.asarray(values, dtype=float) ** 2) / (2 * stddev**2)) / total


def chi_square_p_value(draws, pmf) -> float:
    """Goodness of fit; values whose expected count is below 10 join the outermost bin."""
    reach = 0
    while draws.size * pmf(reach + 1) >= 10:
        reach += 1
    values = np.arange(-reach, reach + 1)
    expected = draws.size * pmf(values)
    expected[[0, -1]] += (draws.size - expected.sum()) / 2
    observed = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=values.size)
    return float(stats.chisquare(observed, expected).pvalue)


def assert_only_the_right_scale_fits(p_value_at) -> None:
    """``p_value_at(factor)`` is the fit of the draws to ``factor`` times their stated scale."""
    assert p_value_at(1.0) > 1e-3  # flakiness 1e-3
    assert p_value_at(2 / 3) < 1e-9
    assert p_value_at(3 / 2) < 1e-9


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(37, 10)], ids=str)
def test_small_laplace_noise_has_the_exact_distribution(scale):
    stream = stream_of(10)
    draws = np.array([discrete_laplace(stream, scale) for _ in range(20_000)])
    assert_only_the_right_scale_fits(
        lambda factor: chi_square_p_value(draws, lambda y: laplace_pmf(y, factor * float(scale)))
    )


@pytest.mark.parametrize("stddev", [0.5, 1.0, 4.2])
def test_small_gaussian_noise_has_the_exact_distribution(stddev):
    draws = discrete_gaussian_vector(stream_of(11), stddev, 100_000)
    assert_only_the_right_scale_fits(
        lambda factor: chi_square_p_value(draws, lambda y: gaussian_pmf(y, factor * stddev))
    )


@pytest.mark.parametrize("scale", [Fraction(4 << 20, 3), Fraction(10**30, 7)], ids=str)
def test_large_laplace_noise_has_the_continuous_distribution(scale):
    # A lattice of a million steps per scale is far below what 8,000 draws can resolve.
    stream = stream_of(12)
    draws = np.array([float(discrete_laplace(stream, scale) / scale) for _ in range(8_000)])
    assert_only_the_right_scale_fits(
        lambda factor: stats.kstest(draws / factor, "laplace").pvalue,
    )


@pytest.mark.parametrize("stddev", [1e6, 2.0**40, 2.0**56])
def test_large_gaussian_noise_has_the_continuous_distribution(stddev):
    draws = discrete_gaussian_vector(stream_of(13), stddev, 50_000) / stddev
    assert_only_the_right_scale_fits(lambda factor: stats.kstest(draws / factor, "norm").pvalue)


@pytest.mark.parametrize("name", ["laplace", "gaussian"])
def test_noise_is_symmetric(name):
    stream = stream_of(14)
    if name == "laplace":
        draws = np.array([discrete_laplace(stream, Fraction(5)) for _ in range(10_000)])
    else:
        draws = discrete_gaussian_vector(stream, 5.0, 50_000)
    positive, negative = int((draws > 0).sum()), int((draws < 0).sum())
    assert stats.binomtest(positive, positive + negative).pvalue > 1e-3  # flakiness 1e-3
    # The magnitudes on both sides agree as well (flakiness 1e-3).
    assert stats.ks_2samp(draws[draws > 0], -draws[draws < 0]).pvalue > 1e-3


def test_successive_draws_are_uncorrelated():
    draws = discrete_gaussian_vector(stream_of(15), 100.0, 50_000).astype(float)
    assert stats.pearsonr(draws[:-1], draws[1:]).pvalue > 1e-3  # flakiness 1e-3
    assert stats.pearsonr(np.abs(draws[:-1]), np.abs(draws[1:])).pvalue > 1e-3


@pytest.mark.parametrize("size", [0, 1, 7])
def test_no_noise_is_zero_and_uses_no_words(size):
    stream, untouched = stream_of(16), stream_of(16)
    assert discrete_laplace(stream, Fraction(0)) == 0
    assert discrete_gaussian(stream, 0.0) == 0
    noise = discrete_gaussian_vector(stream, 0.0, size)
    assert noise.dtype == np.int64
    assert noise.tolist() == [0] * size
    assert stream.word() == untouched.word()


@pytest.mark.parametrize(
    "draw",
    [discrete_gaussian, lambda stream, stddev: discrete_gaussian_vector(stream, stddev, 3)],
    ids=["scalar", "vector"],
)
@pytest.mark.parametrize(
    ("stddev", "message"),
    [
        (-1.0, "stddev must be a non-negative finite number, got -1.0"),
        (math.nan, "stddev must be a non-negative finite number, got nan"),
        (math.inf, "stddev must be a non-negative finite number, got inf"),
        (2.0**57, r"stddev must be at most 2\*\*56 lattice steps"),
    ],
)
def test_bad_stddev_is_refused(draw, stddev, message):
    with pytest.raises(ValueError, match=message):
        draw(stream_of(0), stddev)


def test_negative_laplace_scale_is_refused():
    with pytest.raises(ValueError, match="scale must not be negative"):
        discrete_laplace(stream_of(0), Fraction(-1, 2))


# --- streams and sources


def test_words_are_shake_256_of_key_label_and_block():
    key, label = bytes(range(32)), "round 3/ü"
    name = label.encode()
    prefix = b"ssdp-noise-v1" + key + len(name).to_bytes(4, "little") + name
    blocks = b"".join(
        hashlib.shake_256(prefix + number.to_bytes(8, "little")).digest(4096) for number in range(3)
    )
    expected = [int.from_bytes(blocks[i : i + 8], "little") for i in range(0, len(blocks), 8)]
    stream = NoiseSource(key, is_private=True).stream(label)
    assert stream.take(1536).tolist() == expected


@given(
    st.lists(
        st.one_of(
            st.just("word"),
            st.tuples(st.integers(0, 1200), st.floats(0, 1)),  # how many, what share goes back
        ),
        max_size=12,
    )
)
def test_take_word_and_give_back_read_one_sequence(operations):
    reference = stream_of(20).take(16_000)
    stream, position = stream_of(20), 0
    for operation in operations:
        if operation == "word":
            assert stream.word() == int(reference[position])
            position += 1
            continue
        count, share = operation
        taken = stream.take(count)
        assert taken.dtype == np.uint64
        np.testing.assert_array_equal(taken, reference[position : position + count])
        kept = count - round(share * count)
        stream.give_back(taken[kept:])
        position += kept
    assert stream.word() == int(reference[position])


def test_same_label_same_stream_whatever_was_asked_before():
    source = NoiseSource.seeded(21)
    before = source.stream("5/ask").take(2000)
    source.stream("6/ask").take(10)
    np.testing.assert_array_equal(NoiseSource.seeded(21).stream("5/ask").take(2000), before)


def test_a_label_is_good_for_one_stream():
    """Two answers with the same noise would give away the difference of their values."""
    source = NoiseSource.seeded(21)
    source.stream("5/ask")
    with pytest.raises(ValueError, match="the noise stream '5/ask' has been used"):
        source.stream("5/ask")


@pytest.mark.parametrize(
    ("one", "other"), [("0/ask/a", "1/ask/a"), ("a", "a\0"), ("", "\0" * 8), ("ab", "a")]
)
def test_streams_of_different_labels_are_independent(one, other):
    source = NoiseSource.seeded(22)
    first, second = source.stream(one).take(20_000), source.stream(other).take(20_000)
    # Two equal words among 4e8 pairs have probability 2e-11.
    assert np.intersect1d(first, second).size == 0
    # Words that are independent agree in half of their bits (flakiness 1e-3).
    differing = int(np.unpackbits((first ^ second).view(np.uint8)).sum())
    assert stats.binomtest(differing, 64 * 20_000).pvalue > 1e-3
    again = NoiseSource.seeded(22)
    noise = [discrete_gaussian_vector(again.stream(label), 1e6, 20_000) for label in (one, other)]
    assert stats.pearsonr(*noise).pvalue > 1e-3  # flakiness 1e-3


def test_words_are_uniform():
    words = stream_of(23).take(100_000)
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-3  # flakiness 1e-3
    for bit in range(64):  # the samplers use low bits and the sign bit on their own
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert stats.binomtest(ones, words.size).pvalue > 1e-5  # flakiness 64 * 1e-5


def test_secure_sources_take_their_keys_from_the_operating_system(monkeypatch):
    sources = [NoiseSource.secure() for _ in range(3)]
    assert len({source.stream("same label").word() for source in sources}) == 3
    assert all(source.is_private for source in sources)
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    expected = NoiseSource(bytes(range(32)), is_private=True).stream("x").word()
    assert NoiseSource.secure().stream("x").word() == expected


def test_seeded_sources_are_reproducible_and_say_they_are_not_private():
    assert not NoiseSource.seeded(1).is_private
    assert NoiseSource.seeded(1).stream("x").word() == NoiseSource.seeded(1).stream("x").word()
    assert NoiseSource.seeded(1).stream("x").word() != NoiseSource.seeded(2).stream("x").word()
    assert NoiseSource.seeded(np.int64(7)).stream("x").word() == stream_of(7, "x").word()


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be a whole number, got"):
        NoiseSource.seeded(seed)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_bad_key_is_refused_without_showing_it(size):
    with pytest.raises(ValueError, match=f"key must be 32 bytes, got {size}$") as caught:
        NoiseSource(b"k" * size, is_private=True)
    assert "kk" not in str(caught.value)


def test_keys_are_hidden_from_every_text_form():
    key = b"0123456789abcdefghijklmnopqrstuv"
    source = NoiseSource(key, is_private=True)
    stream = source.stream("x")
    first_word = stream.word()
    for text in (repr(source), str(source), f"{source}", repr(stream), str(stream), f"{stream}"):
        assert "hidden" in text
        for secret in ("0123456", "abcdef", key.hex(), str(first_word)):
            assert secret not in text


@pytest.mark.parametrize(
    "make",
    [NoiseSource.secure, lambda: NoiseSource.secure().stream("x")],
    ids=["source", "stream"],
)
@pytest.mark.parametrize("escape", [pickle.dumps, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_secrets_cannot_be_pickled(make, escape):
    with pytest.raises(TypeError, match="cannot be pickled"):
        escape(make())


# --- no other randomness


def other_randomness(tree: ast.Module, *, allow_annotations: bool) -> list[str]:
    """Every import or use of ``random`` and ``numpy.random`` in a module."""
    ignored: set[ast.AST] = set()
    if allow_annotations:
        for node in ast.walk(tree):
            for field in ("annotation", "returns"):
                annotation = getattr(node, field, None)
                if annotation is not None:
                    ignored.update(ast.walk(annotation))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node not in ignored:
            names = [ast.unparse(node)]
        else:
            continue
        found += [
            name
            for name in names
            if name in ("random", "np.random", "numpy.random")
            or name.startswith(("random.", "numpy.random."))
        ]
    return found


def test_ssdp_core_has_no_randomness_but_its_own(project_root: Path):
    files = sorted((project_root / "ssdp_core").rglob("*.py"))
    assert len(files) > 10
    for path in files:
        # lower_bounds.py builds synthetic instances from a generator that the caller hands in.
        allowed = path.name == "lower_bounds.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert other_randomness(tree, allow_annotations=allowed) == [], path


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "from random import gauss",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "x = np.random.normal()",
        "rng = numpy.random.default_rng(3)",
        "def f(rng=np.random.default_rng()): ...",
    ],
)
def test_the_search_for_other_randomness_finds_it(line):
    assert other_randomness(ast.parse(line), allow_annotations=True)


def test_the_search_for_other_randomness_allows_annotations_only_where_told():
    tree = ast.parse("def f(generator: np.random.Generator) -> np.random.Generator: ...")
    assert not other_randomness(tree, allow_annotations=True)
    assert other_randomness(tree, allow_annotations=False)


def test_hardly_any_noise_takes_no_time():
    """Huge exponents are settled by the bits at hand instead of computing exp(-1e10)."""
    assert discrete_gaussian_vector(stream_of(3), 1e-5, 10).tolist() == [0] * 10
    assert discrete_laplace(stream_of(3), Fraction(1, 10**15)) == 0
