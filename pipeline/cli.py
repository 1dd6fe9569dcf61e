"""The command line ``ssdp``. Parsing only: every command's work is imported when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

_DESCRIPTION = """\
Train many convex models from one table when only some of its columns are sensitive.
"""
_EXAMPLES = """\
examples:
  ssdp demo                     three models from a generated ad table, in seconds
  ssdp demo --rows 400000       the same on a larger table
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code (0 success, 1 failure, 2 wrong usage)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 2
    from ssdp_core.errors import SsdpError

    try:
        return int(arguments.run(arguments))
    except SsdpError as error:
        print(f"ssdp {arguments.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ssdp",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=metadata.version("ssdp-beam"))
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="fit three models to a generated ad table",
        description="Fits three models to a generated ad table at epsilon = 1, delta = 1e-6.",
    )
    demo.add_argument("--rows", type=_rows, default=100_000, help="rows to generate (%(default)s)")
    demo.add_argument("--seed", type=int, help="reproducible noise, for tests: NOT PRIVATE")
    demo.set_defaults(run=_demo)
    return parser


def _rows(text: str) -> int:
    rows = int(text) if text.isdigit() else 0
    if rows < 100_000:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 100000, got {text!r}: with fewer rows the noise "
            "at epsilon = 1 hides what the demo shows"
        )
    return rows


def _demo(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from pipeline.demo import print_demo, run_demo

    console = Console()
    result = run_demo(num_rows=arguments.rows, seed=arguments.seed, console=console)
    print_demo(result, num_rows=arguments.rows, console=console)
    return 0
