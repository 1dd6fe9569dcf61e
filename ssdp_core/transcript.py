"""The transcript: every value released from private data, in order, with its charge.

A release is appended *before* it is used, and a run that finds a release already recorded under the
next number takes it from there instead of touching private data. So a restarted run continues where
it stopped, charges nothing twice and draws no second noise for a question already answered. This
module holds the types and an in-memory transcript; a durable one has the same two methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ssdp_core.accounting import Charge


@dataclass(frozen=True, kw_only=True)
class Release:
    """One released value.

    Attributes:
        sequence: position in the transcript, from 0.
        kind: which curator primitive released it.
        label: what it was about; with ``sequence`` it names the noise stream.
        charge: what it cost, or None if an earlier charge covers it.
        values: the released numbers by name (floats, bools, or float64 arrays).
    """

    sequence: int
    kind: str
    label: str
    charge: Charge | None
    values: Mapping[str, Any]


class Transcript(Protocol):
    """An append-only sequence of releases."""

    def recorded(self, sequence: int) -> Release | None:
        """The release with this number, or None if it has not happened yet."""

    def append(self, release: Release) -> None:
        """Records the next release; returns only when it is as durable as the transcript gets."""


class InMemoryTranscript:
    """A transcript that lives as long as the process."""

    def __init__(self) -> None:
        self.releases: list[Release] = []

    def recorded(self, sequence: int) -> Release | None:
        """The release with this number, or None."""
        return self.releases[sequence] if sequence < len(self.releases) else None

    def append(self, release: Release) -> None:
        """Appends; numbers must come without gaps."""
        if release.sequence != len(self.releases):
            raise ValueError(
                f"release number {release.sequence} does not follow {len(self.releases) - 1}"
            )
        self.releases.append(release)
