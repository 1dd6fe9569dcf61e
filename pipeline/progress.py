"""Progress of a fit: a live line on a terminal, plain or JSON lines elsewhere.

Everything shown is public or released: rounds, updates, budget, passes, speed, time left.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

if TYPE_CHECKING:
    from pipeline.fit import Status

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Shows messages and the status after every round.

    Args:
        console: where to write; a quiet one shows nothing.
        json_lines: one JSON object per event instead of text.
    """

    def __init__(self, console: Console, *, json_lines: bool = False) -> None:
        self._console = console
        self._json_lines = json_lines
        self._started = time.monotonic()
        self._last_line = self._started
        self._first_round: int | None = None
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        if console.is_terminal and not json_lines and not console.quiet:
            self._bar = RichProgress(
                TextColumn("rounds"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, message: str) -> None:
        """One line of information."""
        if self._json_lines:
            self._json({"event": "message", "message": message})
        else:
            self._console.print(message)

    def show(self, status: Status) -> None:
        """The state after a round."""
        if self._json_lines:
            self._json({"event": "round", **asdict(status)})
            return
        text = (
            f"{status.num_updates} of {status.max_updates} updates, "
            f"epsilon {status.epsilon_spent:.3f} of {status.epsilon:g}, "
            f"{status.num_passes} passes, {status.rows_per_second / 1e6:.2f} Mrows/s"
        )
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task("", total=status.num_rounds, status="")
            self._bar.update(self._task, completed=status.round, status=text)
            return
        now = time.monotonic()
        if self._first_round is None:
            # The first round also pays for preparation and compilation: time left counts from it.
            self._first_round, self._started = status.round, now
            return
        if now - self._last_line >= _SECONDS_BETWEEN_LINES and status.round < status.num_rounds:
            done = status.round - self._first_round
            left = (now - self._started) / done * (status.num_rounds - status.round)
            self._last_line = now
            self._console.print(
                f"round {status.round} of {status.num_rounds}: {text}, about {left:.0f} s left"
            )

    def _json(self, event: dict[str, object]) -> None:
        if not self._console.quiet:
            print(json_line(event), file=self._console.file, flush=True)


def json_line(event: Mapping[str, object]) -> str:
    """An event as one line of JSON, which has no infinity."""
    finite = {
        name: "inf" if isinstance(value, float) and math.isinf(value) else value
        for name, value in event.items()
    }
    return json.dumps(finite, allow_nan=False)
