"""Runs by name, for the commands that take one."""

from __future__ import annotations

from common.errors import RunNotFoundError
from common.store.runs import RunStore


def check_known(store: RunStore, run: str) -> None:
    """See that a Redis has a run.

    Raises:
        RunNotFoundError: it has not; the message names those that it has.
    """
    names = store.runs()
    if run in names:
        return
    there = f"it has {', '.join(names)}" if names else "it has none"
    raise RunNotFoundError(
        f"no run named {run} in this Redis; {there}. Name another Redis with --redis or RQ_REDIS_URL"
    )
