"""Reads what a report is made of. The only part of it that touches storage."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from common.errors import ObjectMissingError
from common.parts import PROGRESS, OutputError, iter_dead_letters, iter_lines, iter_parts, read_manifest
from common.records import Manifest, Progress
from common.storage import Storage
from ops.report.gather import Gathered, Letters, Row
from ops.report.reading import Faults, Reading
from ops.report.samples import Samples

AHEAD: Final = 4
CLOCKS_APART: Final = timedelta(days=1)


def read_run(
    storage: Storage,
    *,
    samples: int,
    at: datetime,
    tick: Callable[[int, int], None] = lambda _done, _total: None,
) -> Reading:
    """Read a run's output once.

    Args:
        storage: where it is.
        samples: completions to show of each verdict.
        at: now.
        tick: called with the number of parts read and of all parts.

    Raises:
        RunNotFoundError: there is no run.
        OutputError: its manifest cannot be understood.
        StorageError: the storage fails.
    """
    manifest = read_manifest(storage)
    faults, letters = Faults(), Letters()
    progress = _read_progress(storage, faults)
    gathered = Gathered(
        Samples(samples),
        earliest=_earliest(manifest.created_at),
        latest=(at + CLOCKS_APART).timestamp(),
    )
    _read_parts(storage, manifest, gathered, faults, tick)
    try:
        for letter in iter_dead_letters(storage):
            letters.add(letter)
    except OutputError as error:
        faults.add(error)
    return Reading(
        place=storage.url,
        manifest=manifest,
        progress=progress,
        gathered=gathered,
        letters=letters,
        faults=faults,
        at=at,
    )


def _read_progress(storage: Storage, faults: Faults) -> Progress | None:
    try:
        return msgspec.json.decode(storage.read(PROGRESS), type=Progress)
    except ObjectMissingError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        faults.add(f"{PROGRESS} cannot be understood: {error}")
        return None


def _read_parts(
    storage: Storage,
    manifest: Manifest,
    gathered: Gathered,
    faults: Faults,
    tick: Callable[[int, int], None],
) -> None:
    decode = msgspec.json.Decoder(Row).decode
    rows = manifest.parts
    for done, (row, data) in enumerate(iter_parts(storage, rows, ahead=AHEAD, skip=faults.add), 1):
        number = 0
        try:
            for lines in iter_lines(data, name=row.key):
                for line in lines:
                    number += 1
                    try:
                        gathered.add(decode(line), line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        faults.add(f"{row.key} line {number} is not a record: {error}")
        except OutputError as error:
            faults.add(error)
        else:
            if number != row.records:
                faults.add(f"{row.key} holds {number:,} records, the manifest says {row.records:,}")
        tick(done, len(rows))


def _earliest(created_at: str) -> float:
    try:
        return (datetime.fromisoformat(created_at).astimezone(UTC) - CLOCKS_APART).timestamp()
    except (ValueError, OverflowError):
        return -math.inf
