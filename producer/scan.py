"""The two passes over an input: `scan` checks it whole, `read_prompts` hands it out.

Both give every line that is not blank the same index, usable or not, so that admission by index is exactly
once however often it is broken off and taken up again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from common.errors import InputError
from common.records import Fingerprint, Message
from producer.chunks import InputFile
from producer.ids import HELD_IDS, Duplicates, IdIndex, Repeat
from producer.lines import MAX_LINE_BYTES, Position, RawLine, split_lines
from producer.parse import InvalidLine, Prompt, derived_id, parse_line
from producer.source import FileState, Source

KEPT_INVALID: Final = 1000

_START: Final = Position()

Progress = Callable[[int, int], None]
"""Called with how many bytes of the file on disk are read, and how many it has."""


class ScanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the first pass found.

    Attributes:
        fingerprint: SHA-256 and size of the decompressed bytes, and the number of lines that are not blank,
            unusable ones included: how many prompts are accepted.
        state: the file's state on disk, to notice a later change without reading.
        usable: how many lines are prompts.
        prompt_bytes: UTF-8 bytes of the text of all prompts together.
        longest_prompt_bytes: the same of the longest one.
        invalid: the first of the lines that cannot be used, repeated ids among them, by index.
        invalid_total: how many there are in all.
        duplicates: which lines repeat an id.
        max_line: the most bytes of a line that were asked for; the second pass keeps to it.
    """

    fingerprint: Fingerprint
    state: FileState
    usable: int
    prompt_bytes: int
    longest_prompt_bytes: int
    invalid: list[InvalidLine]
    invalid_total: int
    duplicates: Duplicates
    max_line: int


def scan(
    source: Source,
    *,
    spill: Path | None = None,
    progress: Progress | None = None,
    keep_invalid: int = KEPT_INVALID,
    max_line: int = MAX_LINE_BYTES,
    held_ids: int = HELD_IDS,
) -> ScanReport:
    """Read the whole input once and judge every line, in constant memory.

    Args:
        source: what to read.
        spill: a folder for temporary files, needed past `held_ids` prompts; the system's place if None.
        progress: called after each chunk of some 256 KiB.
        keep_invalid: how many unusable lines to keep with their reasons; all are counted.
        max_line: the most bytes of a line.
        held_ids: how many ids may be held in memory.

    Raises:
        InputError: the input cannot be read to its end, or changed meanwhile.
    """
    digest = _CountingDigest()
    tally = _Tally(keep_invalid)
    with InputFile(source) as file, IdIndex(folder=spill, held=held_ids, keep=keep_invalid) as ids:
        for raw in split_lines(_reporting(file, digest, progress), max_line=max_line):
            item = _judge(raw, tally.lines, max_line)
            tally.take(item)
            if isinstance(item, Prompt):
                ids.add(item.id, item.index, item.line)
        duplicates, repeats = ids.finish()
        file.check_unchanged()
        state = file.state
    invalid = sorted([*tally.invalid, *map(_repeat_line, repeats)], key=_by_index)
    return ScanReport(
        fingerprint=Fingerprint(sha256=digest.hexdigest(), lines=tally.lines, bytes=digest.size),
        state=state,
        usable=tally.usable - len(duplicates),
        prompt_bytes=tally.prompt_bytes,
        longest_prompt_bytes=tally.longest,
        invalid=invalid[:keep_invalid],
        invalid_total=tally.lines - tally.usable + len(duplicates),
        duplicates=duplicates,
        max_line=max_line,
    )


def read_prompts(source: Source, report: ScanReport, *, start: Position = _START) -> PromptReader:
    """Hand out what `scan` judged, from `start` on, which is `Position()` or some reader's `position`.

    Raises:
        InputError: the file is not the one that was scanned.
    """
    return PromptReader(source, report, start=start)


class PromptReader:
    """An iterator over the prompts and unusable lines of an input, each with the index `scan` gave it.

    `position` says where reading goes on after the items handed out so far: kept beside what was admitted, it
    makes a restart exact. That the file is still the one that was scanned is checked at the start, with every
    chunk, and at the end by its hash where all of it was read, by its number of prompts otherwise.
    """

    def __init__(self, source: Source, report: ScanReport, *, start: Position) -> None:
        """Open the file. See `read_prompts`."""
        self.position = start
        self._name = source.name
        self._report = report
        self._file = InputFile(source)
        if self._file.state != report.state:
            self.close()
            raise InputError(f"{source.name}: was changed since it was checked; start again")
        self._digest = _CountingDigest() if start.offset == 0 or self._file.compressed else None
        self._lines = split_lines(
            self._file.chunks(start.offset, self._digest),
            line=start.line,
            offset=start.offset,
            max_line=report.max_line,
        )

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def __iter__(self) -> Self:
        """The reader itself."""
        return self

    def __next__(self) -> Prompt | InvalidLine:
        """The next prompt or unusable line.

        Raises:
            InputError: the file cannot be read on, or is not the one that was scanned.
        """
        try:
            raw = next(self._lines)
        except StopIteration:
            self.close()
            self._check_end()
            raise
        index = self.position.index
        item = _judge(raw, index, self._report.max_line)
        self.position = Position(index + 1, raw.number + 1, raw.end)
        first = self._report.duplicates.first_line(index)
        if first is not None and isinstance(item, Prompt):
            return _repeat_line(Repeat(index, item.line, item.id, first))
        return item

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def _check_end(self) -> None:
        wanted = self._report.fingerprint
        same = self.position.index == wanted.lines
        if self._digest is not None:
            same = same and self._digest.hexdigest() == wanted.sha256
        if not same:
            raise InputError(f"{self._name}: its content is not what was checked; start again")


def describe_change(old: Fingerprint, new: Fingerprint) -> str:
    """One sentence on how an input differs from what it was: `old` when the run began, `new` now."""
    if old.sha256 == new.sha256:
        return "The input is the same as before."
    if new.lines == old.lines and new.bytes == old.bytes:
        return f"The input has {old.lines:,} prompts and {old.bytes:,} bytes as before, but other content."
    if new.lines == old.lines:
        return (
            f"The input has {old.lines:,} prompts as before, but other content: "
            f"{new.bytes:,} bytes instead of {old.bytes:,}."
        )
    change = new.lines - old.lines
    return (
        f"The input has {new.lines:,} prompts now, {abs(change):,} {'more' if change > 0 else 'fewer'} "
        f"than the {old.lines:,} it had."
    )


class _CountingDigest:
    """SHA-256 and size of all that passes."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    def update(self, data: bytes, /) -> None:
        self._sha256.update(data)
        self.size += len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


class _Tally:
    """The running figures of a scan."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self.lines = self.usable = self.prompt_bytes = self.longest = 0
        self.invalid: list[InvalidLine] = []

    def take(self, item: Prompt | InvalidLine) -> None:
        self.lines += 1
        if isinstance(item, Prompt):
            size = sum(map(_text_bytes, item.messages))
            self.usable += 1
            self.prompt_bytes += size
            self.longest = max(self.longest, size)
        elif len(self.invalid) < self._keep:
            self.invalid.append(item)


def _text_bytes(message: Message) -> int:
    content = message.content
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode())
    return sum(len(part["text"].encode()) for part in content or () if part["type"] == "text")


def _judge(raw: RawLine, index: int, max_line: int) -> Prompt | InvalidLine:
    if raw.raw is None:
        reason = f"has more than {max_line:,} bytes, the most a line may have"
        return InvalidLine(index, raw.number, derived_id(index), reason)
    return parse_line(raw.raw, line=raw.number, index=index)


def _repeat_line(repeat: Repeat) -> InvalidLine:
    reason = f"the id {repeat.id!r} was seen before, on line {repeat.first_line:,}"
    return InvalidLine(repeat.index, repeat.line, repeat.id, reason)


def _by_index(line: InvalidLine) -> int:
    return line.index


def _reporting(file: InputFile, digest: _CountingDigest, progress: Progress | None) -> Iterator[bytes]:
    for chunk in file.chunks(0, digest):
        if progress is not None:
            progress(file.done, file.state.size)
        yield chunk
