"""Bring Redis up to what the output holds: parts and dead letters that Redis lost or never knew.

S3 is the truth. After a loss in Redis (wiped, or the tail of its AOF cut) a part may be in the output whose
completions Redis thinks open. Taking the part over marks them done, so none is made twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from common.errors import StorageError
from common.log import get_logger
from common.parts import OutputError, decode_line, iter_dead_letters, iter_lines, part_name
from common.records import PartRow, Verdict, unit_of
from common.storage import Storage
from common.store.runs import RunStore

PART_PREFIX: Final = "part-"
PART_PATTERN: Final = re.compile(r"part-\d{6,}\.jsonl\.zst")

LOOK_AGAIN: Final = 2

log = get_logger("store")


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int | None = None


class _Stored(msgspec.Struct, frozen=True):
    """What adoption needs of a record."""

    index: int
    verdict: Verdict
    usage: _Usage
    sample: int = 0
    rank: int | msgspec.UnsetType = msgspec.UNSET

    def unit(self, samples: int) -> int:
        return unit_of(self.index, self.rank, self.sample, samples)


_decode = msgspec.json.Decoder(_Stored).decode


def adopt_parts(store: RunStore, storage: Storage, run: str, samples: int) -> int:
    """Take over every part of the output that follows those Redis knows; returns how many.

    Raises:
        OutputError: a part is damaged, or one is missing between others.
        StorageError: the output cannot be read now.
    """
    names = {info.name for info in storage.list(PART_PREFIX) if PART_PATTERN.fullmatch(info.name)}
    adopted = 0
    while (number := store.part_count(run)) < len(names):
        name = part_name(number)
        if name not in names:
            raise OutputError(
                f"{storage.url} has {len(names)} parts but no {name}: restore that object, or give the run "
                "another name; nothing was changed"
            )
        if adopt_part(store, storage, run, number, samples):
            adopted += 1
    return adopted


def adopt_part(store: RunStore, storage: Storage, run: str, number: int, samples: int) -> bool:
    """Take over one part; false if another process did so first."""
    name = part_name(number)
    data = storage.read(name)
    found = []
    for at, line in enumerate(_lines(data, name), start=1):
        record = decode_line(_decode, line, key=name, number=at)
        found.append((record.unit(samples), record.verdict.value, record.usage.completion_tokens or 0))
    row = PartRow(name, len(found), hashlib.sha256(data).hexdigest())
    waiting: dict[int, str] = {}
    seen, reply = "", LOOK_AGAIN
    while reply == LOOK_AGAIN:
        # Consumers go on meanwhile: what they made again of this part must not go into another one.
        for entry, line in store.waiting_lines(run, after=seen):
            waiting[_unit(line, samples)] = seen = entry
        units = [(unit, verdict, tokens, waiting.get(unit, "")) for unit, verdict, tokens in found]
        reply = store.adopt_part(run, number, row, units, seen=seen)
    if reply:
        log.warning("part_adopted", run=run, part=name, records=len(found), note="Redis did not know it")
    return bool(reply)


def adopt_dead_letters(store: RunStore, storage: Storage, run: str, samples: int) -> int:
    """Take over the dead letters of the output; returns how many it lists."""
    letters = [(letter.unit(samples), letter) for letter in iter_dead_letters(storage)]
    for at in range(0, len(letters), 1000):
        store.adopt_dead(run, letters[at : at + 1000])
    return len(letters)


def _unit(line: bytes, samples: int) -> int:
    record = decode_line(_decode, line, key="the results stream", number=0)
    return record.unit(samples)


def _lines(data: bytes, name: str) -> Iterator[bytes]:
    try:
        for block in iter_lines(data, name=name):
            yield from block
    except StorageError as error:
        raise OutputError(f"{error}; it cannot be taken over: restore the object from a copy") from error
