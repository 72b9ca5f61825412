"""Which ids are there more than once, found in bounded memory and without doubt.

Up to a limit the ids are held in a dict. Past it they all go to files, each id to the file its hash picks, so
that equal ids meet in the same file; each file is then small enough for a dict of its own.
"""

from __future__ import annotations

import heapq
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from common.errors import InputError

HELD_IDS: Final = 200_000
_FILES: Final = 256
_BUFFER_BYTES: Final = 1 << 15
_ENTRY: Final = struct.Struct("<QQH")


class Repeat(msgspec.Struct, frozen=True, order=True):
    """A line whose id an earlier line had first."""

    index: int
    line: int
    id: str
    first_line: int


class Duplicates:
    """All lines whose id an earlier line has, by index. 16 bytes each."""

    def __init__(self, ordered: Iterable[tuple[int, int]] = ()) -> None:
        """Take pairs of (index of the repeating line, number of the line that had its id first), by index."""
        self._indices = array("Q")
        self._lines = array("Q")
        for index, line in ordered:
            self._indices.append(index)
            self._lines.append(line)

    def __len__(self) -> int:
        """How many lines repeat an id."""
        return len(self._indices)

    def first_line(self, index: int) -> int | None:
        """The number of the line that had the id of prompt `index` first; None if that is its own line."""
        at = bisect_left(self._indices, index)
        if at < len(self._indices) and self._indices[at] == index:
            return self._lines[at]
        return None


class IdIndex:
    """Takes every id in the order of the file, then tells which lines repeat one.

    Use as a context manager: the files it may need are gone when it ends.
    """

    def __init__(self, *, folder: Path | None = None, held: int = HELD_IDS, keep: int = 0) -> None:
        """Start empty.

        Args:
            folder: where a temporary folder may be made; the system's place for such if None.
            held: the most ids held in memory before all go to files.
            keep: how many repeats, the first in the file, to keep whole.
        """
        self._seen: dict[str, int] | None = {}
        self._held = held
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._buffers: list[bytearray] = []
        self._keep = keep
        self._kept: list[tuple[int, Repeat]] = []
        self._runs: list[tuple[array[int], array[int]]] = []
        self._begin_run()

    def __enter__(self) -> Self:
        """The index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the files."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def add(self, name: str, index: int, line: int) -> None:
        """Take the id of prompt `index` on line number `line`. Lines come in the order of the file.

        Raises:
            InputError: the temporary files cannot be written.
        """
        if self._seen is None:
            self._write(name, index, line)
            return
        first = self._seen.setdefault(name, line)
        if first != line:
            self._repeats(Repeat(index, line, name, first))
        elif len(self._seen) > self._held:
            self._spill()

    def finish(self) -> tuple[Duplicates, list[Repeat]]:
        """All lines that repeat an id, and the first few of them whole. Call once, at the end."""
        for number in range(len(self._buffers)):
            self._begin_run()
            self._search(number)
        ordered = heapq.merge(*(zip(indices, lines, strict=True) for indices, lines in self._runs))
        return Duplicates(ordered), sorted(repeat for _, repeat in self._kept)

    def _begin_run(self) -> None:
        """Repeats come by index within a run; the runs are merged at the end."""
        self._runs.append((array("Q"), array("Q")))

    def _repeats(self, repeat: Repeat) -> None:
        indices, lines = self._runs[-1]
        indices.append(repeat.index)
        lines.append(repeat.first_line)
        if len(self._kept) < self._keep:
            heapq.heappush(self._kept, (-repeat.index, repeat))
        elif self._keep:
            heapq.heappushpop(self._kept, (-repeat.index, repeat))

    def _spill(self) -> None:
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix="promptmill-ids-", dir=self._folder)
        except OSError as error:
            raise _full(error) from error
        self._buffers = [bytearray() for _ in range(_FILES)]
        seen, self._seen = self._seen or {}, None
        for name, line in seen.items():
            self._write(name, 0, line)  # first of its id: its index is never asked for

    def _write(self, name: str, index: int, line: int) -> None:
        number = hash(name) % _FILES
        encoded = name.encode()
        buffer = self._buffers[number]
        buffer += _ENTRY.pack(index, line, len(encoded))
        buffer += encoded
        if len(buffer) >= _BUFFER_BYTES:
            self._flush(number)

    def _flush(self, number: int) -> None:
        try:
            with self._path(number).open("ab") as file:  # opened anew each time: 256 open files are many
                file.write(self._buffers[number])
        except OSError as error:
            raise _full(error) from error
        self._buffers[number].clear()

    def _path(self, number: int) -> Path:
        assert self._temporary is not None  # noqa: S101 only spilt ids have a file
        return Path(self._temporary.name, f"{number:03d}")

    def _search(self, number: int) -> None:
        self._flush(number)
        content = self._path(number).read_bytes()
        seen: dict[bytes, int] = {}
        at = 0
        while at < len(content):
            index, line, size = _ENTRY.unpack_from(content, at)
            at += _ENTRY.size + size
            encoded = content[at - size : at]
            first = seen.setdefault(encoded, line)
            if first != line:
                self._repeats(Repeat(index, line, encoded.decode(), first))


def _full(error: OSError) -> InputError:
    return InputError(
        f"the ids of so long an input need a temporary folder, and it cannot be written: {error}; "
        "free some space, or set TMPDIR to a folder that has it"
    )
