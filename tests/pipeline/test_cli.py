"""The command line as a user meets it: a separate process, installed script or module."""

import re
import subprocess
import sys


def ssdp(*arguments, cwd=None):
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pipeline.cli import main; sys.exit(main())",
            *arguments,
        ],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


def test_help_shows_real_examples():
    result = ssdp("--help")
    assert result.returncode == 0
    assert "ssdp demo --rows 400000" in result.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipeline.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str({'numpy', 'numba', 'scipy', 'apache_beam'} & set(sys.modules)) "
        "if {'numpy', 'numba', 'scipy', 'apache_beam'} & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_command_prints_help_and_fails():
    result = ssdp()
    assert result.returncode == 2
    assert "COMMAND" in result.stdout


def test_bad_arguments_say_what_was_expected():
    result = ssdp("demo", "--rows", "7")
    assert result.returncode == 2
    assert "must be a whole number of at least 100000, got '7'" in result.stderr
    assert ssdp("demo", "--colour").returncode == 2


def test_demo_prints_models_privacy_and_error_and_marks_a_seed():
    result = ssdp("demo", "--seed", "1")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    rows = dict(re.findall(r"│ (\w+) +│ \w+ +│ +[\d.]+ │ +([\d.]+) │", result.stdout))
    assert set(rows) == {"click", "install", "order_value"}
    blind = dict(re.findall(r"│ (\w+) +│ \w+ +│ +([\d.]+) │", result.stdout))
    for name, excess in rows.items():
        assert 0 <= float(excess) < float(blind[name])
    spent = re.search(r"epsilon = ([\d.]+) of 1 at delta", result.stdout)
    assert 0 < float(spent.group(1)) <= 1.0
    assert "NOT PRIVATE" in result.stdout
    assert (
        ssdp("demo", "--seed", "1").stdout.split("belief updates")[0]
        == (result.stdout.split("belief updates")[0])
    )


def test_demo_without_seed_is_private():
    result = ssdp("demo")
    assert result.returncode == 0, result.stderr
    assert "NOT PRIVATE" not in result.stdout
