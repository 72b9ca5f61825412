"""The run outputs that an export reads, and the proof that each is whole."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from common.missing import samples_of
from common.parts import (
    MANIFEST,
    check_count,
    decode_line,
    iter_dead_letters,
    iter_parts,
    iter_texts,
    lines_of,
    read_manifest,
)
from common.records import DeadReason, Manifest, PartRow
from common.storage import Storage
from ops.export.errors import GapsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.parts import OutputError, T

_SHOWN: Final = 5


class Source(msgspec.Struct, frozen=True):
    """One run's output, with its place on the command line counted from 0."""

    number: int
    storage: Storage
    manifest: Manifest
    samples: int

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"run {self.manifest.run} ({self.storage.url})"

    @property
    def digest(self) -> str:
        """What makes its content the same content: every part's name and hash."""
        rows = [(row.key, row.records, row.sha256) for row in self.manifest.parts]
        return hashlib.sha256(msgspec.json.encode([self.manifest.run, rows])).hexdigest()


def open_source(number: int, storage: Storage, *, allow_gaps: bool) -> Source:
    """Read a run's manifest and check what can be checked without reading parts.

    Raises:
        RunNotFoundError: there is no run's output.
        GapsError: the run is not finished, or its parts and counts do not add up, and gaps are not allowed.
    """
    manifest = read_manifest(storage)
    source = Source(number, storage, manifest, samples_of(manifest))
    keys = [row.key for row in manifest.parts]
    if len(set(keys)) < len(keys):
        raise GapsError(f"{source.name}: {MANIFEST} names a part twice; run ops verify on it")
    if not allow_gaps:
        problem = _problem_with(source, keys)
        if problem:
            raise GapsError(f"{source.name} {problem}; give --allow-gaps to export what there is")
    return source


def _problem_with(source: Source, keys: list[str]) -> str | None:
    manifest = source.manifest
    records = sum(row.records for row in manifest.parts)
    if manifest.finished_at is None or manifest.accepted != manifest.completed + manifest.dead:
        return (
            f"is not finished: of {manifest.accepted} accepted, {manifest.completed} are completed and "
            f"{manifest.dead} dead"
        )
    if records != manifest.completed:
        return f"lacks records: {manifest.completed} are completed, its parts hold {records}"
    extra = sorted({info.name for info in source.storage.list("part-")}.difference(keys))
    if extra:
        return f"holds {len(extra)} parts that {MANIFEST} does not name, such as {extra[0]}"
    return None


def iter_source(
    source: Source, decoder: msgspec.json.Decoder[T], *, skip: Callable[[OutputError], None] | None = None
) -> Iterator[list[T]]:
    """Yield what `decoder` makes of every line of a source, in lists of a block of lines each.

    Raises:
        OutputError: a part is missing or damaged and there is no `skip` to tell, or a line is not a record.
    """
    return _iter_counted(source, skip, partial(_decode_block, decoder))


def iter_source_lines(
    source: Source, decoder: msgspec.json.Decoder[T], *, skip: Callable[[OutputError], None] | None = None
) -> Iterator[list[tuple[bytes, T]]]:
    """Yield every line of a source with what `decoder` makes of it, in lists of a block of lines each.

    Raises:
        OutputError: as `iter_source` does.
    """

    def decode(row: PartRow, first: int, text: memoryview) -> list[tuple[bytes, T]]:
        lines = enumerate(lines_of(text), first)
        return [(line, _decode_line(decoder, row, number, line)) for number, line in lines]

    return _iter_counted(source, skip, decode)


def _iter_counted(
    source: Source,
    skip: Callable[[OutputError], None] | None,
    decode: Callable[[PartRow, int, memoryview], list[T]],
) -> Iterator[list[T]]:
    """Yield each block as decoded; what was decoded is counted, since finding line ends again costs time."""
    for row, data in iter_parts(source.storage, source.manifest.parts, skip=skip):
        count = 0
        for text in iter_texts(data, name=row.key):
            found = decode(row, count + 1, text)
            count += len(found)
            yield found
        check_count(source.storage, row, count)


def _decode_block(decoder: msgspec.json.Decoder[T], row: PartRow, first: int, text: memoryview) -> list[T]:
    try:
        return decoder.decode_lines(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Once more, line by line, to say which one it is.
        return [_decode_line(decoder, row, number, line) for number, line in enumerate(lines_of(text), first)]


def _decode_line(decoder: msgspec.json.Decoder[T], row: PartRow, number: int, line: bytes) -> T:
    """Decode one line; its error names part and line."""
    return decode_line(decoder.decode, line, key=row.key, number=number)


class Ledger:
    """Which units of a run were seen: a bit each, so doubles and gaps are found in little memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._samples = source.samples
        self._bits = bytearray()
        self._seen = 0

    def unit(self, index: int, sample: int) -> int:
        """The unit that a prompt's sample is."""
        return index * self._samples + sample

    def mark(self, unit: int) -> bool:
        """Note a unit as seen; False if it was already."""
        place, bit = unit >> 3, 1 << (unit & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(1024, place + 1 - len(self._bits))))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        self._seen += 1
        return True

    def has(self, unit: int) -> bool:
        """Whether a unit was seen."""
        place = unit >> 3
        return place < len(self._bits) and bool(self._bits[place] & (1 << (unit & 7)))

    def double(self, prompt_id: str, index: int, sample: int) -> GapsError:
        """The error for a record whose unit was seen before."""
        return GapsError(
            f"{self._source.name} has prompt {prompt_id!r} (index {index}, sample {sample}) twice; run ops "
            "verify on it, or give --allow-gaps to take the first"
        )

    def check_gaps(self) -> None:
        """See that everything accepted has a record or, once `account_for_dead` was called, a dead letter.

        It is the number that counts: a run of part of an input may have indexes that are not dense.

        Raises:
            GapsError: something has neither.
        """
        total = self._source.manifest.accepted
        gap = total - self._seen
        if gap <= 0:
            return
        missing = islice((unit for unit in range(total) if not self.has(unit)), _SHOWN)
        shown = ", ".join(str(unit // self._samples) for unit in missing)
        raise GapsError(
            f"{self._source.name} has no record or dead letter for {gap} of {total} prompts (index {shown}"
            f"{', ...' if gap > _SHOWN else ''}); give --allow-gaps to export what there is, or make them "
            "with producer enqueue --missing-from"
        )

    def account_for_dead(self) -> int:
        """Note the run's dead letters as seen; return how many there are."""
        count = 0
        for letter in iter_dead_letters(self._source.storage):
            count += 1
            whole = letter.reason is DeadReason.INVALID_LINE
            for sample in range(self._source.samples) if whole else (letter.sample,):
                self.mark(self.unit(letter.index, sample))
        return count
