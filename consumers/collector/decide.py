"""When a part is due, and what a part's bytes are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import zstandard

from common.records import Progress
from common.settings import RunSettings
from common.store.runs import Counts, Part, Seal, Waiting

ZSTD_LEVEL: Final = 3
MAX_PART_BYTES: Final = 256 * 1024 * 1024


def part_due(waiting: Waiting, counts: Counts, *, ended: bool, batch_size: int, flush_s: float) -> bool:
    """Whether to make a part now: it is full, its oldest has waited long enough, or nothing more comes."""
    if not waiting.count:
        return False
    if waiting.count >= batch_size or (waiting.oldest_s or 0.0) >= flush_s:
        return True
    return ended and counts.queued == 0 and counts.in_flight == 0


def next_seal(waiting: Waiting, batch_size: int) -> Seal:
    """The seal under which to make parts of what waits: the one that stands, or it made to reach further.

    A seal for full parts may grow at any time, for that changes none of them. Its rule stays the same, also
    where it was made by another version. One for the rest is done with first.
    """
    standing = standing_seal(waiting.seal, batch_size)
    if standing is None:
        standing = Seal(waiting.last, batch_size, MAX_PART_BYTES, rest=False)
    elif standing.rest:
        return standing
    return msgspec.structs.replace(standing, last=waiting.last, rest=waiting.count < standing.records)


def standing_seal(text: str, batch_size: int) -> Seal | None:
    """The seal that stands, if one does."""
    if not text:
        return None
    words = text.splitlines()[-1].split(" ")
    if "-" in words[1]:
        # An earlier form: `number first last records`, a line for each part, cut by the same rule.
        return Seal(words[2], batch_size, MAX_PART_BYTES, rest=True)
    return Seal.parse(text)


def next_part(found: Sequence[tuple[str, bytes]], seal: Seal, number: int) -> tuple[Part, list[bytes]] | None:
    """The next part under a seal and its record lines, or None when no part is left.

    `found` are the completions (stream id, line) from the first that waits: as many as a part holds, or all
    that are under the seal.
    """
    lines: list[bytes] = []
    size = 0
    for _, line in found[: seal.records]:
        if lines and size + len(line) > seal.max_bytes:
            break
        lines.append(line)
        size += len(line)
    count = len(lines)
    if not count or (count == len(found) < seal.records and not seal.rest):
        return None
    return Part(number, found[0][0], found[count - 1][0], count, size), lines


def run_over(waiting: Waiting, counts: Counts, *, ended: bool) -> bool:
    """Whether every prompt of the input has its end, and every completion is in a part."""
    settled = counts.queued == 0 and counts.in_flight == 0 and counts.stored == counts.completed
    return ended and not waiting.count and settled


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
