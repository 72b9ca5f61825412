"""Admitting in another order than the input's: the longest first, or those that begin alike together.

The prompts are copied once, in their new order, to a file in the spool folder, each line led by its index and
line number; admission then reads that file from front to back as it would the input, and a restart goes on
where it was. The same input and order give the same file.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from zlib import crc32

import msgspec

from common.errors import InputError
from common.log import get_logger
from common.settings import RunSettings
from producer.admit import Reader
from producer.chunks import InputFile
from producer.lines import Position, RawLine, read_lines
from producer.parse import InvalidLine, Prompt, derived_id, parse_line
from producer.scan import ScanReport, read_prompts
from producer.source import Source

LEVELS: Final = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Lengths in bytes at which the beginnings of two prompts are compared."""

BOM: Final = b"\xef\xbb\xbf"

log = get_logger("producer")


def opener(
    source: Source, report: ScanReport, settings: RunSettings, spool: Path
) -> Callable[[Position], Reader]:
    """What opens the input of a run at a position, in the run's order.

    Raises:
        InputError: the ordered copy cannot be written.
    """
    if settings.order == "input":
        return lambda start: read_prompts(source, report, start=start)
    path = ordered_copy(source, report, settings, spool)
    return lambda start: OrderedReader(path, report, start)


def ordered_copy(source: Source, report: ScanReport, settings: RunSettings, spool: Path) -> Path:
    """Write the input's lines in the run's order; a copy that is there already is used."""
    name = f"ordered-{settings.order}-{settings.order_field or 'length'}-{report.fingerprint.sha256[:32]}"
    path = spool / "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    if path.exists():
        return path
    partial = spool / f".{path.name}.{os.getpid()}"
    try:
        spool.mkdir(parents=True, exist_ok=True)
        plain = _plain(source, report, partial)
        with plain.open("rb") as lines, partial.open("wb") as out:
            for index, number, line in _in_order(plain, lines, report, settings):
                out.write(b"%d %d %d\n" % (index, number, len(line)) + line + b"\n")
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{source.name}: cannot be copied to {spool}: {error.strerror or error}") from error
    finally:
        for leftover in (partial, partial.with_suffix(".plain")):
            leftover.unlink(missing_ok=True)
    log.info("input_ordered", order=settings.order, prompts=report.fingerprint.lines)
    return path


def _plain(source: Source, report: ScanReport, partial: Path) -> Path:
    """The input as a file whose lines can be jumped to: itself, or a decompressed copy."""
    path = Path(source.path)
    if path.stat().st_size == report.fingerprint.bytes:
        return path
    copy = partial.with_suffix(".plain")
    with copy.open("wb") as out, InputFile(source) as file:
        for chunk in file.chunks():
            out.write(chunk)
    return copy


def _in_order(
    plain: Path, lines: BinaryIO, report: ScanReport, settings: RunSettings
) -> Iterator[tuple[int, int, bytes]]:
    """Index, line number and bytes of every line, sorted; ties stay in the order of the input."""
    offsets, sizes, numbers = array("q"), array("q"), array("q")
    usable = bytearray()
    keys: list[Any] = []
    for raw in read_lines(Source(str(plain), str(plain)), max_line=report.max_line):
        offsets.append(raw.offset)
        sizes.append(raw.end - raw.offset)
        numbers.append(raw.number)
        usable.append(raw.raw is not None)
        keys.append(sort_key(raw, settings))
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        lines.seek(offsets[index])
        line = lines.read(sizes[index]).rstrip(b"\r\n") if usable[index] else b""
        yield index, numbers[index], line.removeprefix(BOM) if numbers[index] == 1 else line


class _Fields(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] | None = None


_FIELDS: Final = msgspec.json.Decoder(_Fields)


def sort_key(raw: RawLine, settings: RunSettings) -> Any:
    """What a line is sorted by: minus its length or its field, or how its prompt begins."""
    line = raw.raw or b""
    if settings.order == "prefix":
        prompt = parse_line(line, line=raw.number, index=0)
        return _beginning(prompt) if isinstance(prompt, Prompt) else b""
    if settings.order_field is None:
        return -len(line)
    try:
        metadata = _FIELDS.decode(line).metadata or {}
    except msgspec.DecodeError:
        return 0.0
    value = metadata.get(settings.order_field)
    return -float(value) if isinstance(value, int | float) else 0.0


def _beginning(prompt: Prompt) -> bytes:
    """Two bytes of a checksum of each of ever longer beginnings, the first message among them.

    Sorted by it, prompts that begin alike stand together, among them those that are alike for longer, and
    so on; all that share a system prompt do, however its end lies. A checksum that two beginnings share by
    chance only mixes two groups. The key is as small for long beginnings as for short ones.
    """
    texts = [
        m.content.encode("utf-8", "surrogatepass") for m in prompt.messages if isinstance(m.content, str)
    ]
    text = b"\0".join(texts)
    first = len(texts[0]) if len(texts) > 1 else 0
    key, sum_, at = bytearray(), 0, 0
    for level in sorted({*LEVELS, first} - {0}):
        sum_ = crc32(text[at:level], sum_)
        key += (sum_ & 0xFFFF).to_bytes(2)
        at = level
    return bytes(key)


class OrderedReader:
    """Reads an ordered copy from a position; see `Reader`."""

    def __init__(self, path: Path, report: ScanReport, start: Position) -> None:
        """Open the copy."""
        self.position = start
        self._report = report
        self._path = path
        self._file = path.open("rb")
        self._file.seek(start.offset)

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the copy."""
        self._file.close()

    def __iter__(self) -> Iterator[Prompt | InvalidLine]:
        """The lines from the position on.

        Raises:
            InputError: the copy was damaged.
        """
        while head := self._file.readline():
            try:
                index, number, size = (int(part) for part in head.split())
            except ValueError:
                raise InputError(f"{self._path} is damaged: remove it and start again") from None
            line = self._file.read(size)
            self._file.read(1)
            item = parse_line(line, line=number, index=index) if size else self._too_long(index, number)
            first = self._report.duplicates.first_line(index)
            if first is not None and isinstance(item, Prompt):
                item = InvalidLine(
                    index, number, item.id, f"the id {item.id!r} was seen before, on line {first:,}"
                )
            self.position = Position(self.position.index + 1, self.position.line + 1, self._file.tell())
            yield item
        if self.position.index != self._report.fingerprint.lines:
            raise InputError(f"{self._path} is cut off: remove it and start again")

    def _too_long(self, index: int, number: int) -> InvalidLine:
        reason = f"has more than {self._report.max_line:,} bytes, the most a line may have"
        return InvalidLine(index, number, derived_id(index), reason)
