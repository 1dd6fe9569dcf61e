"""The specification: what it accepts, what it fills in, and what it says when it is wrong."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.spec import (
    ColumnEncoding,
    DataSpec,
    PrivacySpec,
    ProblemSpec,
    SensitiveSpec,
    Spec,
    SpecError,
    UnitSpec,
    load_spec,
    parse_spec,
)
from ssdp_core.losses import HuberLoss, LogisticLoss, MultinomialLoss
from ssdp_core.problems import PrivateTarget, PublicTarget

FULL = """
[data]
path = ["a/*.parquet", "gs://bucket/b.csv"]
features = ["age", "job", "spend", "site id", "hours"]
block_rows = 1000
feature_norm = 2
prepared = "prepared"

[data.encode.age]
kind = "bins"
edges = [0, 18, 65.5]
[data.encode.job]
kind = "one_hot"
values = ["clerk", "smith"]
[data.encode.spend]
kind = "log"
[data.encode."site id"]
kind = "hashed"

[data.sensitive.sex]
values = ["F", "M"]
other = true
[data.sensitive.wage]
edges = [0, 10, 20, 40]
role = "both"
encoding = "numeric"
[data.sensitive.bought]
values = [0, 1]
role = "target"

[data.unit]
column = "user"
max_rows = 3

[privacy]
epsilon = 1
delta = 1e-6

[[problem]]
name = "buy"
target = "bought"
loss = "logistic"
l2 = 0
[[problem]]
name = "wage.class"
target = "wage"
loss = "multinomial"
[[problem]]
name = "clicks"
target = "clicks"
loss = "huber"
threshold = 2
radius = 5

[fit]
tau = 0.1
max_updates = 7
solver = "gradient"

[ledger]
path = "ledger.jsonl"
"""

SMALL = """
[data]
path = "table.csv"
features = ["age"]
[data.sensitive.sex]
values = ["F", "M"]
[privacy]
epsilon = 1.0
delta = 1e-6
[[problem]]
name = "click"
target = "click"
loss = "logistic"
"""


def changed(old: str, new: str, text: str = SMALL) -> str:
    assert old in text
    return text.replace(old, new, 1)


def message(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_key_is_read():
    spec = parse_spec(FULL)
    data = spec.data
    assert data.path == ("a/*.parquet", "gs://bucket/b.csv")
    assert (data.block_rows, data.feature_norm, data.prepared) == (1000, 2.0, "prepared")
    assert data.unit == UnitSpec(column="user", max_rows=3)
    assert data.encode == (
        ColumnEncoding(column="age", kind="bins", edges=(0.0, 18.0, 65.5)),
        ColumnEncoding(column="job", kind="one_hot", values=("clerk", "smith")),
        ColumnEncoding(column="spend", kind="log"),
        ColumnEncoding(column="site id", kind="hashed", bits=18),
        ColumnEncoding(column="hours", kind="auto"),
    )
    assert spec.privacy == PrivacySpec(epsilon=1.0, delta=1e-6)
    assert (spec.fit.mode, spec.fit.tau, spec.fit.max_updates) == ("paper", 0.1, 7)
    assert (spec.fit.solver, spec.fit.eta, spec.fit.num_steps) == ("gradient", None, None)
    assert spec.ledger.path == "ledger.jsonl"
    assert spec.public_columns() == ("age", "job", "spend", "site id", "hours", "clicks", "user")
    assert spec.public_targets() == ("clicks",)
    assert spec.sensitive_columns() == ("sex", "wage", "bought")


def test_defaults():
    spec = parse_spec(SMALL)
    assert spec.data.path == ("table.csv",)
    assert (spec.data.block_rows, spec.data.feature_norm) == (65_536, 1.0)
    assert (spec.data.prepared, spec.data.unit, spec.ledger.path) == (None, None, None)
    assert spec.data.sensitive == (SensitiveSpec(column="sex", values=("F", "M"), scale=1.0),)
    assert (spec.problem_specs[0].l2, spec.problem_specs[0].radius) == (1e-3, 10.0)
    assert (spec.fit.truncation, spec.fit.zeta, spec.fit.tight_charges) == (3.0, 0.5, True)


def test_private_features_share_the_norm_equally():
    spec = parse_spec(FULL)
    scales = {column.column: column.scale for column in spec.data.sensitive}
    assert scales == {"sex": 2 / math.sqrt(2), "wage": 2 / math.sqrt(2), "bought": 1.0}
    features = spec.domain().private_features()
    assert features.max_norm == pytest.approx(2.0, rel=1e-12)
    by_hand = parse_spec(changed('encoding = "numeric"', 'encoding = "numeric"\nscale = 3', FULL))
    assert [column.scale for column in by_hand.data.sensitive] == [2 / math.sqrt(2), 3.0, 1.0]


def test_domain_and_problems():
    spec = parse_spec(FULL)
    domain = spec.domain()
    assert domain.num_codes == 3 * 3 * 2
    buy, wage, clicks = spec.problems(domain)
    assert isinstance(buy.loss, LogisticLoss)
    assert isinstance(buy.target, PrivateTarget)
    np.testing.assert_array_equal(buy.target.values, np.tile([0.0, 1.0], 9))
    assert wage.loss == MultinomialLoss(num_classes=3)
    assert isinstance(wage.target, PrivateTarget)
    np.testing.assert_array_equal(wage.target.values, np.tile(np.repeat([0, 1, 2], 2), 3))
    assert clicks.loss == HuberLoss(threshold=2.0)
    assert clicks.target == PublicTarget(column="clicks")
    assert (clicks.radius, clicks.l2, buy.l2) == (5.0, 1e-3, 0.0)


def test_a_problem_does_not_see_the_column_it_predicts():
    spec = parse_spec(FULL)
    domain = spec.domain()
    buy, wage, _ = spec.problems(domain)
    assert spec.private_features(domain, buy).names == ("sex=F", "sex=M", "sex=other", "wage")
    assert spec.private_features(domain, wage).names == ("sex=F", "sex=M", "sex=other")
    assert spec.private_features(domain, spec.problem_specs[1]).names[-1] == "sex=other"
    with pytest.raises(ValueError, match=r"problem must be one of 'buy', .* got 'new'"):
        spec.private_features(domain, dataclasses.replace(buy, name="new"))


@pytest.mark.parametrize("text", [SMALL, FULL, changed("epsilon = 1.0", 'epsilon = "inf"')])
def test_round_trip(text):
    spec = parse_spec(text)
    again = parse_spec(spec.to_toml())
    assert again == spec
    assert again.to_toml() == spec.to_toml()
    assert again.digest() == spec.digest()
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_resolved_text_shows_defaults():
    text = parse_spec(SMALL).to_toml()
    for line in (
        'path = ["table.csv"]',
        "block_rows = 65536",
        '[data.encode.age]\nkind = "auto"',
        'role = "feature"',
        "scale = 1.0",
        "l2 = 0.001",
        "zeta = 0.5",
        "tight_charges = true",
    ):
        assert line in text


def test_digest_is_of_the_meaning_not_of_the_text():
    digest = parse_spec(SMALL).digest()
    assert len(digest) == 64
    assert parse_spec("# a comment\n" + changed('"table.csv"', '["table.csv"]')).digest() == digest
    assert parse_spec(changed("delta = 1e-6", "delta = 1e-7")).digest() != digest


@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, unique=True
    ),
    labels=st.lists(
        st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=5, unique=True
    ),
    epsilon=st.floats(min_value=0, exclude_min=True),
    number=st.floats(allow_nan=False, allow_infinity=False),
)
def test_round_trip_of_odd_names_and_numbers(names, labels, epsilon, number):
    *features, sensitive = names
    spec = Spec(
        data=DataSpec(
            path=("a.csv",),
            features=tuple(features),
            encode=(ColumnEncoding(column=features[0], kind="one_hot", values=(number, True, "x")),)
            if number != 1.0
            else (),
            sensitive=(SensitiveSpec(column=sensitive, values=tuple(labels)),),
        ),
        privacy=PrivacySpec(epsilon=epsilon, delta=0.25),
        problem_specs=(ProblemSpec(name="p", target="".join(names) + "t", loss="squared"),),
    )
    assert parse_spec(spec.to_toml()) == spec


def test_epsilon_infinity_in_both_spellings():
    as_text = parse_spec(changed("epsilon = 1.0", 'epsilon = "inf"'))
    assert as_text.privacy.epsilon == math.inf
    assert parse_spec(changed("epsilon = 1.0", "epsilon = inf")) == as_text


def test_features_may_all_be_sensitive():
    assert parse_spec(changed('features = ["age"]', "")).data.features == ()


WRONG = [
    # Keys
    ("[privacy]", "[privcy]", r"the specification has no key 'privcy': did you mean 'privacy'"),
    ("features =", "feature =", r"\[data\] has no key 'feature': did you mean 'features'\?"),
    ("values =", "value =", r"\[data.sensitive.sex\] has no key 'value': did you mean 'values'"),
    ("epsilon = 1.0", "epsilon = 1.0\nrho = 1", r"\[privacy\] has no key 'rho'"),
    ('loss = "logistic"', 'loss = "logistic"\nl1 = 1', r"\[\[problem\]\] 'click' has no key 'l1'"),
    ("[[problem]]", "[fit]\nstep = 1\n[[problem]]", r"\[fit\] has no key 'step'"),
    ("[privacy]", '[data.sensitive."a b"]\nx = 1\n[privacy]', r'\[data.sensitive."a b"\] has no'),
    # Missing
    ('path = "table.csv"', "", r"\[data\] must set path, for example path = "),
    ("delta = 1e-6", "", r"\[privacy\] must set delta, for example delta = 1e-6"),
    ('name = "click"', "", r"\[\[problem\]\] number 1 must set name"),
    ("[privacy]", "[data.unit]\nmax_rows = 1\n[privacy]", r"\[data.unit\] must set column"),
    ("[privacy]\nepsilon = 1.0\ndelta = 1e-6", "", r"must have the table \[privacy\]"),
    ('[data.sensitive.sex]\nvalues = ["F", "M"]', "", r"\[data.sensitive\] must declare at least"),
    # Types
    ("[[problem]]", "[problem]", r"\[\[problem\]\] must be written with double brackets"),
    ("[privacy]", "[data.encode]\nage = 3\n[privacy]", r"\[data.encode.age\] must be a table"),
    ('"table.csv"', "3", r"\[data\] path must be a list of non-empty strings, got 3"),
    ('"table.csv"', "[3]", r"\[data\] path must be a list of non-empty strings"),
    ('"table.csv"', "[]", r"\[data\] path must name at least one file"),
    ('"table.csv"', '"table.xls"', r"path must end in .parquet or .csv, got 'table.xls'"),
    ('["age"]', '"age"', r"\[data\] features must be a list of non-empty strings, got 'age'"),
    ('["age"]', '["age", "age"]', r"features must not repeat an entry, got 'age'"),
    ('["age"]', '["age"]\nblock_rows = 0', r"block_rows must be a whole number of at least 1"),
    ('["age"]', '["age"]\nblock_rows = true', r"block_rows must be a whole number"),
    ('["age"]', '["age"]\nfeature_norm = 0', r"feature_norm must be a positive finite number"),
    ('["age"]', '["age"]\nfeature_norm = 1e9', r"feature_norm must lie between 1e-06 and 1e\+06"),
    ('["age"]', '["age"]\nprepared = ""', r"\[data\] prepared must be a non-empty string"),
    ("1e-6", '"small"', r"\[privacy\] delta must be strictly between 0 and 0.5, got 'small'"),
    ("1e-6", "1" + "0" * 400, r"\[privacy\] holds a number that is too large"),
    # Sensitive columns
    ('["F", "M"]', '["F"]', r"\[data.sensitive.sex\] column 'sex' must have at least 2 possible"),
    ('["F", "M"]', '["F", "F"]', r"\[data.sensitive.sex\] values must be distinct"),
    ('["F", "M"]', '[1, "1"]', r"\[data.sensitive.sex\] values must be distinct"),
    ('["F", "M"]', "[nan, 1]", r"values must be a list of strings, finite numbers or bools"),
    ('["F", "M"]', "[1979-05-27, 1]", r"values must be a list of strings, finite numbers or"),
    ('["F", "M"]', '"FM"', r"\[data.sensitive.sex\] values must be a list .* got 'FM'"),
    ('values = ["F", "M"]', "", r"values or edges must declare .* got neither"),
    ('["F", "M"]', '["F", "M"]\nedges = [1, 2]', r"exactly one of them, got both"),
    ('values = ["F", "M"]', "edges = [2, 1, 0]", r"edges must be a list of at least two finite"),
    ('values = ["F", "M"]', 'edges = ["0", "1", "2"]', r"edges must be a list of at least two"),
    ('values = ["F", "M"]', "edges = [0, 1, inf]", r"edges must be a list of at least two finite"),
    ('["F", "M"]', '["F", "M"]\nother = 1', r"\[data.sensitive.sex\] other must be true or false"),
    (
        '["F", "M"]',
        '["F", "M"]\nrole = "label"',
        r"role must be one of 'feature', 'target', 'both'",
    ),
    ('["F", "M"]', '["F", "M"]\nencoding = "log"', r"encoding must be one of 'one_hot', 'numeric'"),
    ('["F", "M"]', '["F", "M"]\nencoding = "numeric"', r"column 'sex' must declare numbers only"),
    ('["F", "M"]', '["F", "M"]\nscale = 0', r"scale must be a positive finite number, got 0"),
    (
        "[privacy]",
        f"[data.sensitive.big]\nvalues = {list(range(6000))}\n[privacy]",
        r"\[data.sensitive\] columns must have at most 10000 joint values, got 12000",
    ),
    ('["age"]', '["age", "sex"]', r"\[data.sensitive.sex\] declares 'sex' as sensitive, but"),
    (
        'features = ["age"]\n[data.sensitive.sex]',
        '[data.sensitive.sex]\nrole = "target"',
        r"\[data\] features must name at least one column, because no sensitive column",
    ),
    # Units
    (
        "[privacy]",
        '[data.unit]\ncolumn = "u"\nmax_rows = 0\n[privacy]',
        r"max_rows must be a whole",
    ),
    (
        "[privacy]",
        '[data.unit]\ncolumn = "sex"\nmax_rows = 1\n[privacy]',
        r"\[data.unit\] column must be public, but \[data.sensitive.sex\] declares",
    ),
    # Privacy
    ("epsilon = 1.0", "epsilon = 0", r"\[privacy\] epsilon must be a positive number.* got 0$"),
    ("epsilon = 1.0", "epsilon = -1.5", r"epsilon must be a positive number, .* got -1.5$"),
    ("epsilon = 1.0", "epsilon = nan", r"epsilon must be a positive number"),
    ("epsilon = 1.0", "epsilon = true", r"epsilon must be a positive number"),
    ("epsilon = 1.0", 'epsilon = "large"', r"epsilon must be a positive number, or \"inf\""),
    ("1e-6", "0", r"delta must be strictly between 0 and 0.5, got 0"),
    ("1e-6", "0.5", r"delta must be strictly between 0 and 0.5, got 0.5"),
    # Problems
    ('name = "click"', 'name = "a/b"', r"'a/b' name must consist of letters, digits"),
    ('name = "click"', "name = 1", r"\[\[problem\]\] number 1 name must be a non-empty string"),
    ('"logistic"', '"logistics"', r"loss must be one of .*: did you mean 'logistic'\?"),
    ('"logistic"', '["logistic"]', r"\[\[problem\]\] 'click' loss must be one of"),
    ('"logistic"', '"logistic"\nthreshold = 1', r"logistic loss takes no parameters, got thresh"),
    ('"logistic"', '"pinball"\nquantile = 1', r"quantile must be strictly between 0 and 1, got 1"),
    ('"logistic"', '"multinomial"', r"'click' must set num_classes, .* public target 'click'"),
    ('"logistic"', '"multinomial"\nnum_classes = 1', r"num_classes must be a whole number of at"),
    ('"logistic"', '"multinomial"\nwidth = 1', r"multinomial loss takes num_classes"),
    ('"logistic"', '"logistic"\nl2 = -1', r"l2 must be a non-negative finite number, got -1"),
    ('"logistic"', '"logistic"\nradius = 0', r"radius must be a positive finite number, got 0"),
    ('target = "click"', 'target = "age"', r"'click' target must not be a feature, but 'age'"),
    ('target = "click"', 'target = "sex"', r"target 'sex' is a sensitive column with role = 'fea"),
    ('target = "click"', 'target = ""', r"target must be a non-empty string"),
    (
        "[[problem]]",
        '[[problem]]\nname = "click"\ntarget = "y"\nloss = "squared"\n[[problem]]',
        r"\[\[problem\]\] names must be distinct, got 'click' more than once",
    ),
    # Fit and ledger
    ("[[problem]]", '[fit]\nmode = "swep"\n[[problem]]', r"\[fit\] mode must be one of 'paper'"),
    ("[[problem]]", '[fit]\nsolver = "sgd"\n[[problem]]', r"\[fit\] solver must be one of 'auto'"),
    ("[[problem]]", "[fit]\ntau = 0\n[[problem]]", r"\[fit\] tau must be a positive finite number"),
    ("[[problem]]", "[fit]\neta = -1\n[[problem]]", r"\[fit\] eta must be a positive finite"),
    ("[[problem]]", "[fit]\nzeta = 1\n[[problem]]", r"\[fit\] zeta must be strictly between 0"),
    ("[[problem]]", "[fit]\ntruncation = 0\n[[problem]]", r"\[fit\] truncation must be a positive"),
    (
        "[[problem]]",
        "[fit]\nmax_updates = 1.5\n[[problem]]",
        r"\[fit\] max_updates must be a whole",
    ),
    ("[[problem]]", "[fit]\nnum_steps = 0\n[[problem]]", r"\[fit\] num_steps must be a whole"),
    (
        "[[problem]]",
        "[fit]\ntight_charges = 1\n[[problem]]",
        r"tight_charges must be true or false",
    ),
    ("[[problem]]", "[ledger]\npath = 1\n[[problem]]", r"\[ledger\] path must be a non-empty"),
]


@pytest.mark.parametrize(("old", "new", "match"), WRONG)
def test_what_is_wrong_is_one_sentence_that_says_where(old, new, match):
    text = changed(old, new)
    with pytest.raises(SpecError, match=match):
        parse_spec(text)
    assert message(text).startswith("spec: ")


ENCODINGS = [
    ('kind = "nmeric"', r"kind must be one of 'auto', .*: did you mean 'numeric'\?"),
    ("edges = [1, 2]", r"edges must only be set with kind = 'bins', got kind = 'auto'"),
    ('kind = "log"\nvalues = [1, 2]', r"values must only be set with kind = 'one_hot'"),
    ('kind = "one_hot"\nbits = 4', r"bits must only be set with kind = 'hashed'"),
    ('kind = "bins"', r"edges must be a list of at least two finite numbers .* got None"),
    ('kind = "bins"\nedges = [true, 2]', r"edges must be a list of at least two finite numbers"),
    ('kind = "one_hot"\nvalues = []', r"values must be a list of strings, finite numbers or bools"),
    ('kind = "one_hot"\nvalues = [1, true]', r"values must be distinct"),
    ('kind = "hashed"\nbits = 3', r"bits must be a whole number of at least 4, got 3"),
    ('kind = "hashed"\nbits = 25', r"bits must be a whole number in 4..24, got 25"),
    ('kind = "hashed"\nbit = 8', r"has no key 'bit': did you mean 'bits'\?"),
]


@pytest.mark.parametrize(("keys", "match"), ENCODINGS)
def test_wrong_encodings(keys, match):
    with pytest.raises(SpecError, match=r"^spec: \[data.encode.age\] " + match):
        parse_spec(changed("[privacy]", f"[data.encode.age]\n{keys}\n[privacy]"))


def test_encoding_of_a_column_that_is_no_feature():
    text = changed("[privacy]", '[data.encode.height]\nkind = "log"\n[privacy]')
    assert "[data.encode.height] must encode a column that is listed" in message(text)


def test_a_specification_without_problems():
    assert "[[problem]] must occur at least once" in message(SMALL.split("[[problem]]")[0])


@pytest.mark.parametrize(
    ("values", "loss", "match"),
    [
        ("[1, 2]", '"logistic"', "declared values of column 'y' must hold only 0 and 1"),
        ("[0, 1]\nother = true", '"logistic"', "column 'y' must declare numbers only and no other"),
        ('["a", "b"]', '"squared"', "column 'y' must declare numbers only"),
        ("[0, 1]", '"multinomial"\nnum_classes = 3', "num_classes must be 2, the number of decl"),
    ],
)
def test_sensitive_target_that_does_not_suit_the_loss(values, loss, match):
    text = changed(
        "[privacy]", f'[data.sensitive.y]\nrole = "target"\nvalues = {values}\n[privacy]'
    )
    text = changed('target = "click"', 'target = "y"', text)
    assert match in message(changed('"logistic"', loss, text))


def test_multinomial_takes_its_classes_from_the_domain():
    text = changed(
        "[privacy]",
        '[data.sensitive.y]\nrole = "target"\nvalues = ["a", "b", "c"]\nother = true\n[privacy]',
    )
    text = changed(
        'target = "click"\nloss = "logistic"', 'target = "y"\nloss = "multinomial"', text
    )
    assert parse_spec(text).problem_specs[0].num_classes == 4


def test_invalid_toml_says_where():
    found = message(changed("epsilon = 1.0", "epsilon = = 1"))
    assert "not valid TOML: Invalid value (at line 8" in found


def test_files(tmp_path):
    path = tmp_path / "fit.toml"
    path.write_text(SMALL)
    assert load_spec(str(path)) == parse_spec(SMALL)
    path.write_text("\ufeff" + SMALL, encoding="utf-8")
    assert load_spec(str(path)) == parse_spec(SMALL)
    path.write_text(changed("epsilon", "epsilom"))
    with pytest.raises(SpecError, match=r"fit.toml: \[privacy\] has no key 'epsilom'"):
        load_spec(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"cannot read .*fit.toml: it must be text in UTF-8"):
        load_spec(str(path))
    with pytest.raises(SpecError, match=r"cannot read .*none.toml: No such file"):
        load_spec(str(tmp_path / "none.toml"))
    with pytest.raises(SpecError, match=r"cannot read .*: Is a directory"):
        load_spec(str(tmp_path))


def test_dataclasses_check_themselves_without_toml():
    with pytest.raises(ValueError, match="epsilon must be a positive number"):
        PrivacySpec(epsilon=-1.0, delta=0.1)
    with pytest.raises(ValueError, match="max_rows must be a whole number"):
        dataclasses.replace(UnitSpec(column="u", max_rows=1), max_rows=0)


def test_importing_the_specification_loads_neither_beam_nor_arrow():
    code = (
        "import sys, pipeline.spec; "
        "bad = {'apache_beam', 'pyarrow'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
