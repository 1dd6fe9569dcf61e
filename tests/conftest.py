"""Shared test settings.

``SSDP_REQUIRE_ALL=1`` (set by CI) turns "this component is missing" from a skip into a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ssdp", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("ssdp")


def require(present: bool, what: str) -> None:
    """Skips with a reason if an optional component is missing, or fails where CI requires it."""
    if present:
        return
    if os.environ.get("SSDP_REQUIRE_ALL") == "1":
        pytest.fail(f"{what} is missing, and SSDP_REQUIRE_ALL=1 does not allow skipping")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def project_root() -> Path:
    return Path(__file__).resolve().parent.parent
