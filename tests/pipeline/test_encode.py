"""Public feature encoders: exact mergeable statistics, and rows of bounded norm."""

from __future__ import annotations

import json
import math
import pickle
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.encode import ColumnStatistics, EncoderPlan, statistics_for
from pipeline.spec import ColumnEncoding, DataSpec, PrivacySpec, ProblemSpec, SensitiveSpec, Spec
from ssdp_core.features import CsrFeatures, DenseFeatures

HAIR = 1.0 - 2.0**-22  # rows are scaled to this much of the norm


def make_spec(*encodings: ColumnEncoding, feature_norm: float = 1e6) -> Spec:
    return Spec(
        data=DataSpec(
            path=("a.csv",),
            features=tuple(encoding.column for encoding in encodings),
            feature_norm=feature_norm,
            encode=encodings,
            sensitive=(SensitiveSpec(column="secret", values=(0, 1)),),
        ),
        privacy=PrivacySpec(epsilon=1.0, delta=1e-6),
        problem_specs=(ProblemSpec(name="p", target="target", loss="squared"),),
    )


def fit(spec: Spec, columns: dict) -> EncoderPlan:
    collected = statistics_for(spec)
    for name, column in collected.items():
        column.update(columns[name])
    return EncoderPlan.fit(spec, collected)


def fit_one(array, feature_norm: float = 1e6, **encoding) -> EncoderPlan:
    return fit(
        make_spec(ColumnEncoding(column="c", **encoding), feature_norm=feature_norm), {"c": array}
    )


def objects(*entries: object) -> np.ndarray:
    return np.array(entries, dtype=object)


def to_dense(features) -> np.ndarray:
    if isinstance(features, DenseFeatures):
        return features.values
    dense = np.zeros((features.num_rows, features.num_columns), dtype=np.float32)
    for row in range(features.num_rows):
        part = slice(features.indptr[row], features.indptr[row + 1])
        dense[row, features.indices[part]] = features.data[part]
    return dense


def collect(encoding: ColumnEncoding, *blocks: np.ndarray) -> ColumnStatistics:
    result = ColumnStatistics(encoding=encoding)
    for block in blocks:
        result.update(block)
    return result


# Statistics


def test_moments_of_a_small_column():
    found = collect(ColumnEncoding(column="c"), np.array([1.0, np.nan, 2.0]), np.array([6.0]))
    assert (found.count, found.nulls, found.num_values, found.type) == (4, 1, 3, "number")
    assert (found.minimum, found.maximum, found.mean) == (1.0, 6.0, 3.0)
    assert found.standard_deviation == math.sqrt(14 / 3)  # ((-2)^2 + (-1)^2 + 3^2) / 3


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_moments_are_exact(numbers):
    found = collect(ColumnEncoding(column="c"), np.array(numbers))
    exact = [float.as_integer_ratio(number) for number in numbers]
    scale = max(d for _, d in exact)
    integers = [n * (scale // d) for n, d in exact]
    assert found.total * scale == sum(integers) << 1126
    assert found.total_squares * scale**2 == sum(i * i for i in integers) << 2252
    assert min(numbers) <= found.mean <= max(numbers)
    assert found.standard_deviation <= max(numbers) / 2 - min(numbers) / 2 + math.ulp(max(numbers))
    assert (found.standard_deviation == 0.0) or len(set(numbers)) > 1


def test_moments_of_many_rows_agree_with_the_standard_library():
    numbers = np.random.default_rng(0).normal(1e6, 1.0, size=3000)
    found = collect(ColumnEncoding(column="c"), numbers)
    assert found.mean == pytest.approx(statistics.fmean(numbers), rel=1e-15)
    assert found.standard_deviation == pytest.approx(statistics.pstdev(numbers), rel=1e-12)


@pytest.mark.parametrize("number", [5e-324, 0.1, 1.7e308, -3.0])
def test_a_constant_has_no_deviation(number):
    found = collect(ColumnEncoding(column="c"), np.full(1000, number))
    assert (found.mean, found.standard_deviation) == (number, 0.0)


def test_blocks_larger_than_a_chunk(monkeypatch):
    numbers = np.random.default_rng(0).normal(size=100)
    whole = collect(ColumnEncoding(column="c"), numbers)
    monkeypatch.setattr("pipeline.encode._CHUNK", 7)
    assert collect(ColumnEncoding(column="c"), numbers) == whole


NUMBERS = st.floats(allow_infinity=False).map(lambda v: 0.0 if v == 0 else v)
WORDS = st.sampled_from(["a", "b", "c", "é", "", None])


@given(data=st.data(), kind=st.sampled_from(["auto", "numeric", "one_hot", "hashed", "words"]))
def test_any_cut_and_merge_order_gives_the_same_bits(data, kind):
    entries = data.draw(st.lists(WORDS if kind == "words" else NUMBERS, min_size=1, max_size=20))
    dtype = object if kind == "words" else np.float64
    encoding = ColumnEncoding(column="c", kind="auto" if kind == "words" else kind)
    whole = collect(encoding, np.array(entries, dtype=dtype))
    shuffled = data.draw(st.permutations(entries))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(entries)), max_size=4)))
    parts = [
        collect(encoding, np.array(shuffled[start:stop], dtype=dtype))
        for start, stop in zip([0, *cuts], [*cuts, len(entries)], strict=True)
    ]
    while len(parts) > 1:
        other = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts[data.draw(st.integers(0, len(parts) - 1))].merge(other)
    assert parts[0] == whole
    if whole.type is not None:
        assert repr(parts[0].plan()) == repr(whole.plan())


def test_which_zero_comes_first_does_not_matter():
    encoding = ColumnEncoding(column="c", kind="one_hot")
    one = collect(encoding, np.array([0.0]), np.array([-0.0]))
    other = collect(encoding, np.array([-0.0]), np.array([0.0]))
    assert repr(one) == repr(other)


def test_merging_leaves_the_other_alone_and_survives_pickling():
    encoding = ColumnEncoding(column="c")
    one, other = collect(encoding, objects("a")), collect(encoding, objects("b", None))
    one.merge(pickle.loads(pickle.dumps(other)))
    assert (one.values, other.values, one.nulls) == ({"a", "b"}, {"b"}, 1)
    with pytest.raises(ValueError, match="other must be of"):
        one.merge(ColumnStatistics(encoding=ColumnEncoding(column="d")))


def test_too_many_values():
    encoding = ColumnEncoding(column="c")
    one = ColumnStatistics(encoding=encoding, max_values=2)
    one.update(objects("a", "b", "b"))
    with pytest.raises(ValueError, match=r"'c' has more than 2 distinct values.*\"hashed\""):
        one.update(objects("x"))
    left, right = (ColumnStatistics(encoding=encoding, max_values=2) for _ in range(2))
    left.update(objects("a", "b"))
    right.update(objects("x"))
    with pytest.raises(ValueError, match="more than 2 distinct values"):
        left.merge(right)


@pytest.mark.parametrize("encoding", [{"kind": "hashed"}, {"kind": "one_hot", "values": ("1",)}])
def test_values_are_not_collected_where_no_plan_needs_them(encoding):
    found = ColumnStatistics(encoding=ColumnEncoding(column="c", **encoding), max_values=1)
    found.update(objects("1", "2", "3"))
    assert found.values == set()


# Errors

WRONG = [
    ({"kind": "numeric"}, objects("a", "b"), "'c' must hold numbers to be encoded as numeric"),
    ({"kind": "log"}, objects("a"), "column 'c' must hold numbers to be encoded as log"),
    ({"kind": "bins", "edges": (0, 1)}, objects("a"), "must hold numbers to be encoded as bins"),
    ({"kind": "log"}, np.array([1.0, -0.5]), "'c' must hold no negative number to be encoded"),
    ({}, np.array([1.0, np.inf]), "column 'c' must hold finite numbers, found an infinity"),
    ({}, objects("a", True), "column 'c' must hold one type of values: numbers, strings or bools"),
    ({}, objects(1, True), "column 'c' must hold one type of values"),
    ({}, objects("a", 1.0), "column 'c' must hold one type of values"),
    ({}, objects(b"a"), "column 'c' must hold one type of values"),
    ({}, np.zeros((2, 2)), "column 'c' must be one-dimensional"),
    ({}, np.zeros(2, dtype="datetime64[s]"), "column 'c' must be one-dimensional and hold numbers"),
]


@pytest.mark.parametrize(("encoding", "array", "match"), WRONG)
def test_columns_that_cannot_be_encoded(encoding, array, match):
    with pytest.raises(ValueError, match=match):
        collect(ColumnEncoding(column="c", **encoding), array)


@pytest.mark.parametrize("array", [objects(None, None), np.full(3, np.nan), np.zeros(0)])
def test_a_column_without_values(array):
    with pytest.raises(ValueError, match="column 'c' must hold at least one value, found only nul"):
        fit_one(array)


def test_types_that_change_between_blocks():
    with pytest.raises(ValueError, match="one type of values in all files, found strings and num"):
        collect(ColumnEncoding(column="c"), np.array([1.0]), objects("a"))
    one = collect(ColumnEncoding(column="c"), objects(True))
    with pytest.raises(ValueError, match=r"'c' must hold one type .* found strings and bools"):
        one.merge(collect(ColumnEncoding(column="c"), objects("a")))
    blocks = np.array([np.nan]), objects("a"), objects(None)  # nulls have no type
    assert collect(ColumnEncoding(column="c"), *blocks).type == "string"


def test_declared_values_of_another_type():
    with pytest.raises(ValueError, match="column 'c' holds numbers, so the values declared"):
        fit_one(np.array([1.0]), kind="one_hot", values=("1",))
    with pytest.raises(ValueError, match="column 'c' holds strings, so the values declared"):
        fit_one(objects("1"), kind="one_hot", values=(1,))


def test_blocks_that_do_not_fit_the_plan():
    plan = fit_one(np.array([1.0, 2.0]))
    with pytest.raises(ValueError, match="column 'c' must hold numbers to be encoded as numeric"):
        plan.encode({"c": objects("a")})
    with pytest.raises(ValueError, match="table must have the public column 'c'"):
        plan.encode({"d": np.zeros(1)})
    with pytest.raises(
        ValueError, match=r"columns must have one length, or num_rows, got \[1, 2\]"
    ):
        plan.encode({"c": np.zeros(1), "d": np.zeros(2)})
    plan = fit_one(objects("a"))
    with pytest.raises(ValueError, match=r"column 'c' must hold strings, .* found numbers"):
        plan.encode({"c": np.zeros(1)})


def test_errors_show_no_entries():
    plan = fit_one(np.array([1.0, 2.0]), kind="log")
    for array in (objects("recognisable"), np.array([-12345.678])):
        with pytest.raises(ValueError, match="column 'c'") as caught:
            plan.encode({"c": array})
        assert "recognisable" not in str(caught.value)
        assert "12345" not in str(caught.value)


def test_features_with_the_same_name():
    spec = make_spec(ColumnEncoding(column="intercept"))
    with pytest.raises(ValueError, match="distinct names, found 'intercept' more than once"):
        fit(spec, {"intercept": np.array([1.0])})
    spec = make_spec(ColumnEncoding(column="a"), ColumnEncoding(column="a=b"))
    with pytest.raises(ValueError, match="distinct names, found 'a=b' more than once"):
        fit(spec, {"a": objects("b"), "a=b": np.array([1.0])})


def test_missing_statistics():
    with pytest.raises(ValueError, match="statistics must cover every feature, found none for"):
        EncoderPlan.fit(make_spec(ColumnEncoding(column="c")), {})


# Plans and encoding, by hand; the norm is so large that no row is scaled


def test_numeric():
    plan = fit_one(np.array([0.0, 2.0, 4.0, 2.0]))  # mean 2, standard deviation sqrt(2)
    assert plan.feature_names == ("intercept", "c")
    found = plan.encode({"c": np.array([2.0, 2.0 + math.sqrt(2), -100.0, 1e300, np.nan])})
    assert isinstance(found, DenseFeatures)
    expected = [[1, 0], [1, 0.2], [1, -1], [1, 1], [1, 0]]
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)


def test_numbers_so_far_apart_that_their_difference_overflows():
    plan = fit_one(np.array([-1.7e308, -1.7e308, -1.7e308, 1.7e308]))
    found = plan.encode({"c": np.array([1.7e308, -1.7e308])})
    # The exact deviations are sqrt(3) and -1/sqrt(3); the first one overflows and is clipped.
    assert np.isfinite(to_dense(found)).all()


def test_log():
    plan = fit_one(np.array([0.0, math.e**2 - 1]), kind="log")  # logarithms 0 and 2
    assert plan.feature_names == ("intercept", "c")
    found = plan.encode({"c": np.array([0.0, math.e - 1])})
    np.testing.assert_allclose(found.values, [[1, -0.2], [1, 0]], atol=1e-7)


def test_a_constant_column_is_zero():
    plan = fit_one(np.full(3, 7.0))
    np.testing.assert_array_equal(plan.encode({"c": np.array([7.0, 8.0])}).values, [[1, 0], [1, 0]])


def test_bools_and_integers_as_numbers():
    plan = fit_one(objects(True, False), kind="numeric")
    np.testing.assert_allclose(plan.encode({"c": np.array([True])}).values, [[1, 0.2]])
    plan = fit_one(np.array([1, 3]))
    np.testing.assert_allclose(plan.encode({"c": objects(3, None)}).values, [[1, 0.2], [1, 0]])


def test_bins():
    plan = fit_one(np.array([5.0]), kind="bins", edges=(0, 10, 20.5))
    assert plan.feature_names == ("intercept", "c=[0, 10)", "c=[10, 20.5]")
    found = plan.encode({"c": np.array([0.0, 10.0, 20.5, -1.0, 21.0, np.nan])})
    expected = [[1, 1, 0], [1, 0, 1], [1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(found.values, expected)
    assert fit_one(np.array([5.0]), kind="bins", edges=(0, 1)).num_columns == 2


def test_one_hot_over_the_values_found():
    plan = fit_one(objects("b", "a", "b"))
    assert plan.feature_names == ("intercept", "c=a", "c=b")
    found = plan.encode({"c": objects("a", "b", "new", None)})
    np.testing.assert_array_equal(found.values, [[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 0, 0]])
    assert fit_one(objects(True, False)).feature_names == ("intercept", "c=False", "c=True")
    assert fit_one(np.array([True])).feature_names == ("intercept", "c=True")
    numbers = fit_one(np.array([2.5, 1.0]), kind="one_hot")
    assert numbers.feature_names == ("intercept", "c=1", "c=2.5")


def test_one_hot_over_declared_values():
    plan = fit_one(objects("b", "a", "x"), kind="one_hot", values=("b", "z"))
    assert plan.feature_names == ("intercept", "c=b", "c=z")
    np.testing.assert_array_equal(
        plan.encode({"c": objects("b", "x")}).values, [[1, 1, 0], [1, 0, 0]]
    )


@pytest.mark.parametrize(
    ("array", "encoding", "width"),
    [
        (np.array([1.0, np.nan]), {}, 1),
        (objects("a", None), {}, 1),
        (np.array([1.0, np.nan]), {"kind": "bins", "edges": (0, 1, 2)}, 2),
        (objects("a", None), {"kind": "hashed", "bits": 4}, 16),
    ],
)
def test_nulls_have_a_feature_if_they_occurred(array, encoding, width):
    plan = fit_one(array, **encoding)
    assert plan.feature_names[-1] == "c?null"
    assert len(plan.feature_names) == plan.num_columns == width + 2
    found = to_dense(plan.encode({"c": array}))
    assert found[0, -1] == 0.0
    np.testing.assert_array_equal(np.flatnonzero(found[1]), [0, width + 1])
    assert "c?null" not in fit_one(array[:1], **encoding).feature_names


def test_hashed():
    plan = fit_one(objects("x", "y"), kind="hashed", bits=10)
    assert plan.is_sparse
    assert plan.num_columns == 1 + 1024
    assert (plan.feature_names[1], plan.feature_names[-1]) == ("c#0", "c#1023")
    found = plan.encode({"c": objects("x", "never seen", "x", None)})
    assert isinstance(found, CsrFeatures)
    np.testing.assert_array_equal(found.indptr, [0, 2, 4, 6, 7])
    np.testing.assert_array_equal(found.data, np.ones(7))
    assert found.indices[1] == found.indices[5] != found.indices[3]
    # Written down once: a model kept on disk relies on the hash never changing.
    assert found.indices.tolist() == [0, 862, 0, 198, 0, 862, 0]


def test_hashes_depend_on_the_column_and_on_the_text_of_a_value():
    spec = make_spec(*(ColumnEncoding(column=name, kind="hashed", bits=24) for name in "ab"))
    plan = fit(spec, {"a": objects("7"), "b": objects("7")})
    first, second = plan.encode({"a": objects("7"), "b": objects("7")}).indices[1:]
    assert second - first != 2**24
    as_numbers = plan.encode({"a": np.array([7.0]), "b": np.array([7])})
    np.testing.assert_array_equal(as_numbers.indices[1:], [first, second])
    large = [2**60, 2**60 + 1]  # equal as floats
    found = plan.encode({"a": np.array(large), "b": objects("", "")})
    assert found.indices[1] != found.indices[4]


def test_many_features_are_sparse():
    values = objects(*(f"v{i}" for i in range(2048)))
    plan = fit_one(values)
    assert plan.num_columns == 2049
    assert plan.is_sparse
    found = plan.encode({"c": values[:2]})
    assert isinstance(found, CsrFeatures)
    assert not fit_one(values[:2047]).is_sparse


def test_without_public_features_there_is_the_intercept():
    plan = EncoderPlan.fit(make_spec(), {})
    assert plan.feature_names == ("intercept",)
    np.testing.assert_array_equal(plan.encode({}, num_rows=2).values, [[1], [1]])
    np.testing.assert_array_equal(plan.encode({"other": np.zeros(3)}).values, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"columns must have one length, or num_rows, got \[\]"):
        plan.encode({})


def test_rows_are_scaled_down_but_never_up():
    plan = fit_one(np.array([-1.0, 1.0]), feature_norm=1.0)  # deviation 1: entries -0.2 and 0.2
    found = plan.encode({"c": np.array([1.0])}).values
    np.testing.assert_allclose(found, np.array([[1, 0.2]]) / math.sqrt(1.04) * HAIR, rtol=1e-7)
    plan = fit_one(np.array([-1.0, 1.0]), feature_norm=2.0)
    np.testing.assert_array_equal(
        plan.encode({"c": np.array([1.0])}).values, np.array([[1, 0.2]], dtype=np.float32)
    )


@given(
    norm=st.floats(1e-6, 1e6),
    numbers=st.lists(st.floats(allow_infinity=False, min_value=-1e300), min_size=1, max_size=15),
    bits=st.sampled_from([None, 4]),
    data=st.data(),
)
def test_norms_are_bounded_and_sparse_equals_dense(norm, numbers, bits, data):
    words = data.draw(st.lists(WORDS, min_size=len(numbers), max_size=len(numbers)))
    columns = {"n": np.array(numbers), "w": objects(*words), "m": np.arange(len(numbers)) ** 2.0}
    if np.isnan(columns["n"]).all() or not any(word is not None for word in words):
        return
    kind = {} if bits is None else {"kind": "hashed", "bits": bits}
    spec = make_spec(
        ColumnEncoding(column="n"),
        ColumnEncoding(column="w", **kind),
        ColumnEncoding(column="m", kind="log"),
        feature_norm=norm,
    )
    plan = fit(spec, columns)
    found = plan.encode(columns)
    assert isinstance(found, DenseFeatures if bits is None else CsrFeatures)
    dense = to_dense(found).astype(np.float64)
    assert dense.shape == (len(numbers), plan.num_columns)
    norms = np.sqrt((dense**2).sum(axis=1))
    assert (norms <= norm).all()
    assert (np.sqrt(found.squared_norms()) <= norm).all()
    assert (norms >= min(norm, 1.0) * (1 - 1e-6)).all()  # the intercept is there
    again = EncoderPlan.from_json(plan.to_json())
    assert again == plan
    np.testing.assert_array_equal(to_dense(again.encode(columns)), to_dense(found))


def test_the_same_rows_as_compressed_and_as_full_rows(monkeypatch):
    columns = {"n": np.array([0.0, 1.0, np.nan]), "w": objects("a", None, "b")}
    plan = fit(make_spec(ColumnEncoding(column="n"), ColumnEncoding(column="w")), columns)
    full = plan.encode(columns).values
    monkeypatch.setattr("pipeline.encode.MAX_DENSE_COLUMNS", 1)
    np.testing.assert_array_equal(to_dense(plan.encode(columns)), full)


def test_rows_do_not_depend_on_their_block():
    rng = np.random.default_rng(1)
    columns = {"n": rng.normal(size=50), "w": rng.choice(objects("a", "b", None), size=50)}
    plan = fit(
        make_spec(ColumnEncoding(column="n"), ColumnEncoding(column="w"), feature_norm=1.0), columns
    )
    whole = plan.encode(columns).values
    parts = [
        plan.encode({k: v[i : i + 7] for k, v in columns.items()}).values for i in range(0, 50, 7)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


# Plans as text


def test_json_is_plain_and_stable():
    plan = fit_one(objects("b", "a", None), feature_norm=1.0)
    assert json.loads(plan.to_json()) == {
        "format": 1,
        "feature_norm": 1.0,
        "columns": [
            {
                "column": "c",
                "kind": "one_hot",
                "type": "string",
                "has_nulls": True,
                "values": ["a", "b"],
            }
        ],
    }
    assert EncoderPlan.from_json(plan.to_json()).to_json() == plan.to_json()
    assert pickle.loads(pickle.dumps(plan)) == plan
    hash(plan)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "feature_norm": 1, "columns": []}',
        '{"format": 1, "feature_norm": 1, "columns": [{"column": "c"}]}',
        '{"format": 1, "feature_norm": 1, "columns": [{"colum": "c"}]}',
    ],
)
def test_text_that_is_no_plan(text):
    with pytest.raises(ValueError, match="text must be the JSON of an encoder plan"):
        EncoderPlan.from_json(text)
