"""What the commands do, and how their results look on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from pipeline.progress import Progress, json_line
from ssdp_core.errors import SsdpError

EXIT_STOPPED_EARLY = 3

# What a worker of this process raises is raised by the command too; Beam also logs its traceback.
# Beam warns about options that `_check_beam_options` refuses.
_DOUBLED_LOGGERS = (
    "apache_beam.options",
    "apache_beam.runners.common",
    "apache_beam.runners.worker",
)


def run(arguments: argparse.Namespace) -> int:
    """Runs the parsed command; expected failures become one sentence and exit code 1."""
    for name in _DOUBLED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Beam warns about optional Google packages while it is imported; a user can do nothing with it.
    logging.getLogger().setLevel(logging.ERROR)
    try:
        _check_beam_options(arguments.beam_options)
        return _COMMANDS[arguments.command](arguments)
    except (SsdpError, ValueError) as error:
        # ValueErrors come from argument checks; their messages hold public numbers only. Beam adds
        # the step to the message of an error that it passes on.
        sentence = str(error).partition(" [while running")[0]
        if type(error).__module__.startswith("pyarrow"):
            sentence = "an input cannot be read"  # Arrow quotes values, which may be private
        print(f"ssdp {arguments.command}: {sentence}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"ssdp {arguments.command}: interrupted", file=sys.stderr)
    return 1


def _check_beam_options(options: Sequence[str]) -> None:
    """Finds mistakes before anything is written; Beam finds some late, and some never."""
    if not options:
        return
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import create_runner

    if not options[0].startswith("-"):
        raise ValueError(f"Beam options after -- must start with --, got {options[0]!r}")
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            parsed = PipelineOptions(list(options))
            known = parsed.get_all_options()
            given = parsed.get_all_options(retain_unknown_options=True)
    except SystemExit:  # after its usage, which is longer than a screen
        reason = output.getvalue().strip().rpartition("error: ")[2]
        raise ValueError(f"Beam refuses the options after --: {reason}") from None
    if known.get("runner") in (None, "DirectRunner", "direct", "FnApiRunner"):
        for name in sorted(set(given) - set(known)):
            # Other runners may know options that this machine does not.
            raise ValueError(f"Beam's DirectRunner has no option --{name} (after --)")
    else:
        create_runner(known["runner"])


def _console(arguments: argparse.Namespace) -> Console:
    return Console(quiet=arguments.quiet, soft_wrap=True, highlight=False)


def _fit(arguments: argparse.Namespace) -> int:
    from pipeline import fit

    progress = Progress(_console(arguments), json_lines=arguments.json_logs)
    with progress:
        result = fit.start(
            arguments.spec,
            arguments.out,
            seed=arguments.seed,
            beam_options=arguments.beam_options,
            report=progress.say,
            watch=progress.show,
        )
    return _print_result(result, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    from pipeline import fit

    progress = Progress(_console(arguments), json_lines=arguments.json_logs)
    with progress:
        result = fit.resume(arguments.directory, report=progress.say, watch=progress.show)
    return _print_result(result, arguments)


def _print_result(result: object, arguments: argparse.Namespace) -> int:
    from pipeline.fit import FitResult

    assert isinstance(result, FitResult)  # both callers pass one
    warning = "NOT PRIVATE: the noise is reproducible (--seed) or off (epsilon = inf)"
    if arguments.json_logs:
        shown = None if result.is_private else warning
        print(json_line({"event": "result", **asdict(result), "warning": shown}))
    else:
        console = Console(soft_wrap=True, highlight=False)
        console.print(
            f"{result.directory}: {result.num_rounds} rounds, {result.num_updates} belief "
            f"updates, epsilon spent {result.epsilon_spent:.3f} (rho {result.rho_spent:.5g} of "
            f"{result.rho_budget:.5g})"
        )
        if not result.is_private:
            console.print(warning)
    if not result.is_complete:
        print(f"ssdp: stopped early: {result.message}", file=sys.stderr)
        return EXIT_STOPPED_EARLY
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from pipeline.fit import prepared_folder
    from pipeline.launch import Launcher
    from pipeline.prepare import prepare
    from pipeline.spec import load_spec

    spec = load_spec(arguments.spec)
    progress = Progress(_console(arguments), json_lines=arguments.json_logs)
    folder = prepared_folder(spec, arguments.spec)
    prepare(spec, folder, Launcher(arguments.beam_options), progress.say)
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from pipeline.predict import Predictor

    rows = Predictor(arguments.directory).predict(arguments.table, arguments.out)
    if arguments.json_logs:
        print(json_line({"event": "result", "out": arguments.out, "num_rows": rows}))
    else:
        _console(arguments).print(f"{arguments.out}: scores of {rows:,} rows")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from pipeline.predict import Predictor

    scores = Predictor(arguments.directory).evaluate(arguments.table)
    if arguments.json_logs:
        for score in scores:
            print(json_line({"event": "result", **asdict(score)}))
        return 0
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{scores[0].num_rows:,} rows of {arguments.table} (not private)")
    table = Table()
    table.add_column("model")
    table.add_column("loss")
    table.add_column("mean loss", justify="right")
    table.add_column("accuracy", justify="right")
    for score in scores:
        accuracy = "" if score.accuracy is None else f"{score.accuracy:.4f}"
        table.add_row(score.name, score.loss, f"{score.mean_loss:.5f}", accuracy)
    console.print(table)
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from pipeline.demo import run_demo

    return run_demo(arguments)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo,
    "evaluate": _evaluate,
    "fit": _fit,
    "predict": _predict,
    "prepare": _prepare,
    "resume": _resume,
}
