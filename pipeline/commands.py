"""What the commands do, and how their results look on a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from pipeline.progress import Progress
from ssdp_core.errors import SsdpError

EXIT_STOPPED_EARLY = 3


def run(arguments: argparse.Namespace) -> int:
    """Runs the parsed command; expected failures become one sentence and exit code 1."""
    try:
        return _COMMANDS[arguments.command](arguments)
    except SsdpError as error:
        print(f"ssdp {arguments.command}: {error}", file=sys.stderr)
    except ValueError as error:
        # Raised by argument checks; their messages hold public numbers only.
        print(f"ssdp {arguments.command}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"ssdp {arguments.command}: interrupted", file=sys.stderr)
    return 1


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
    return _print_result(result)


def _resume(arguments: argparse.Namespace) -> int:
    from pipeline import fit

    progress = Progress(_console(arguments), json_lines=arguments.json_logs)
    with progress:
        result = fit.resume(arguments.directory, report=progress.say, watch=progress.show)
    return _print_result(result)


def _print_result(result: object) -> int:
    from pipeline.fit import FitResult

    assert isinstance(result, FitResult)  # both callers pass one
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{result.directory}: {result.num_rounds} rounds, {result.num_updates} belief updates, "
        f"epsilon spent {result.epsilon_spent:.3f} (rho {result.rho_spent:.5g} of "
        f"{result.rho_budget:.5g})"
    )
    if not result.is_private:
        console.print("NOT PRIVATE: the noise is reproducible (--seed) or off (epsilon = inf)")
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
    _console(arguments).print(f"{arguments.out}: scores of {rows:,} rows")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from pipeline.predict import Predictor

    scores = Predictor(arguments.directory).evaluate(arguments.table)
    table = Table(
        title=f"{scores[0].num_rows:,} rows of {arguments.table} (not private)",
        title_justify="left",
    )
    table.add_column("model")
    table.add_column("loss")
    table.add_column("mean loss", justify="right")
    table.add_column("accuracy", justify="right")
    for score in scores:
        accuracy = "" if score.accuracy is None else f"{score.accuracy:.4f}"
        table.add_row(score.name, score.loss, f"{score.mean_loss:.5f}", accuracy)
    Console().print(table)
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
