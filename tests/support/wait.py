"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A wait that succeeds costs nothing by being allowed long; a busy machine may need it.
PATIENCE = 4.0 if os.environ.get("CI") else 2.0


def patient(seconds: float) -> float:
    """How long to wait for what takes `seconds` at most on a machine with nothing else to do."""
    return seconds * PATIENCE


def wait_for(condition: Callable[[], T], what: str, timeout: float = 10.0) -> T:
    """The first true value of `condition`; fails, naming `what`, after `patient(timeout)` seconds."""
    allowed = patient(timeout)
    deadline = time.monotonic() + allowed
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {allowed:g} s: {what}")
        time.sleep(0.01)
    return value
