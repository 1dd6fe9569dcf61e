"""Scores and held-out losses, against computations by hand."""

from __future__ import annotations

import errno
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tiny
from tiny import SECRET, Tiny

from pipeline import dataset
from pipeline.blocks import unpack, unpack_public
from pipeline.predict import Predictor
from pipeline.run_directory import RunDirectory
from ssdp_core import nonprivate
from ssdp_core.features import DenseFeatures, PublicRows
from ssdp_core.problems import LinearErm

NOISE_OFF = 'epsilon = "inf"\ndelta = 1e-6'
BUYS = '[data.sensitive.buys]\nvalues = [0, 1]\nrole = "target"'


def full_table(num_rows=300, seed=1):
    table = tiny.table(num_rows, seed)
    table["buys"] = (table["age"] + 10 * (table["segment"] == "a") > 45).astype(np.int64)
    table["plan"] = (table["age"] // 20).clip(0, 2).astype(np.int64)
    return table


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run without noise: five problems over public and sensitive targets."""
    folder = tmp_path_factory.mktemp("run")
    tiny.write(folder / "t.parquet", full_table())
    spec = Tiny(
        path=str(folder / "t.parquet"),
        sensitive=f"{Tiny().sensitive}\n{BUYS}",
        privacy=NOISE_OFF,
        problems=[
            'name = "click"\ntarget = "click"\nloss = "logistic"\nl2 = 0.05',
            'name = "value"\ntarget = "value"\nloss = "squared"\nl2 = 0.05',
            'name = "buys"\ntarget = "buys"\nloss = "logistic"\nl2 = 0.05',
            'name = "plan"\ntarget = "plan"\nloss = "multinomial"\nnum_classes = 3\nl2 = 0.05',
            'name = "margin"\ntarget = "click"\nloss = "smooth_hinge"\nl2 = 0.05',
        ],
        fit="num_steps = 6\ntau = 0.04\neta = 0.5",
    )
    out = folder / "out"
    assert tiny.run("fit", spec.write(folder), "--out", out, "--quiet") == 0
    return out


@pytest.fixture
def new_table(tmp_path):
    """Rows that the fit has not seen."""
    table = full_table(200, seed=2)
    return table, tiny.write(tmp_path / "new.parquet", table)


def predicted(run, path):
    out = path.with_name("scores.parquet")
    assert Predictor(str(run)).predict(str(path), str(out)) > 0
    return parquet.read_table(out)


def margins_by_hand(run, table):
    """<w, x> from nothing but models.json, encoder.json and the table."""
    plan = json.loads(tiny.read_json(run / "encoder.json")["plan"])
    age = next(column for column in plan["columns"] if column["column"] == "age")
    standardised = np.clip((table["age"] - age["mean"]) / age["standard_deviation"], -5, 5) / 5
    public = {
        "intercept": np.ones(len(table["age"])),
        "age": standardised,
        "device=phone": (table["device"] == "phone").astype(float),
        "device=tablet": (table["device"] == "tablet").astype(float),
    }
    norm = np.maximum(1.0, np.sqrt(sum(column**2 for column in public.values())))
    features = {name: column / norm for name, column in public.items()}
    # One sensitive feature column, so its one-hot features have length 1.
    features.update({f"segment={s}": (table["segment"] == s).astype(float) for s in "abc"})
    margins = {}
    for model in tiny.read_json(run / "models.json")["models"]:
        columns = np.stack([features[name] for name in model["features"]], axis=1)
        margins[model["name"]] = columns @ np.array(model["weights"]).T
    return margins


def sigmoid(margins):
    return 1 / (1 + np.exp(-margins))


def test_scores_are_what_models_json_says(run, new_table):
    table, path = new_table
    scores = predicted(run, path)
    margins = margins_by_hand(run, table)
    assert scores.num_rows == 200
    for name in ("click", "buys"):
        expected = sigmoid(margins[name][:, 0])
        np.testing.assert_allclose(scores[name].to_numpy(), expected, atol=1e-6)
    for name in ("value", "margin"):
        np.testing.assert_allclose(scores[name].to_numpy(), margins[name][:, 0], atol=1e-6)


def test_multinomial_gives_a_probability_per_class(run, new_table):
    table, path = new_table
    scores = predicted(run, path)
    assert scores.column_names == [
        "click",
        "value",
        "buys",
        "plan_0",
        "plan_1",
        "plan_2",
        "margin",
    ]
    found = np.stack([scores[f"plan_{c}"].to_numpy() for c in range(3)], axis=1)
    exponentials = np.exp(margins_by_hand(run, table)["plan"])
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def training_rows(run):
    """The prepared table in memory."""
    prepared = RunDirectory(str(run)).facts().prepared
    manifest = dataset.load_manifest(prepared)
    blocks, codes = [], []
    for block in manifest.blocks:
        with open(dataset.public_path(prepared, block.name), "rb") as file:
            blocks.append(unpack_public(file.read()))
        with open(dataset.private_path(prepared, block.name), "rb") as file:
            codes.append(unpack(file.read())[0]["codes"])
    rows = PublicRows(
        num_rows=manifest.num_rows,
        features=DenseFeatures(np.concatenate([b.features.values for b in blocks])),
        columns={
            name: np.concatenate([b.columns[name] for b in blocks]) for name in blocks[0].columns
        },
    )
    return rows, np.concatenate(codes)


def test_scores_and_losses_agree_with_exact_evaluation(run, tmp_path):
    path = tiny.write(tmp_path / "train.parquet", full_table())
    scores = predicted(run, path)
    evaluated = {score.name: score for score in Predictor(str(run)).evaluate(str(path))}
    rows, codes = training_rows(run)
    predictor = Predictor(str(run))
    domain = predictor.spec.domain()
    problems = predictor.spec.problems(domain)
    for problem, model in zip(problems, predictor.models, strict=True):
        private = predictor.spec.private_features(domain, problem)
        erm = LinearErm.from_rows(problem, rows, private)
        weights = model.weights.reshape(-1)
        margins = nonprivate.margins(erm, rows, codes, weights)
        if problem.name in ("click", "buys"):
            np.testing.assert_allclose(scores[problem.name].to_numpy(), sigmoid(margins))
        elif problem.name != "plan":
            np.testing.assert_allclose(scores[problem.name].to_numpy(), margins)
        loss = nonprivate.objective(erm, rows, codes, weights)
        loss -= 0.5 * problem.l2 * float(weights @ weights)
        assert evaluated[problem.name].mean_loss == pytest.approx(loss, rel=1e-9)


def test_every_model_lies_between_the_zero_model_and_the_best(run):
    """Sanity only: the run is short and its threshold coarse, so this says nothing of accuracy."""
    rows, codes = training_rows(run)
    predictor = Predictor(str(run))
    domain = predictor.spec.domain()
    for problem, model in zip(predictor.spec.problems(domain), predictor.models, strict=True):
        erm = LinearErm.from_rows(problem, rows, predictor.spec.private_features(domain, problem))
        at_zero = nonprivate.objective(erm, rows, codes, np.zeros(model.weights.size))
        ours = nonprivate.objective(erm, rows, codes, model.weights.reshape(-1))
        best = nonprivate.objective(erm, rows, codes, nonprivate.minimise(erm, rows, codes))
        assert best <= ours + 1e-9
        assert ours < at_zero


def test_evaluate_by_hand(run, new_table):
    table, path = new_table
    margins = margins_by_hand(run, table)
    found = {score.name: score for score in Predictor(str(run)).evaluate(str(path))}
    assert {score.num_rows for score in found.values()} == {200}
    for name in ("click", "buys"):
        z, y = margins[name][:, 0], table[name]
        loss = np.mean(np.log1p(np.exp(-np.where(y == 1, z, -z))))
        assert found[name].mean_loss == pytest.approx(loss, abs=1e-6)
        assert found[name].accuracy == np.mean((z > 0) == (y == 1))
    residual = margins["value"][:, 0] - table["value"]
    assert found["value"].mean_loss == pytest.approx(0.5 * np.mean(residual**2), abs=1e-6)
    assert found["value"].accuracy is None
    logits = margins["plan"]
    picked = logits[np.arange(200), table["plan"]]
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - picked)
    assert found["plan"].mean_loss == pytest.approx(loss, abs=1e-6)
    assert found["plan"].accuracy == np.mean(logits.argmax(axis=1) == table["plan"])


def test_evaluate_prints_the_same_numbers(run, new_table, capsys):
    _, path = new_table
    expected = Predictor(str(run)).evaluate(str(path))
    assert tiny.run("evaluate", run, path) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"200 rows of {path} (not private)\n")
    for score in expected:
        (line,) = [line for line in printed.splitlines() if f" {score.name} " in line]
        assert f"{score.mean_loss:.5f}" in line
        assert score.accuracy is None or f"{score.accuracy:.4f}" in line
    assert tiny.run("evaluate", run, path, "--json-logs") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["mean_loss"] for event in events] == [score.mean_loss for score in expected]


def test_targets_need_not_be_in_the_table_to_predict(run, new_table, tmp_path):
    table, path = new_table
    expected = predicted(run, path)
    few = {name: table[name] for name in ("segment", "device", "age")}
    for suffix in ("parquet", "csv"):
        found = predicted(run, tiny.write(tmp_path / f"few.{suffix}", few))
        assert found.equals(expected)


def test_unseen_categories_count_as_none(run, new_table, tmp_path):
    table, _ = new_table
    table["device"] = np.where(np.arange(200) < 50, "watch", table["device"])
    scores = predicted(run, tiny.write(tmp_path / "watch.parquet", table))
    expected = sigmoid(margins_by_hand(run, table)["click"][:, 0])
    np.testing.assert_allclose(scores["click"].to_numpy(), expected, atol=1e-6)


def test_nulls_in_a_public_column_count_as_none(run, new_table, tmp_path):
    table, _ = new_table
    table["device"] = np.where(np.arange(200) < 50, None, table["device"].astype(object))
    scores = predicted(run, tiny.write(tmp_path / "null.parquet", table))
    expected = sigmoid(margins_by_hand(run, table)["click"][:, 0])
    np.testing.assert_allclose(scores["click"].to_numpy(), expected, atol=1e-6)


def test_extreme_margins_do_not_overflow(run, new_table):
    _, path = new_table
    predictor = Predictor(str(run))
    for model in predictor.models:
        model.weights[:] *= 1e6
    out = path.with_name("extreme.parquet")
    predictor.predict(str(path), str(out))
    for column in parquet.read_table(out).columns:
        assert np.isfinite(column.to_numpy()).all()
    assert all(np.isfinite(score.mean_loss) for score in predictor.evaluate(str(path)))


def test_several_files_and_blocks_keep_the_order_of_rows(run, new_table, tmp_path, monkeypatch):
    table, path = new_table
    expected = predicted(run, path)
    whole = pa.table(table)
    tiny.write(tmp_path / "part-0.parquet", whole.slice(0, 70), row_group_size=16)
    tiny.write(tmp_path / "part-1.parquet", whole.slice(70), row_group_size=16)
    monkeypatch.setattr("pipeline.predict._BLOCK_ROWS", 33)
    out = tmp_path / "scores-of-parts.parquet"
    assert tiny.run("predict", run, tmp_path / "part-*.parquet", "--out", out) == 0
    for name in expected.column_names:
        np.testing.assert_allclose(
            parquet.read_table(out)[name].to_numpy(), expected[name].to_numpy(), rtol=1e-12
        )


# Mistakes


@pytest.fixture
def refused(run, tmp_path, capsys):
    def check(command, *arguments):
        before = (tiny.snapshot(run), tiny.snapshot(tmp_path))
        capsys.readouterr()
        assert tiny.run(command, *arguments) == 1
        (sentence,) = capsys.readouterr().err.splitlines()
        assert sentence.startswith(f"ssdp {command}: ")
        assert SECRET not in sentence
        assert (tiny.snapshot(run), tiny.snapshot(tmp_path)) == before  # and no output file
        return sentence

    return check


def both(refused, run, table, out):
    return [refused("predict", run, table, "--out", out), refused("evaluate", run, table)]


def test_table_that_is_missing(run, refused, tmp_path):
    for sentence in both(refused, run, tmp_path / "none.parquet", tmp_path / "s.parquet"):
        assert "no file matches" in sentence


@pytest.mark.parametrize("column", ["age", "segment"])
def test_column_that_is_missing(run, refused, tmp_path, column):
    table = full_table(20)
    del table[column]
    path = tiny.write(tmp_path / "t.parquet", table)
    for sentence in both(refused, run, path, tmp_path / "s.parquet"):
        assert f"has no column '{column}'" in sentence


def test_target_that_is_missing(run, refused, tmp_path):
    table = full_table(20)
    del table["buys"]
    sentence = refused("evaluate", run, tiny.write(tmp_path / "t.parquet", table))
    assert "has no column 'buys'" in sentence


def test_damaged_table(run, refused, tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really")
    for sentence in both(refused, run, tmp_path / "t.parquet", tmp_path / "s.parquet"):
        assert "cannot be read as Parquet" in sentence


def test_empty_table(run, refused, tmp_path):
    path = tiny.write(tmp_path / "t.parquet", pa.table(full_table(20)).slice(0, 0))
    for sentence in both(refused, run, path, tmp_path / "s.parquet"):
        assert "the table is empty" in sentence


def test_numbers_where_the_fit_saw_text(run, refused, tmp_path):
    table = full_table(20)
    table["device"] = np.arange(20)
    path = tiny.write(tmp_path / "t.parquet", table)
    for sentence in both(refused, run, path, tmp_path / "s.parquet"):
        assert "column 'device' must hold strings, as it did" in sentence


def test_csv_with_digits_where_the_fit_saw_text(run, tmp_path):
    table = full_table(20)
    table["device"] = np.arange(20)
    path = tiny.write(tmp_path / "t.csv", table)
    assert predicted(run, path).num_rows == 20


def test_undeclared_private_value(run, refused, tmp_path):
    table = full_table(20)
    table["segment"] = np.full(20, SECRET)
    path = tiny.write(tmp_path / "t.parquet", table)
    for sentence in both(refused, run, path, tmp_path / "s.parquet"):
        assert "column 'segment' holds a null or a value outside its 3 declared" in sentence


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([None, 1] * 10), "target column 'click' must have no nulls"),
        (["yes", "no"] * 10, "target column 'click' must hold numbers"),
        (np.arange(20), "target column 'click' must hold only 0 and 1"),
    ],
    ids=["nulls", "text", "other numbers"],
)
def test_targets_that_cannot_be_evaluated(run, refused, tmp_path, values, words):
    path = tiny.write(tmp_path / "t.parquet", {**full_table(20), "click": values})
    assert words in refused("evaluate", run, path)


def test_a_mistake_in_a_later_block_leaves_no_file(run, refused, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.predict._BLOCK_ROWS", 8)
    table = full_table(20)
    table["segment"][19] = "z"
    path = tiny.write(tmp_path / "t.parquet", table)
    (tmp_path / "s.parquet").write_text("older scores")
    sentence = refused("predict", run, path, "--out", tmp_path / "s.parquet")
    assert "column 'segment'" in sentence


def test_out_that_is_the_table(run, refused, tmp_path, monkeypatch):
    path = tiny.write(tmp_path / "t.parquet", full_table(20))
    assert "--out must not be the table itself" in refused("predict", run, path, "--out", path)
    monkeypatch.chdir(tmp_path)
    sentence = refused("predict", run, "*.parquet", "--out", path)
    assert "--out must not be the table itself" in sentence


def test_out_in_a_folder_that_is_missing_or_no_folder(run, refused, tmp_path):
    path = tiny.write(tmp_path / "t.parquet", full_table(20))
    for out in (tmp_path / "no" / "s.parquet", path / "s.parquet", tmp_path):
        assert str(out) in refused("predict", run, path, "--out", out)


def test_out_in_a_folder_that_is_not_writable(run, refused, tmp_path, monkeypatch):
    path = tiny.write(tmp_path / "t.parquet", full_table(20))
    (tmp_path / "locked").mkdir(mode=0o500)
    out = tmp_path / "locked" / "s.parquet"
    if os.geteuid() == 0:  # root may write everywhere: simulate what anyone else would meet
        really_open = open

        def denied(name, mode="r", *rest, **options):
            if "locked" in str(name) and mode != "r":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
            return really_open(name, mode, *rest, **options)

        monkeypatch.setattr("builtins.open", denied)
    assert "permission denied" in refused("predict", run, path, "--out", out)


@pytest.mark.parametrize("name", ["models.json", "encoder.json"])
@pytest.mark.parametrize("content", ['{"models": [', "{}", "[1]"])
def test_damaged_run(run, refused, tmp_path, name, content):
    path = tiny.write(tmp_path / "t.parquet", full_table(20))
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(content)
    for sentence in both(refused, tmp_path / "copy", path, tmp_path / "s.parquet"):
        assert "is damaged: restore it, or fit again" in sentence


def test_a_directory_that_is_no_run(refused, tmp_path):
    path = tiny.write(tmp_path / "t.parquet", full_table(20))
    for sentence in both(refused, tmp_path, path, tmp_path / "s.parquet"):
        assert "has no models.json: it is not a run of ssdp fit" in sentence
