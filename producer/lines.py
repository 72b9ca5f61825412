r"""Physical lines: what stands between two `\n` bytes, and nothing else.

U+2028, U+0085 and a lone carriage return are text. A byte order mark at the start of the file is dropped, and
lines of white space alone are passed over, though they have their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from producer.chunks import InputFile
from producer.source import Source

MAX_LINE_BYTES: Final = 64 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Position(msgspec.Struct, frozen=True):
    """Where reading goes on: the next prompt's index, the next line's number (from 1), its byte offset."""

    index: int = 0
    line: int = 1
    offset: int = 0


class RawLine(NamedTuple):
    """One line that is not blank.

    Attributes:
        number: from 1, blank lines included.
        offset: where it starts in the decompressed bytes.
        end: where the next line starts, or the input ends.
        raw: its bytes without the newline; None if they are more than a line may have.
    """

    number: int
    offset: int
    end: int
    raw: bytes | None


class _Pending:
    """A line whose end has not come by yet. Holds no more than a line may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: list[bytes] = []
        self._blank = True
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self._blank = self._blank and not piece.strip()
        if self.size <= self._most:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def take(self) -> bytes | None:
        """The whole line, and start over; None if it was too long, empty if that was but white space."""
        line = b"".join(self._pieces) if self.size <= self._most else None
        if self._blank:
            line = line or b""
        self._pieces = []
        self._blank = True
        self.size = 0
        return line


def split_lines(
    chunks: Iterable[bytes], *, line: int = 1, offset: int = 0, max_line: int = MAX_LINE_BYTES
) -> Iterator[RawLine]:
    """Split chunks of bytes, wherever their edges fall, into the lines that are not blank.

    Args:
        chunks: the input's bytes from `offset` on.
        line: the number of the first line in them.
        offset: where the first of them stands in the input.
        max_line: the most bytes of a line; a longer one comes with `raw` None and is never held.
    """
    pending = _Pending(max_line)
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            if pending.size or len(piece) > max_line:
                pending.add(piece)
                size, raw = pending.size, pending.take()
            else:
                size, raw = len(piece), piece
            end = offset + size + 1
            if line == 1 and raw:
                raw = raw.removeprefix(_BYTE_ORDER_MARK)
            if raw is None or (raw and not raw.isspace()):
                yield RawLine(line, offset, end, raw)
            line += 1
            offset = end
        if rest:
            pending.add(rest)
    size, raw = pending.size, pending.take()
    if line == 1 and raw:
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
    if raw is None or (raw and not raw.isspace()):
        yield RawLine(line, offset, offset + size, raw)


def read_lines(
    source: Source, *, line: int = 1, offset: int = 0, max_line: int = MAX_LINE_BYTES
) -> Iterator[RawLine]:
    """The lines of `source` that are not blank, from line number `line`, which starts at byte `offset`.

    Raises:
        InputError: see `InputFile`.
    """
    with InputFile(source) as file:
        yield from split_lines(file.chunks(offset), line=line, offset=offset, max_line=max_line)
