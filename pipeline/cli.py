"""The command line ``ssdp``. Parsing only: every command's work is imported when it runs.

Exit codes: 0 success; 1 the command failed, with one sentence on standard error; 2 wrong usage;
3 the fit stopped before its last round (the paper's FAIL) and left what it had.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_DESCRIPTION = """\
Train many convex models from one table when only some of its columns are sensitive.
"""
_EXAMPLES = """\
examples:
  ssdp demo                                    three models from a generated ad table
  ssdp fit ads.toml --out run1                 prepare the table and fit, on this machine
  ssdp resume run1                             continue after an interruption
  ssdp evaluate run1 heldout.parquet           loss and accuracy on a held-out table
  ssdp predict run1 new.parquet --out s.parquet
  ssdp fit ads.toml --out gs://bucket/run1 -- --runner=DataflowRunner --project=p --region=r
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    beam_options: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, beam_options = words[:cut], words[cut + 1 :]
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 2
    if beam_options and arguments.command not in ("fit", "prepare", "demo"):
        parser.error(f"'{arguments.command}' takes no Beam options after --")
    arguments.beam_options = beam_options

    from pipeline import commands

    return commands.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ssdp",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    demo = commands.add_parser("demo", help="fit three models to a generated ad table")
    demo.add_argument("--rows", type=_rows, default=100_000, help="rows to generate (%(default)s)")
    demo.add_argument("--out", help="keep the run in this new directory")
    _common(demo, seed=True)

    prepare = commands.add_parser("prepare", help="table -> blocks (fit does it when needed)")
    prepare.add_argument("spec", metavar="SPEC")
    _common(prepare)

    fit = commands.add_parser(
        "fit",
        help="fit the problems of a specification",
        description="Beam options go after --, for example: -- --direct_num_workers=1",
    )
    fit.add_argument("spec", metavar="SPEC")
    fit.add_argument("--out", required=True, help="a new directory for the run, local or gs://")
    _common(fit, seed=True)

    resume = commands.add_parser("resume", help="continue an interrupted fit")
    resume.add_argument("directory", metavar="DIR")
    _common(resume)

    predict = commands.add_parser("predict", help="score a table with a run's models")
    predict.add_argument("directory", metavar="DIR")
    predict.add_argument("table", metavar="TABLE")
    predict.add_argument("--out", required=True, help="Parquet file, one score column per problem")
    _common(predict)

    evaluate = commands.add_parser(
        "evaluate", help="non-private loss and accuracy of a run's models on a table"
    )
    evaluate.add_argument("directory", metavar="DIR")
    evaluate.add_argument("table", metavar="TABLE")
    _common(evaluate)
    return parser


def _common(parser: argparse.ArgumentParser, *, seed: bool = False) -> None:
    if seed:
        parser.add_argument("--seed", type=int, help="reproducible noise, for tests: NOT PRIVATE")
    parser.add_argument("--quiet", action="store_true", help="print results and errors only")
    parser.add_argument("--json-logs", action="store_true", help="progress as JSON lines")


class _Version(argparse.Action):
    """Looks the version up only when asked: importing package metadata takes time."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, *_: object) -> None:
        from pipeline import __version__

        print(__version__)
        raise SystemExit(0)


def _rows(text: str) -> int:
    rows = int(text) if text.isdigit() else 0
    if rows < 100_000:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 100000, got {text!r}: with fewer rows the noise "
            "at epsilon = 1 hides what the demo shows"
        )
    return rows
