"""The command line as a user meets it, and what it leaves behind."""

from __future__ import annotations

import json
import re
import resource
import stat
import subprocess
import sys

import pytest
import tiny
from tiny import Tiny

COMMANDS = ("demo", "prepare", "fit", "resume", "predict", "evaluate")
RUN_FILES = {
    "spec.toml",
    "models.json",
    "encoder.json",
    "privacy.json",
    "metrics.json",
    "journal.jsonl",
    "run.json",
    "lock",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "t.parquet", tiny.table())
    return tmp_path


@pytest.fixture
def fit(folder, capsys):
    """Fits a tiny specification in this process; returns the exit code, output and directory."""

    def run(spec=None, *arguments, out="out"):
        path = (spec or Tiny()).write(folder)
        capsys.readouterr()
        code = tiny.run("fit", path, "--out", out, *arguments)
        return code, capsys.readouterr(), folder / out

    return run


def usage_error(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        tiny.run(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


# Help and usage


def test_help_shows_commands_and_examples(capsys):
    with pytest.raises(SystemExit) as stopped:
        tiny.run("--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^    {command} ", text, flags=re.M), command
    assert "examples:" in text
    assert "ssdp fit ads.toml --out run1" in text
    assert "-- --runner=DataflowRunner" in text


def test_the_examples_of_the_help_are_valid(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        tiny.run("--help")
    examples = re.findall(r"^  (ssdp .*?)(?:   .*)?$", capsys.readouterr().out, flags=re.M)
    assert len(examples) >= 5
    seen = []
    monkeypatch.setattr("pipeline.commands.run", lambda arguments: seen.append(arguments) or 0)
    for example in examples:
        assert tiny.run(*example.split()[1:]) == 0, example
    assert {arguments.command for arguments in seen} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        tiny.run(command, "--help")
    assert stopped.value.code == 0
    assert "--quiet" in capsys.readouterr().out


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from pipeline.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'apache_beam', 'numba', 'numpy', 'pyarrow', 'rich', 'scipy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert seconds < 0.5


def test_the_installed_script_answers():
    script = sys.executable.rsplit("/", 1)[0] + "/ssdp"
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", result.stdout)


def test_no_command_prints_help_and_fails(capsys):
    assert tiny.run() == 2
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "s.toml", "--out", "o", "--colour"], "unrecognized arguments: --colour"),
        (["fit", "s.toml"], "the following arguments are required: --out"),
        (["fit", "--out", "o"], "the following arguments are required: SPEC"),
        (["predict", "r", "t.parquet"], "the following arguments are required: --out"),
        (["evaluate", "r", "t.parquet", "--seed", "1"], "unrecognized arguments: --seed 1"),
        (["bake"], "invalid choice: 'bake'"),
        (["demo", "--rows", "7"], "must be a whole number of at least 100000, got '7'"),
        (["demo", "--rows", "many"], "must be a whole number of at least 100000, got 'many'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(capsys, arguments, words):
    assert words in usage_error(capsys, *arguments)


# Beam options


@pytest.mark.parametrize("command", ["resume", "predict", "evaluate"])
def test_beam_options_where_no_pipeline_is_configured(capsys, command):
    arguments = {"resume": ["r"], "predict": ["r", "t", "--out", "s"], "evaluate": ["r", "t"]}
    error = usage_error(capsys, command, *arguments[command], "--", "--direct_num_workers=1")
    assert f"'{command}' takes no Beam options after --" in error


@pytest.mark.parametrize(
    "options",
    [
        ["--direct_num_workers=1"],
        ["--runner=DirectRunner"],
        ["--runner=FnApiRunner", "--direct_num_workers=2"],
        ["--runner", "DirectRunner"],
    ],
    ids=" ".join,
)
def test_beam_options_after_two_dashes(fit, options):
    code, output, out = fit(Tiny(fit="num_steps = 1"), "--", *options)
    assert code == 0, output.err
    assert tiny.read_json(out / "run.json")["beam_options"] == options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--direct_num_workers=x"], "argument --direct_num_workers: invalid int value: 'x'"),
        (["--direct_num_worker=1"], "Beam's DirectRunner has no option --direct_num_worker"),
        (["--runner=NoRunner"], "Unexpected pipeline runner: NoRunner"),
        (["stray"], "Beam options after -- must start with --, got 'stray'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_beam_options_are_found_before_anything_is_written(fit, options, words):
    code, output, out = fit(None, "--", *options)
    assert code == 1
    (sentence,) = output.err.splitlines()
    assert words in sentence
    assert not out.exists()


def test_wrong_beam_options_in_a_process_of_its_own(folder):
    arguments = ("fit", Tiny().write(folder), "--out", "out", "--", "--direct_num_worker=1")
    result = tiny.ssdp(*arguments, cwd=folder)
    assert result.returncode == 1
    (sentence,) = result.stderr.splitlines()
    assert "no option --direct_num_worker" in sentence


def test_the_result_does_not_depend_on_beam_options(fit):
    models = []
    for workers in (1, 2):
        _, _, out = fit(
            None, "--seed", "4", "--", f"--direct_num_workers={workers}", out=f"out{workers}"
        )
        models.append((out / "models.json").read_bytes())
    assert models[0] == models[1]


# What a run leaves


def test_the_run_directory_has_the_files_of_the_contract(fit):
    code, output, out = fit()
    assert code == 0, output.err
    assert set(tiny.snapshot(out)) == RUN_FILES
    assert not [path for path in out.rglob("*") if path.is_dir()]
    models = tiny.read_json(out / "models.json")
    assert models["private"] is True
    assert models["complete"] is True
    assert models["warning"] is None
    (model,) = models["models"]
    assert model["name"] == "click"
    assert model["features"] == [
        "intercept",
        "age",
        "device=phone",
        "device=tablet",
        "segment=a",
        "segment=b",
        "segment=c",
    ]
    assert [len(weights) for weights in model["weights"]] == [7]
    assert model["intercept"] == [model["weights"][0][0]]


def test_privacy_json_accounts_for_every_charge(fit):
    _, _, out = fit()
    privacy = tiny.read_json(out / "privacy.json")
    assert privacy["private"] is True
    assert privacy["epsilon"] == 2.0
    assert privacy["delta"] == 1e-6
    assert privacy["sensitive_columns"] == ["segment"]
    assert 0 < privacy["rho_spent"] <= privacy["rho_budget"]
    assert 0 < privacy["epsilon_spent"] <= 2.0
    total = sum(charge["rho"] for charge in privacy["charges"])
    assert total == pytest.approx(privacy["rho_spent"])
    assert privacy["mode"] == "paper"


def test_metrics_json(fit):
    _, _, out = fit()
    metrics = tiny.read_json(out / "metrics.json")
    assert metrics["rounds"] == 2
    assert metrics["passes"] >= 2
    assert metrics["jobs"] == metrics["passes"] + 2  # two pipelines prepared the table
    assert metrics["seconds"] > 0


def test_the_resolved_specification_fits_again(fit, folder):
    _, _, out = fit(None, "--seed", "3")
    assert tiny.run("fit", out / "spec.toml", "--out", "again", "--seed", "3", "--quiet") == 0
    assert (folder / "again" / "models.json").read_bytes() == (out / "models.json").read_bytes()


def test_two_private_runs_differ_and_are_not_marked(fit):
    tight = Tiny(fit="num_steps = 2\ntau = 0.001")
    found = [fit(tight, out=name) for name in ("one", "two")]
    for _, output, out in found:
        assert "NOT PRIVATE" not in output.out + output.err
        assert "NOT PRIVATE" not in (out / "models.json").read_text()
    first, second = ((out / "privacy.json").read_text() for _, _, out in found)
    assert json.loads(first)["private"] is json.loads(second)["private"] is True
    assert (found[0][2] / "journal.jsonl").read_text() != (
        found[1][2] / "journal.jsonl"
    ).read_text()


def test_seed_marks_everything_as_not_private(fit):
    code, output, out = fit(None, "--seed", "1")
    assert code == 0
    assert "NOT PRIVATE" in output.out
    models = tiny.read_json(out / "models.json")
    assert models["private"] is False
    assert "NOT PRIVATE" in models["warning"]
    assert tiny.read_json(out / "privacy.json")["private"] is False


def test_epsilon_inf_marks_everything_as_not_private(fit):
    code, output, out = fit(Tiny(privacy='epsilon = "inf"\ndelta = 1e-6'))
    assert code == 0
    assert "NOT PRIVATE" in output.out
    models = tiny.read_json(out / "models.json")
    assert models["private"] is False
    assert "NOT PRIVATE" in models["warning"]
    privacy = tiny.read_json(out / "privacy.json")
    assert privacy["private"] is False
    assert privacy["epsilon"] == "inf"


def test_the_same_seed_gives_the_same_models(fit):
    texts = []
    for name in ("one", "two"):
        _, _, out = fit(None, "--seed", "9", out=name)
        texts.append((out / "models.json").read_bytes())
    assert texts[0] == texts[1]


def test_running_out_of_updates_has_its_own_exit_code(fit):
    spec = Tiny(fit="num_steps = 5\ntau = 1e-6\nmax_updates = 2")
    code, output, out = fit(spec)
    assert code == 3
    (sentence,) = output.err.splitlines()
    assert sentence.startswith("ssdp: stopped early: ")
    models = tiny.read_json(out / "models.json")
    assert models["complete"] is False
    assert models["private"] is True
    assert set(tiny.snapshot(out)) == RUN_FILES
    privacy = tiny.read_json(out / "privacy.json")
    assert privacy["rho_spent"] <= privacy["rho_budget"]


def test_a_finished_run_is_not_resumed(fit, folder, capsys):
    _, _, out = fit()
    before = tiny.snapshot(out)
    assert tiny.run("resume", out) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is finished: its results are in models.json" in sentence
    assert tiny.snapshot(out) == before


def test_resume_of_nothing(folder, capsys):
    (folder / "empty").mkdir()
    for name in ("nowhere", "empty"):
        assert tiny.run("resume", name) == 1
        (sentence,) = capsys.readouterr().err.splitlines()
        assert f"{name} has no run.json: it is not a run of ssdp fit" in sentence
    assert not (folder / "nowhere").exists()
    assert not list((folder / "empty").iterdir())


def test_prepare_then_fit_uses_what_was_prepared(fit, folder, capsys):
    assert tiny.run("prepare", Tiny().write(folder)) == 0
    assert "prepared 400 rows in 4 blocks" in capsys.readouterr().out
    before = tiny.snapshot(folder / "s.prepared")
    assert stat.S_IMODE((folder / "s.prepared" / "private").stat().st_mode) == 0o700
    _, output, _ = fit()
    assert "s.prepared is up to date: 400 rows" in output.out
    assert tiny.snapshot(folder / "s.prepared") == before


# Output


def test_quiet_prints_the_result_only(fit):
    _, output, _ = fit(None, "--quiet")
    (line,) = output.out.splitlines()
    assert re.search(r"out: 2 rounds, \d+ belief updates, epsilon spent [\d.]+ \(rho", line)
    assert output.err == ""


def test_quiet_still_says_that_a_run_is_not_private(fit):
    _, output, _ = fit(None, "--quiet", "--seed", "1")
    assert "NOT PRIVATE" in output.out


def test_quiet_prepare_prints_nothing(folder, capsys):
    assert tiny.run("prepare", Tiny().write(folder), "--quiet") == 0
    output = capsys.readouterr()
    assert output.out + output.err == ""


def test_quiet_still_prints_errors(folder, capsys):
    assert tiny.run("fit", "nowhere.toml", "--out", "o", "--quiet") == 1
    assert "cannot read nowhere.toml" in capsys.readouterr().err


@pytest.mark.parametrize("epsilon", ["2.0", '"inf"'])
def test_json_logs(fit, epsilon):
    spec = Tiny(privacy=f"epsilon = {epsilon}\ndelta = 1e-6")
    code, output, _ = fit(spec, "--json-logs", "--seed", "1")
    assert code == 0

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    events = [json.loads(line, parse_constant=refuse) for line in output.out.splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    assert [event["round"] for event in rounds] == [1, 2]
    for event in rounds:
        assert event["num_rounds"] == 2
        assert 0 <= event["num_updates"] <= event["max_updates"]
        assert event["epsilon"] == json.loads(epsilon)
        assert event["epsilon_spent"] is not None
        assert event["num_passes"] >= event["round"]
        assert event["rows_per_second"] > 0
    assert events[0] == {"event": "message", "message": "prepared 400 rows in 4 blocks"}
    assert events[-1]["event"] == "result"
    assert events[-1]["is_complete"] is True
    assert events[-1]["is_private"] is False
    assert "NOT PRIVATE" in events[-1]["warning"]
    assert output.err == ""


def test_json_logs_of_predict(fit, folder, capsys):
    fit()
    arguments = ["predict", "out", "t.parquet", "--out", "s.parquet"]
    assert tiny.run(*arguments, "--json-logs") == 0
    event = json.loads(capsys.readouterr().out)
    assert event == {"event": "result", "out": "s.parquet", "num_rows": 400}
    assert tiny.run(*arguments) == 0
    assert capsys.readouterr().out == "s.parquet: scores of 400 rows\n"


def test_a_whole_run_in_a_process_of_its_own(folder):
    spec_path = Tiny().write(folder)
    result = tiny.ssdp("fit", spec_path, "--out", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    first, last = result.stdout.splitlines()
    assert first == "prepared 400 rows in 4 blocks"
    assert last.startswith("out: 2 rounds")


# The demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    arguments = ("demo", "--rows", "100000", "--seed", "1", "--out", folder / "run")
    return folder, tiny.ssdp(*arguments, cwd=folder)


def test_demo_prints_models_privacy_and_error_and_marks_a_seed(demo):
    _, result = demo
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    number = r"(-?[\d.]+)"
    found = re.findall(rf"│ (\w+) +│ (\w+) +│ +{number} │ +{number} │", result.stdout)
    assert {name for name, *_ in found} == {"click", "install", "order_value"}
    for _, _, blind, ours in found:
        assert 0 <= float(ours) < float(blind)
    spent = re.search(r"epsilon = ([\d.]+) of 1 at delta", result.stdout)
    assert 0 < float(spent.group(1)) <= 1.0
    assert "NOT PRIVATE" in result.stdout


def test_demo_keeps_its_run(demo):
    folder, result = demo
    assert f"the run is kept in {folder / 'run'}" in result.stdout
    assert set(tiny.snapshot(folder / "run")) >= RUN_FILES
    assert not (folder / "run" / "work").exists()
    models = tiny.read_json(folder / "run" / "models.json")
    assert [model["name"] for model in models["models"]] == ["click", "install", "order_value"]
    assert models["private"] is False


def test_demo_refuses_a_directory_with_files(demo, capsys):
    folder, _ = demo
    before = tiny.snapshot(folder / "run")
    assert tiny.run("demo", "--out", folder / "run", "--quiet") == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is not empty: choose another --out" in sentence
    assert tiny.snapshot(folder / "run") == before


def test_quiet_private_demo_leaves_nothing_behind(tmp_path):
    result = tiny.ssdp("demo", "--quiet", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "NOT PRIVATE" not in result.stdout
    assert "private fit" in result.stdout
    assert not list(tmp_path.iterdir())
