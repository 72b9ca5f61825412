"""Several runs into one set: which record stands for a prompt that more than one run answered.

The rule: among the records of one (id, sample) that have a wanted verdict, the one whose verdict is named
first in `--verdict` wins; among equals, the one of the run given last. Records are told apart through files
of hashes, a bucket at a time, so memory holds a small share of them; what remains is one bit per record.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from common.records import Verdict
from ops.export.errors import ExportError
from ops.export.sources import Ledger, iter_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ops.export.sources import Source
    from ops.export.spill import Buckets

_ENTRY: Final = struct.Struct("<16s8sHHQ")
"""Hash of id and sample, hash of the prompt, verdict's rank, run's number, unit."""


class _Head(msgspec.Struct, frozen=True):
    index: int
    id: str
    verdict: Verdict
    messages: list[Any]
    sample: int = 0


class Winners:
    """The records that stand, run by run."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._ledgers = [Ledger(source) for source in sources]

    def stands(self, source: Source, unit: int) -> bool:
        """Whether this record is the one that its prompt is exported with."""
        return self._ledgers[source.number].has(unit)

    def add(self, number: int, unit: int) -> None:
        """Let a record stand."""
        self._ledgers[number].mark(unit)


def find_winners(sources: Sequence[Source], verdicts: Sequence[Verdict], buckets: Buckets) -> Winners:
    """Read every run once and decide between records of the same prompt.

    Raises:
        ExportError: two runs have different prompts under one id, so they are not runs of one set of prompts.
        OutputError: a part is missing or damaged.
    """
    ranks = {verdict: rank for rank, verdict in enumerate(verdicts)}
    decoder = msgspec.json.Decoder(_Head)
    for source in sources:
        for head in chain.from_iterable(iter_source(source, decoder)):
            rank = ranks.get(head.verdict)
            if rank is None:
                continue
            key = hashlib.blake2b(f"{head.sample}:{head.id}".encode(), digest_size=16).digest()
            unit = head.index * source.samples + head.sample
            buckets.add(key, _ENTRY.pack(key, _prompt_hash(head.messages), rank, source.number, unit))
    winners = Winners(sources)
    for path in buckets.close():
        _decide(path, winners, sources)
    return winners


def _decide(path: Path, winners: Winners, sources: Sequence[Source]) -> None:
    best: dict[bytes, tuple[bytes, int, int, int]] = {}
    for key, prompt, rank, number, unit in _ENTRY.iter_unpack(path.read_bytes()):
        other = best.get(key)
        if other is None:
            best[key] = (prompt, rank, -number, unit)
            continue
        if other[0] != prompt:
            names = " and ".join(sources[place].name for place in sorted({-other[2], number}))
            raise ExportError(
                f"{names} have different prompts under one id (index {unit // sources[number].samples} of "
                f"{sources[number].name}): only runs of the same prompts can be merged; export them singly"
            )
        best[key] = min(other, (prompt, rank, -number, unit), key=lambda entry: entry[1:3])
    for _, _, number, unit in best.values():
        winners.add(-number, unit)


def _prompt_hash(messages: Sequence[Any]) -> bytes:
    """A hash of what the user said. System prompts are a setting, and assistant turns may be made anew."""
    users = [message.get("content") for message in messages if message.get("role") == "user"]
    return hashlib.blake2b(msgspec.json.encode(users), digest_size=8).digest()
