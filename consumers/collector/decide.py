"""When a part is due, and what a part's bytes are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import zstandard

from common.records import Progress
from common.settings import RunSettings
from common.store.runs import Counts

ZSTD_LEVEL: Final = 3
MAX_PART_BYTES: Final = 256 * 1024 * 1024
MOST_PARTS: Final = 16
"""Parts sealed at once at most: each seal reads its part's bytes within Redis."""


class Pending(msgspec.Struct, frozen=True):
    """What waits for a part: how many completions, and the age of the oldest in seconds."""

    waiting: int
    oldest_s: float | None


def part_due(pending: Pending, counts: Counts, *, ended: bool, batch_size: int, flush_s: float) -> bool:
    """Whether to make a part now: it is full, its oldest has waited long enough, or nothing more comes."""
    if not pending.waiting:
        return False
    if pending.waiting >= batch_size or (pending.oldest_s or 0.0) >= flush_s:
        return True
    return ended and counts.queued == 0 and counts.in_flight == 0


def parts_due(pending: Pending, batch_size: int) -> int:
    """How many parts to seal at once: those that are full, some at most, and one where none is."""
    return max(1, min(MOST_PARTS, pending.waiting // batch_size))


def run_over(pending: Pending, counts: Counts, *, ended: bool) -> bool:
    """Whether every prompt of the input has its end, and every completion is in a part."""
    settled = counts.queued == 0 and counts.in_flight == 0 and counts.stored == counts.completed
    return ended and not pending.waiting and settled


def part_bytes(lines: Iterable[bytes]) -> bytes:
    """A part: record lines, one zstd frame. The same lines give the same bytes."""
    text = b"\n".join(lines) + b"\n"
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(text)


class Sample(msgspec.Struct, frozen=True):
    """Completions and output tokens at one moment (monotonic seconds)."""

    at: float
    completed: int
    tokens: int


def rates(samples: list[Sample]) -> tuple[float | None, float | None]:
    """Completions/s and output tokens/s between the first and the last sample."""
    if len(samples) < 2 or samples[-1].at <= samples[0].at:  # noqa: PLR2004  # a rate needs two points
        return None, None
    span = samples[-1].at - samples[0].at
    done = max(0, samples[-1].completed - samples[0].completed)
    return round(done / span, 3), round(max(0, samples[-1].tokens - samples[0].tokens) / span, 1)


def progress_of(
    settings: RunSettings,
    counts: Counts,
    *,
    at: str,
    state: str,
    rate: float | None,
    tokens_rate: float | None,
) -> Progress:
    """The progress file's value from one snapshot of the counters."""
    total = settings.fingerprint.lines * settings.generation.samples
    left = max(0, total - counts.completed - counts.dead)
    return Progress(
        run=settings.run,
        accepted=counts.accepted,
        completed=counts.completed,
        stored=min(counts.stored, counts.completed),
        dead=counts.dead,
        queued=counts.queued,
        in_flight=counts.in_flight,
        at=at,
        state=state,
        rate_per_s=rate,
        output_tokens_per_s=tokens_rate,
        eta_s=round(left / rate, 1) if rate and left else (0.0 if not left else None),
        verdicts=counts.tally("verdict"),
    )
