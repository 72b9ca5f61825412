"""Which completions are shown: a few of each verdict, the same ones however the parts are cut. Pure."""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from common.records import Message, Response

_MIX: Final = 0x9E37_79B9_7F4A_7C15
_MASK: Final = (1 << 64) - 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a record."""

    index: int
    id: str
    messages: list[Message]
    response: Response
    finish_reason: str
    server: str
    started_at: str
    latency_s: float
    attempts: int
    usage: dict[str, int | None] = {}
    sample: int = 0


def rank(index: int, sample: int) -> int:
    """A number that is as good as random, and the same whenever it is asked for."""
    mixed = ((index + 1) * _MIX + sample * 0xD6E8_FEB8_6659_FD93) & _MASK
    mixed = ((mixed ^ (mixed >> 32)) * _MIX) & _MASK
    return mixed ^ (mixed >> 29)


class Samples:
    """Keeps, of each verdict, the completions of the lowest ranks: a random choice that needs one pass."""

    def __init__(self, each: int) -> None:
        """Keep up to `each` of a verdict."""
        self._each = each
        self._kept: dict[str, list[tuple[int, int, Sample]]] = {}
        self._offered = 0
        self._decode = msgspec.json.Decoder(Sample).decode

    def offer(self, verdict: str, index: int, sample: int, line: bytes) -> None:
        """Keep the record on the line if its rank is low enough.

        Raises:
            msgspec.DecodeError: it would be kept, but holds no conversation and answer.
        """
        kept = self._kept.get(verdict)
        if kept is None:
            kept = self._kept[verdict] = []
        place = -rank(index, sample)
        if len(kept) >= self._each and (not kept or place <= kept[0][0]):
            return
        self._offered += 1
        entry = (place, self._offered, self._decode(line))
        if len(kept) < self._each:
            heapq.heappush(kept, entry)
        else:
            heapq.heapreplace(kept, entry)

    def of(self, verdict: str) -> list[Sample]:
        """The samples of a verdict, in the order of the input."""
        kept = [sample for _, _, sample in self._kept.get(verdict, [])]
        return sorted(kept, key=lambda sample: (sample.index, sample.sample))
