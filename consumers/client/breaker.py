"""When a server's faults are its own: it fails one prompt after the other and finishes none.

A server may fail every request while its health endpoint says that all is well. vLLM does so while it drains
after SIGTERM: each new request is a 500 within milliseconds. A prompt that fails may be at fault itself;
many in a row are not. Pure: the clock is an argument.
"""

from __future__ import annotations

from typing import Final

import msgspec

PROMPTS: Final = 8
"""So many different prompts that failed since the last completion are the server's doing."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class Breaker(msgspec.Struct, frozen=True):
    """The prompts that failed since the last completion, and the pauses that they led to.

    `until` is when the pause under way ends, in monotonic seconds.
    """

    failed: frozenset[str] = frozenset()
    pauses: int = 0
    until: float = float("-inf")

    @property
    def tripped(self) -> bool:
        """Whether the server fails everybody: until it finishes a prompt, one at a time is risked."""
        return len(self.failed) >= PROMPTS

    def paused(self, now: float) -> bool:
        """Whether no job is to be taken now."""
        return now < self.until


WHOLE: Final = Breaker()
"""The state after a completion."""


def after_fault(breaker: Breaker, prompt: str, now: float) -> Breaker:
    """The state after a prompt failed by a fault of the server's.

    All that fail in one pause were sent before it: they lengthen nothing.
    """
    failed = breaker.failed if breaker.tripped else breaker.failed | {prompt}
    seen = msgspec.structs.replace(breaker, failed=failed)
    if not seen.tripped or breaker.paused(now):
        return seen
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(breaker.pauses, 60))
    return Breaker(failed, breaker.pauses + 1, now + pause)
