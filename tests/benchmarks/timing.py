"""Interleaved timing: candidates take turns, so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table


def interleaved(
    candidates: dict[str, Callable[[], object]], rounds: int = 15, repeats: int = 3
) -> dict[str, float]:
    """Best of ``rounds`` turns of ``repeats`` runs each, in seconds, after a warm-up.

    The repeats within a turn let every candidate find its own data in the cache; the best of many
    turns is what the machine can do when its neighbours are quiet, for every candidate alike.
    """
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            turn = []
            for _ in range(repeats):
                start = time.perf_counter()
                run()
                turn.append(time.perf_counter() - start)
            seconds[name].append(min(turn))
    return {name: min(values) for name, values in seconds.items()}


def report(title: str, rows: list[tuple[str, str, str]]) -> bool:
    """Prints (what, measured, target); True if no row is marked as missed."""
    table = Table(title=title, title_justify="left")
    for heading in ("measured in this run", "figure", "target"):
        table.add_column(heading, justify="left" if heading.startswith("m") else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
    return not any("MISSED" in row[2] for row in rows)


def judged(value: float, target: float) -> str:
    """The target, and whether it was missed."""
    return f">= {target:g}" + ("" if value >= target else "  MISSED")


def judged_at_most(value: float, target: float) -> str:
    """The ceiling, and whether it was missed."""
    return f"<= {target:g}" + ("" if value <= target else "  MISSED")
