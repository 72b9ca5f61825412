"""What a test needs from the machine: absent on a laptop it skips, absent in CI it fails."""

from __future__ import annotations

import os

import pytest


def require(condition: object, reason: str) -> None:
    """Go on if `condition` holds; otherwise skip, or fail where `CI` is set: CI installs everything."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"needed in CI: {reason}", pytrace=False)
    pytest.skip(reason)
