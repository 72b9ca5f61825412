"""Watches the verdicts of the last completions, and pauses a run or a server when they go bad.

What counts as bad is decided by the pure `quality.guard.check`; this reads the window that Redis keeps for
all consumers together, and writes the pause that stops them all.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from common.log import get_logger
from common.records import Verdict
from common.settings import QualitySettings
from common.store.claims import ClaimStore
from common.store.runs import iso_now
from consumers.quality.guard import PauseServer, check

log = get_logger("consumer")


class Guarding:
    """Looks at every window that `finish` returns."""

    def __init__(self, store: ClaimStore) -> None:
        """Use the consumer's own store."""
        self.store = store

    async def look(self, windows: dict[str, dict[str, int]]) -> None:
        """Judge the windows, and pause what went bad."""
        for run, tally in windows.items():
            settings = (await self.store.settings(run)).quality
            if not settings.guard:
                continue
            overall, by_server = split_tally(tally)
            found = check(overall, by_server, settings)
            if found is not None:
                accepted, paused = await self.store.guard_state(run)
                found = check(overall, by_server, accepting(settings, accepted), paused=paused)
            if found is None:
                continue
            scope = found.server if isinstance(found, PauseServer) else "*"
            samples = await self.store.samples(run, found.verdict.value)
            reason = {
                "sentence": found.sentence,
                "verdict": found.verdict.value,
                "share": found.share,
                "samples": samples,
                "at": iso_now(),
            }
            if await self.store.pause(run, scope, reason):
                log.error(
                    "run_paused_by_guard", run=run, scope=scope, sentence=found.sentence, samples=samples
                )


def accepting(settings: QualitySettings, verdicts: set[str]) -> QualitySettings:
    """The settings with these verdicts never a reason to pause."""
    limits = {**settings.limits, **{Verdict(verdict): 1.0 for verdict in verdicts}}
    return msgspec.structs.replace(settings, limits=limits)


def split_tally(tally: dict[str, int]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """The window's counts by verdict, and by server and verdict, from Redis's flat form of both."""
    overall: dict[str, int] = {}
    by_server: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, count in tally.items():
        verdict, _, server = name.partition(" ")
        if server:
            by_server[server][verdict] = count
        else:
            overall[verdict] = count
    return overall, dict(by_server)
