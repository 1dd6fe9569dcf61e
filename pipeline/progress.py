"""Progress of a fit: a live line on a terminal, plain lines every few seconds elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 5.0


class FitProgress:
    """Shows rounds done, a status text and the time left.

    Args:
        console: where to write.
        description: what is running.
        total: number of rounds.
    """

    def __init__(self, console: Console, description: str, total: int) -> None:
        self._console = console
        self._description = description
        self._total = total
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(description, total=total, status="")

    def __enter__(self) -> FitProgress:
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

    def update(self, done: int, status: str) -> None:
        """Reports ``done`` rounds; ``status`` must hold released values only."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, status=status)
            return
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES and done < self._total:
            left = (now - self._started) / done * (self._total - done)
            self._last_line = now
            self._console.print(
                f"{self._description}: round {done} of {self._total}, {status}, "
                f"about {left:.0f} s left"
            )
