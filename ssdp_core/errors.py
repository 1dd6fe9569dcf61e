"""States that a caller may want to handle by name.

Bad arguments are plain ``ValueError`` or ``TypeError``; the classes here describe what happened
during a run. No message ever contains a private value or an unreleased statistic.
"""

from __future__ import annotations


class SsdpError(Exception):
    """Base class of every named ssdp error."""


class BudgetExhaustedError(SsdpError):
    """A charge was refused because it would exceed the privacy budget; nothing was released."""


class OutOfUpdatesError(SsdpError):
    """The paper's FAIL: all belief updates are used. Everything answered so far stays valid."""


class TranscriptMismatchError(SsdpError):
    """A recorded release does not belong to the question now being asked."""
