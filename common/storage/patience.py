"""How long one call goes on through passing faults."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from common.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Patience(msgspec.Struct, frozen=True):
    """Limits in seconds. No attempt starts after `total_s`, though the last may take its timeouts more."""

    total_s: float = 30.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0

    def pause_s(self, attempt: int, chance: float) -> float:
        """The wait after failed attempt number `attempt` (from 0); `chance` in [0, 1) spreads callers out."""
        ceiling = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(attempt, 30))
        return ceiling * (1 + chance) / 2


def patiently(
    step: Callable[[], T],
    patience: Patience,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Do `step`, again and again while it fails with a transient `StorageError` and patience lasts.

    Raises:
        StorageError: the last one, as it was if it is not transient, else with how often it was tried.
    """
    started = clock()
    attempt = 0
    while True:
        try:
            return step()
        except StorageError as error:
            if not error.transient:
                raise
            pause = patience.pause_s(attempt, random.random())  # noqa: S311 - spreads load, guards nothing
            attempt += 1
            spent = clock() - started
            if spent + pause > patience.total_s:
                tried = f"{error} (tried {attempt} times in {spent:.0f} s)"
                raise StorageError(tried, transient=True) from None
        sleep(pause)
