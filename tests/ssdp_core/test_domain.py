from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdp_core.columns import BinnedColumn, CategoricalColumn, Encoding, Role
from ssdp_core.domain import MAX_CODES, PrivateDomain, PrivateFeatures

SECRET = "SECRET-VALUE"
quick = settings(derandomize=True, deadline=None, max_examples=50)


def domain_of(*columns):
    return PrivateDomain(columns=columns)


def sex(**changes):
    return CategoricalColumn(**{"name": "sex", "values": ("F", "M"), **changes})


def income(**changes):
    return CategoricalColumn(**{"name": "income", "values": (0, 1), "role": Role.TARGET, **changes})


def age(**changes):
    return BinnedColumn(**{"name": "age", "edges": (18, 30, 50, 99.5), **changes})


# Random domains, with an entry of the table for every index of every column.

names_and_roles = {"role": st.sampled_from(Role), "scale": st.sampled_from([0.5, 1.0, 3.0])}
mixed_values = st.lists(
    st.one_of(st.integers(-9, 9), st.text("ab1", min_size=1, max_size=3), st.booleans()),
    min_size=2,
    max_size=4,
    unique_by=(str, lambda v: v),
).map(tuple)
number_values = st.lists(
    st.one_of(st.integers(-9, 9), st.floats(-5, 5, width=16)), min_size=2, max_size=5, unique=True
).map(tuple)
increasing = st.lists(st.integers(-20, 20), min_size=3, max_size=6, unique=True).map(
    lambda edges: tuple(sorted(edges))
)
columns = st.one_of(
    st.builds(
        CategoricalColumn,
        name=st.just("x"),
        values=mixed_values,
        other=st.booleans(),
        **names_and_roles,
    ),
    st.builds(
        CategoricalColumn,
        name=st.just("x"),
        values=number_values.filter(lambda values: len(set(map(str, values))) == len(values)),
        encoding=st.just(Encoding.NUMERIC),
        **names_and_roles,
    ),
    st.builds(
        BinnedColumn,
        name=st.just("x"),
        edges=increasing,
        other=st.booleans(),
        **names_and_roles,
    ),
    st.builds(
        BinnedColumn,
        name=st.just("x"),
        edges=increasing,
        encoding=st.just(Encoding.NUMERIC),
        **names_and_roles,
    ),
)
domains = st.lists(columns, min_size=1, max_size=3).map(
    lambda drawn: domain_of(
        *(dataclasses.replace(column, name=f"c{i}") for i, column in enumerate(drawn))
    )
)
undeclared = st.sampled_from([None, math.nan, SECRET, 1234.5, -math.inf])


def entries_of(draw, column):
    """Pairs of an entry and the label it must decode to, in the order of the column's indices."""
    if isinstance(column, CategoricalColumn):
        pairs = [(value, value) for value in column.values]
    else:
        fraction = draw(st.sampled_from([0.0, 0.5, 0.999]))
        bins = list(itertools.pairwise(column.edges))
        pairs = [(a + fraction * (b - a), f"[{int(a)}, {int(b)})") for a, b in bins]
        last, label = pairs[-1]
        pairs[-1] = (draw(st.sampled_from([last, column.edges[-1]])), label[:-1] + "]")
    return [*pairs, (draw(undeclared), "other")] if column.other else pairs


@quick
@given(data=st.data(), domain=domains)
def test_encode_and_decode_are_inverse(data, domain):
    per_column = [entries_of(data.draw, column) for column in domain.columns]
    rows = list(itertools.product(*per_column))  # the last column varies fastest
    table = {column.name: [row[i][0] for row in rows] for i, column in enumerate(domain.columns)}
    codes = domain.encode(table)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes, np.arange(domain.num_codes))
    for code in data.draw(st.lists(st.integers(0, domain.num_codes - 1), max_size=5)):
        labels = [label for _, label in rows[code]]
        assert list(domain.decode(code).items()) == [
            (column.name, label) for column, label in zip(domain.columns, labels, strict=True)
        ]


@quick
@given(domain=domains)
def test_domain_bounds_equal_brute_force(domain):
    features = domain.private_features()
    exact = PrivateFeatures.from_matrix(features.matrix)
    tolerance = {"rel": 1e-12, "abs": 1e-12}
    assert features.max_norm == exact.max_norm
    assert features.inner_min == pytest.approx(exact.inner_min, **tolerance)
    assert features.inner_max == pytest.approx(exact.inner_max, **tolerance)
    assert (features.matrix >= 0).all()


@quick
@given(domain=domains)
def test_features_and_column_codes_describe_each_code(domain):
    features = domain.private_features()
    used = [column for column in domain.columns if column.role is not Role.TARGET]
    indices = list(itertools.product(*(range(column.size) for column in domain.columns)))
    for i, column in enumerate(domain.columns):
        np.testing.assert_array_equal(
            domain.column_codes(column.name), [index[i] for index in indices]
        )
    widths = [1 if c.encoding is Encoding.NUMERIC else c.size for c in used]
    assert features.matrix.shape == (domain.num_codes, sum(widths))
    assert len(features.names) == len(set(features.names)) == sum(widths)
    for code in range(0, domain.num_codes, 7):
        of_column = dict(zip((c.name for c in domain.columns), indices[code], strict=True))
        pieces = [column.features()[of_column[column.name]] for column in used]
        np.testing.assert_array_equal(features.matrix[code], np.concatenate([[], *pieces]))


# The three cases: only the label is private, only features are, both are.


def test_private_label_only():
    domain = domain_of(income())
    features = domain.private_features()
    assert features.matrix.shape == (2, 0)
    assert features.names == ()
    assert (features.max_norm, features.inner_min, features.inner_max) == (0, 0, 0)
    assert domain.target_values("income").tolist() == [0, 1]
    assert domain.target_classes("income").tolist() == [0, 1]


def test_private_features_only():
    domain = domain_of(sex(scale=2.0))
    features = domain.private_features()
    np.testing.assert_array_equal(features.matrix, [[2, 0], [0, 2]])
    assert features.names == ("sex=F", "sex=M")
    assert (features.max_norm, features.inner_min, features.inner_max) == (2, 0, 0)
    with pytest.raises(ValueError, match="column 'sex' must have role 'target' or 'both'"):
        domain.target_values("sex")
    with pytest.raises(ValueError, match="column 'sex' must have role 'target' or 'both'"):
        domain.target_classes("sex")


def test_private_features_and_label():
    domain = domain_of(sex(), income())
    features = domain.private_features()
    np.testing.assert_array_equal(features.matrix, [[1, 0], [1, 0], [0, 1], [0, 1]])
    # Codes 0 and 1 differ only in the target, so two different codes can have equal features.
    assert (features.max_norm, features.inner_min, features.inner_max) == (1, 0, 1)
    assert domain.target_values("income").tolist() == [0, 1, 0, 1]
    assert domain.column_codes("sex").tolist() == [0, 0, 1, 1]


def test_role_both_is_feature_and_target_unless_excluded():
    domain = domain_of(sex(role=Role.BOTH), age(encoding=Encoding.NUMERIC))
    assert domain.private_features().names == ("sex=F", "sex=M", "age")
    without = domain.private_features(exclude=["sex"])
    assert without.names == ("age",)
    assert without.inner_max == without.max_norm**2 == 1  # codes may differ in sex alone
    assert domain.target_classes("sex").tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="one of the declared columns 'sex', 'age', got 'sx'"):
        domain.private_features(exclude=["sx"])


def test_numeric_features_are_scaled_into_zero_to_scale():
    column = CategoricalColumn(
        name="level", values=(10, 20, 50), encoding=Encoding.NUMERIC, scale=4.0
    )
    np.testing.assert_array_equal(column.features(), [[0], [1], [4]])
    features = domain_of(column).private_features()
    assert features.names == ("level",)
    assert (features.max_norm, features.inner_min, features.inner_max) == (4, 0, 4)
    bins = BinnedColumn(name="b", edges=(0, 2, 4, 10), encoding=Encoding.NUMERIC)
    np.testing.assert_allclose(bins.features(), [[0], [1 / 3], [1]], rtol=1e-15)  # 1, 3 and 7


def test_one_hot_gives_other_its_own_indicator():
    np.testing.assert_array_equal(sex(other=True, scale=0.5).features(), 0.5 * np.eye(3))
    assert sex(other=True).feature_names() == ("sex=F", "sex=M", "sex=other")
    assert age().feature_names() == ("age=[18, 30)", "age=[30, 50)", "age=[50, 99.5]")


def test_target_values_are_as_declared():
    domain = domain_of(
        CategoricalColumn(name="y", values=(-1, 2.5), role="both", encoding="numeric", scale=9.0),
        CategoricalColumn(name="flag", values=(True, False), role="target"),
        age(role="target"),
    )
    assert domain.target_values("y")[[0, 6]].tolist() == [-1, 2.5]
    assert domain.target_values("flag")[[0, 3]].tolist() == [1, 0]
    assert domain.target_values("age")[:3].tolist() == [24, 40, 74.75]
    assert domain.target_values("y").dtype == np.float64
    assert domain.target_classes("age").dtype == np.int64


@pytest.mark.parametrize(
    "column", [sex(role="target"), income(other=True), age(role="target", other=True)], ids=repr
)
def test_target_without_numbers_has_classes_only(column):
    domain = domain_of(column)
    assert domain.target_classes(column.name).tolist() == list(range(column.size))
    with pytest.raises(ValueError, match=r"must declare numbers only and no other.*multinomial"):
        domain.target_values(column.name)


# Matching entries with declared values.


@pytest.mark.parametrize(
    "entries",
    [
        [1, 0, 1],
        [1.0, 0.0, 1.0],
        [True, False, True],
        (1, 0.0, True),
        np.array([1, 0, 1], dtype=np.uint8),
        np.array([1, 0, 1], dtype=np.float16),
        np.array([True, False, True]),
        np.array([1, 0.0, np.True_], dtype=object),
    ],
    ids=repr,
)
def test_equal_numbers_match_whatever_their_type(entries):
    assert domain_of(income()).encode({"income": entries}).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "entries",
    [["M", "F"], np.array(["M", "F"]), np.array(["M", "F"], dtype=object), ("M", np.str_("F"))],
    ids=repr,
)
def test_strings_match_whatever_holds_them(entries):
    assert domain_of(sex()).encode({"sex": entries}).tolist() == [1, 0]


def test_strings_and_numbers_do_not_match_each_other():
    numbers = domain_of(CategoricalColumn(name="x", values=(1, 2), other=True))
    assert numbers.encode({"x": ["1", 2, "2", 1]}).tolist() == [2, 1, 2, 0]
    texts = domain_of(CategoricalColumn(name="x", values=("1", "2"), other=True))
    assert texts.encode({"x": ["1", 2, "2", 1]}).tolist() == [0, 2, 1, 2]
    bins = domain_of(age(other=True))
    assert bins.encode({"age": ["20", 20, np.float32(20), True]}).tolist() == [3, 0, 0, 3]


def test_large_integers_are_compared_exactly():
    big = 2**53
    domain = domain_of(CategoricalColumn(name="x", values=(big, big + 1)))
    assert domain.encode({"x": np.array([big + 1, big])}).tolist() == [1, 0]


@pytest.mark.parametrize("null", [None, math.nan, np.float32("nan"), "unknown", 7, b"F", 1j])
def test_nulls_and_undeclared_entries_go_to_other(null):
    assert domain_of(sex(other=True)).encode({"sex": ["M", null]}).tolist() == [1, 2]
    assert domain_of(age(other=True)).encode({"age": [18, null]}).tolist() == [0, 3]


def test_nulls_of_arrays_go_to_other():
    table = {"age": np.array([np.nan, 30.0, np.inf, 10.0])}
    assert domain_of(age(other=True)).encode(table).tolist() == [3, 1, 3, 3]
    masked = np.ma.masked_array([0, 1, 1], mask=[False, True, False])
    assert domain_of(income(other=True)).encode({"income": masked}).tolist() == [0, 2, 1]
    with_none = np.array([None, 1, 0.0], dtype=object)
    assert domain_of(income(other=True)).encode({"income": with_none}).tolist() == [2, 1, 0]


def test_bins_are_closed_on_the_left_and_the_last_one_on_both_sides():
    entries = [18, 29.999, 30, np.nextafter(50, 0), 50, 99.5]
    assert domain_of(age()).encode({"age": entries}).tolist() == [0, 0, 1, 1, 2, 2]
    outside = domain_of(age(other=True))
    entries = np.array([np.nextafter(18, 0), np.nextafter(99.5, 100)])
    assert outside.encode({"age": entries}).tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_columns_of_lower_precision_match_declared_decimals(dtype):
    entries = np.array([0.1, 0.7], dtype=dtype)
    values = domain_of(CategoricalColumn(name="x", values=(0.1, 0.7, "none")))
    assert values.encode({"x": entries}).tolist() == [0, 1]
    bins = domain_of(BinnedColumn(name="x", edges=(0.05, 0.1, 0.7)))
    assert bins.encode({"x": entries}).tolist() == [1, 1]


def test_low_precision_never_merges_declared_values():
    # Both values are 0.1 in float16, so the comparison stays exact and finds neither.
    close = domain_of(CategoricalColumn(name="x", values=(0.1, 0.10000001), other=True))
    assert close.encode({"x": np.array([0.1], dtype=np.float16)}).tolist() == [2]
    large = domain_of(CategoricalColumn(name="x", values=(1.0, 1e6), other=True))
    assert large.encode({"x": np.array([np.inf, 1], dtype=np.float16)}).tolist() == [2, 0]


def test_ten_thousand_codes():
    domain = domain_of(
        *(CategoricalColumn(name=f"c{i}", values=tuple(range(10))) for i in range(4))
    )
    assert domain.num_codes == MAX_CODES
    digits = np.random.default_rng(0).integers(0, 10, (4, 20_000))
    codes = domain.encode({f"c{i}": digits[i] for i in range(4)})
    np.testing.assert_array_equal(codes, np.array([1000, 100, 10, 1]) @ digits)
    assert domain.decode(9070) == {"c0": 9, "c1": 0, "c2": 7, "c3": 0}
    features = domain.private_features()
    assert features.matrix.shape == (10_000, 40)
    assert (features.max_norm, features.inner_min, features.inner_max) == (2, 0, 3)
    target = domain_of(BinnedColumn(name="y", edges=tuple(range(10_001)), role="target"))
    assert target.target_values("y")[-1] == 9999.5
    assert target.private_features().matrix.shape == (10_000, 0)


# Errors, and that they show nothing private.


def refusal(call, match):
    """The message of the refusal, after checking that no exception behind it shows the secret."""
    with pytest.raises(ValueError, match=match) as caught:
        call()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        assert error.__cause__ is None
        error = error.__context__
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize("container", [list, np.array, lambda x: np.array(x, dtype=object)])
@pytest.mark.parametrize("column", [sex(), age(name="sex"), income(name="sex")], ids=repr)
def test_undeclared_entry_is_refused_without_showing_it(column, container):
    entries = container(["F", SECRET, "M"])
    message = refusal(
        lambda: domain_of(income(), column).encode({"income": [0, 1, 0], "sex": entries}),
        rf"column 'sex' holds a null or a value outside its {column.size} declared values: declare "
        r"every value it may hold, or set other=True",
    )
    assert "F" not in message
    assert "3" not in message.replace("its 3 declared", "")  # neither rows nor their number


@pytest.mark.parametrize("null", [None, math.nan])
@pytest.mark.parametrize("column", [sex(), income(name="sex"), age(name="sex")], ids=repr)
def test_null_without_other_is_refused(column, null):
    valid = {"F": "F", "[": 20}.get(str(column.labels()[0])[0], 0)
    assert domain_of(column).encode({"sex": [valid]}).tolist() == [0]
    refusal(lambda: domain_of(column).encode({"sex": [valid, null]}), "column 'sex' holds a null")


@pytest.mark.parametrize(
    "entries",
    [
        SECRET,
        [[SECRET], ["M"]],
        [{SECRET: 1}],
        np.array([[SECRET, "M"]]),
        np.array(SECRET),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.array([SECRET], dtype="S"),
        np.array([1j]),
        7,
        None,
        {SECRET},
    ],
    ids=lambda entries: type(entries).__name__,
)
def test_entries_that_are_no_column_are_refused(entries):
    refusal(
        lambda: domain_of(sex(other=True)).encode({"sex": entries}),
        "column 'sex' must be one-dimensional and hold strings, numbers, bools or nulls",
    )


def test_dates_in_a_list_are_undeclared():
    table = {"sex": [datetime.date(2020, 1, 1), "F"]}
    assert domain_of(sex(other=True)).encode(table).tolist() == [2, 0]


def test_missing_ragged_and_empty_tables_are_refused():
    domain = domain_of(sex(), income())
    refusal(lambda: domain.encode({"sex": [SECRET]}), "column 'sex' holds")
    refusal(
        lambda: domain.encode({"sex": ["F"], "Income": [SECRET]}),
        "table must have the sensitive column 'income'",
    )
    refusal(
        lambda: domain.encode({"sex": ["F", "M"], "income": [SECRET]}),
        "table must have columns of one length: 'income' has 1 rows, 'sex' has 2",
    )
    refusal(
        lambda: domain.encode({"sex": [], "income": []}),
        "table must have at least one row, 'sex' is empty",
    )


@pytest.mark.parametrize("code", [-1, 4, 2**40, 1.0, True, "0", None])
def test_decode_refuses_what_is_no_code(code):
    with pytest.raises(ValueError, match=r"^code must be an integer in 0\.\.3$"):
        domain_of(sex(), income()).decode(code)


def test_decode_takes_numpy_integers():
    assert domain_of(sex(), income()).decode(np.int32(2)) == {"sex": "M", "income": 0}


@pytest.mark.parametrize("method", ["column_codes", "target_values", "target_classes"])
def test_unknown_column_names_are_refused(method):
    with pytest.raises(ValueError, match="one of the declared columns 'sex', 'income', got 'Sex'"):
        getattr(domain_of(sex(), income()), method)("Sex")


# Declarations.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, True), "must be distinct"),
        ((1, 1.0), "must be distinct"),
        ((0, False), "must be distinct"),
        (("a", "a"), "must be distinct"),
        ((1, "1"), "must be distinct, .* as text"),
        ((True, "True"), "must be distinct, .* as text"),
        (("a",), r"at least 2 possible values \(counting other\), got 1"),
        ((), r"at least 2 possible values \(counting other\), got 0"),
        (("a", None), "strings, finite numbers or bools, got None: nulls are covered by other"),
        (("a", math.nan), "strings, finite numbers or bools, got nan"),
        ((1, math.inf), "strings, finite numbers or bools, got inf"),
        ((1, 10**400), "strings, finite numbers or bools, got 1000"),
        ((1, b"a"), "strings, finite numbers or bools, got b'a'"),
    ],
    ids=str,
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        CategoricalColumn(name="x", values=values)


def test_values_must_be_a_sequence_other_than_text():
    with pytest.raises(TypeError, match="values of column 'x' must be a tuple, got 'FM'"):
        CategoricalColumn(name="x", values="FM")


def test_one_declared_value_and_other_are_enough():
    assert CategoricalColumn(name="x", values=("a",), other=True).size == 2
    assert BinnedColumn(name="x", edges=(0, 1), other=True).size == 2
    with pytest.raises(ValueError, match=r"must be distinct, .* other is called 'other'"):
        CategoricalColumn(name="x", values=("a", "other"), other=True)
    assert CategoricalColumn(name="x", values=("a", "other")).size == 2


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((0, 1, 1), "at least two strictly increasing numbers"),
        ((1, 0), "at least two strictly increasing numbers"),
        ((1,), "at least two strictly increasing numbers"),
        ((0, 1), "at least 2 possible values"),
        ((0, math.inf), "edges must hold finite numbers only"),
        ((0, math.nan, 1), "edges must hold finite numbers only"),
        (("a", "b"), "edges must be an array of numbers"),
    ],
    ids=str,
)
def test_bad_edges_are_refused(edges, message):
    with pytest.raises(ValueError, match=message):
        BinnedColumn(name="x", edges=edges)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name must be a non-empty string"),
        ({"name": 3}, "name must be a non-empty string"),
        ({"other": 1}, "other a bool, got 'sex' and 1"),
        ({"role": "label"}, "role must be one of 'feature', 'target', 'both', got 'label'"),
        ({"encoding": "onehot"}, "encoding must be one of 'one_hot', 'numeric', got 'onehot'"),
        ({"scale": 0}, "scale must be a positive finite number, got 0"),
        ({"encoding": "numeric"}, "must declare numbers only and no other, because a numeric"),
        ({"encoding": "numeric", "values": (0, 1), "other": True}, "numbers only and no other"),
        ({"encoding": "numeric", "values": (-1e308, 1e308)}, "positive finite range .* got inf"),
        ({"encoding": "numeric", "values": (2**60, 2**60 + 1)}, "positive finite range"),
    ],
    ids=str,
)
def test_bad_columns_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        sex(**changes)


def test_columns_take_plain_types_from_a_specification():
    column = CategoricalColumn(name="x", values=[np.int64(1), 2], role="both", encoding="numeric")
    assert column == CategoricalColumn(
        name="x", values=(1, 2), role=Role.BOTH, encoding=Encoding.NUMERIC
    )
    assert type(column.values[0]) is int
    assert BinnedColumn(name="x", edges=[0, 1, 2]).edges == (0.0, 1.0, 2.0)


def test_bad_domains_are_refused():
    with pytest.raises(ValueError, match="at least one, with distinct names, got \\[\\]"):
        domain_of()
    with pytest.raises(ValueError, match="with distinct names, got \\['sex', 'sex'\\]"):
        domain_of(sex(), sex())
    edges = tuple(range(102))
    with pytest.raises(ValueError, match="at most 10000 joint values, got 10201: declare fewer"):
        domain_of(BinnedColumn(name="a", edges=edges), BinnedColumn(name="b", edges=edges))


def test_domains_and_features_pickle():
    domain = domain_of(sex(), age(other=True), income())
    copy = pickle.loads(pickle.dumps(domain))
    assert copy == domain
    assert copy.decode(7) == domain.decode(7)
    features = pickle.loads(pickle.dumps(domain.private_features()))
    np.testing.assert_array_equal(features.matrix, domain.private_features().matrix)
    assert features.inner_max == domain.private_features().inner_max == 2


# Features of an arbitrary matrix.


def test_from_matrix_by_hand():
    features = PrivateFeatures.from_matrix([[3, 4], [-1, 0], [0, 2]])
    assert (features.max_norm, features.inner_min, features.inner_max) == (5, -3, 8)
    assert features.names == ("private_0", "private_1")
    assert PrivateFeatures.from_matrix(np.zeros((3, 0))).max_norm == 0


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_from_matrix_is_safe_beyond_brute_force(low):
    matrix = np.random.default_rng(2).uniform(low, 1.0, (2001, 3))
    features = PrivateFeatures.from_matrix(matrix)
    squared_norm = features.max_norm**2
    assert squared_norm == pytest.approx((matrix**2).sum(axis=1).max(), rel=1e-15)
    assert features.inner_min == (0 if low == 0 else pytest.approx(-squared_norm, rel=1e-15))
    assert features.inner_max == pytest.approx(squared_norm, rel=1e-15)
    products = (matrix @ matrix.T)[~np.eye(2001, dtype=bool)]
    assert features.inner_min <= products.min()
    assert features.inner_max >= products.max()
    exact = PrivateFeatures.from_matrix(matrix[:2000])
    assert features.inner_min < exact.inner_min < exact.inner_max < features.inner_max


def test_features_cannot_be_changed():
    matrix = np.eye(2)
    features = PrivateFeatures.from_matrix(matrix)
    matrix[0, 0] = 5.0
    assert features.matrix[0, 0] == 1.0
    for unchangeable in (features, domain_of(sex()).private_features()):
        with pytest.raises(ValueError, match="read-only"):
            unchangeable.entries[0, 0] = 2.0
        with pytest.raises(ValueError, match="read-only"):
            unchangeable.positions[0, 0] = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a",)}, r"positions must lie in 0\.\.0"),
        ({"entries": np.ones((1, 1))}, r"one row per code, at least 2, .* got \(1, 1\)"),
        ({"entries": np.full((2, 1), np.nan)}, "entries must hold finite numbers only"),
        ({"inner_min": 0.5, "inner_max": 0.4}, "inner_min and inner_max must be ordered"),
        ({"inner_min": -1.1}, "within the largest squared norm"),
        ({"inner_max": 1.1}, "within the largest squared norm"),
        ({"inner_max": math.nan}, "within the largest squared norm"),
        ({"entries": np.full((2, 1), 1e200)}, "within the largest squared norm"),
    ],
    ids=str,
)
def test_bad_features_are_refused(changes, message):
    valid = {
        "positions": np.array([[0], [1]]),
        "entries": np.ones((2, 1)),
        "names": ("a", "b"),
        "inner_min": 0.0,
        "inner_max": 0.0,
    }
    assert PrivateFeatures(**valid).max_norm == 1
    with pytest.raises(ValueError, match=message):
        PrivateFeatures(**{**valid, **changes})


def test_ten_thousand_codes_of_one_column_take_little_memory():
    domain = domain_of(CategoricalColumn(name="c", values=tuple(range(10_000))))
    features = domain.private_features()
    assert features.entries.nbytes + features.positions.nbytes < 200_000
    vector = np.arange(10_000.0)
    assert np.array_equal(features.apply(vector), vector)
    assert np.array_equal(features.pull_back(vector), vector)
    assert (features.inner_min, features.inner_max, features.max_norm) == (0.0, 0.0, 1.0)


@quick
@given(seed=st.integers(0, 1000))
def test_apply_and_pull_back_are_products_with_the_matrix(seed):
    rng = np.random.default_rng(seed)
    mixed = domain_of(
        sex(),
        CategoricalColumn(name="n", values=(1, 2, 5), encoding=Encoding.NUMERIC, scale=0.3),
        BinnedColumn(name="b", edges=(0.0, 1.0, 2.0, 4.0), scale=0.7),
    ).private_features()
    for features in (mixed, PrivateFeatures.from_matrix(rng.normal(size=(6, 3)))):
        vector = rng.normal(size=features.num_features)
        per_code = rng.normal(size=features.num_codes)
        np.testing.assert_allclose(features.apply(vector), features.matrix @ vector, atol=1e-13)
        np.testing.assert_allclose(
            features.pull_back(per_code), per_code @ features.matrix, atol=1e-13
        )
