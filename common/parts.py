"""Reading a run's output back: its manifest, its parts, its dead letters.

Parts are read one at a time, checked against the manifest's SHA-256 before a byte of them is used, and
decompressed, so memory holds a part as stored, the next one, and the text of one; of a part whose text is
uncommonly long, a block at a time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import zstandard

from common.errors import ObjectMissingError, RunNotFoundError, StorageError
from common.records import DeadLetter, Manifest, PartRow, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

    from common.storage import Storage

MANIFEST: Final = "manifest.json"
PROGRESS: Final = "progress.json"
DEAD_LETTERS: Final = "dead.jsonl"
PART_NAME: Final = "part-{number:06d}.jsonl.zst"

BLOCK: Final = 1 << 18
"""About how many bytes of text are in a block; a longer line is in one all the same."""
WHOLE: Final = 1 << 25
"""A part whose text has no more bytes than this is decompressed in one go, which costs a third less."""

T = TypeVar("T")

decode_record: Final[Callable[[bytes], Record]] = msgspec.json.Decoder(Record).decode


class OutputError(StorageError):
    """A run's output is not what its manifest says: an object is missing, damaged or of another content."""


def part_name(number: int) -> str:
    """The object name of part `number`, counted from 0."""
    return PART_NAME.format(number=number)


def read_manifest(storage: Storage) -> Manifest:
    """Read what the run is and which parts it has.

    Raises:
        RunNotFoundError: there is no manifest, so no run's output.
        OutputError: the manifest cannot be understood.
    """
    try:
        data = storage.read(MANIFEST)
    except ObjectMissingError:
        raise RunNotFoundError(
            f"{storage.url} holds no {MANIFEST}: give the folder or prefix of one run, <output>/<run>"
        ) from None
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OutputError(f"{MANIFEST} in {storage.url} cannot be understood: {error}") from error


def iter_dead_letters(storage: Storage) -> Iterator[DeadLetter]:
    """Yield the run's dead letters; none when it has no `dead.jsonl`.

    Raises:
        OutputError: a line cannot be understood.
    """
    try:
        data = storage.read(DEAD_LETTERS)
    except ObjectMissingError:
        return
    decode = msgspec.json.Decoder(DeadLetter).decode
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            where = f"{DEAD_LETTERS} line {number} in {storage.url}"
            raise OutputError(f"{where} is not a dead letter: {error}") from error


def read_part(storage: Storage, row: PartRow) -> bytes:
    """Return a part's bytes as stored, checked against the manifest's hash.

    Raises:
        OutputError: the part is missing, or not the one that the manifest names.
    """
    try:
        data = storage.read(row.key)
    except ObjectMissingError:
        raise OutputError(f"{row.key} is in the manifest of {storage.url} but not there") from None
    found = hashlib.sha256(data).hexdigest()
    if found != row.sha256:
        raise OutputError(
            f"{row.key} in {storage.url} is not the part that the manifest names: "
            f"its SHA-256 is {found}, the manifest says {row.sha256}"
        )
    return data


def iter_texts(data: bytes, *, name: str) -> Iterator[memoryview]:
    """Decompress a part and yield its text in blocks of whole lines, each with its line end.

    Blocks are small enough for what is made of them to stay in a core's cache until it is used.

    Raises:
        OutputError: it is not zstd, or is cut off.
    """
    try:
        text = _whole(data)
        left = yield from (_stream(data) if text is None else _cut(text))
    except zstandard.ZstdError as error:
        raise OutputError(f"{name} cannot be decompressed: {error}") from error
    if left:
        raise OutputError(f"{name} is cut off: its last line has no end")


def _whole(data: bytes) -> bytes | None:
    """The text of a part in one piece; None where it is long, or not just one good frame."""
    if not 0 <= zstandard.frame_content_size(data) <= WHOLE:
        return None
    try:
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return None  # several frames, or damaged: reading it as a stream tells


def _cut(text: bytes) -> Generator[memoryview, None, int]:
    """Yield blocks of a text; return how many bytes are left over, for want of a line end."""
    view = memoryview(text)
    at = 0
    while end := text.rfind(b"\n", at, at + BLOCK) + 1 or text.find(b"\n", at + BLOCK) + 1:
        yield view[at:end]
        at = end
    return len(text) - at


def _stream(data: bytes) -> Generator[memoryview, None, int]:
    """As `_cut`, decompressing as it goes."""
    buffer = bytearray(BLOCK)
    kept = 0  # the start of a line whose end is still to come
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while more := reader.readinto(memoryview(buffer)[kept:]):
            filled = kept + more
            end = buffer.rfind(b"\n", kept, filled) + 1
            if end:
                # A copy, for what is decoded may point into it and the buffer is used again.
                yield memoryview(bytes(memoryview(buffer)[:end]))
                buffer[: filled - end] = buffer[end:filled]
            kept = filled - end
            if kept == len(buffer):
                buffer += bytes(len(buffer))
    return kept


def iter_lines(data: bytes, *, name: str) -> Iterator[list[bytes]]:
    """Yield a part's lines in lists of one decompressed block each, without their line ends.

    Raises:
        OutputError: it is not zstd, or is cut off.
    """
    return map(lines_of, iter_texts(data, name=name))


def lines_of(text: memoryview) -> list[bytes]:
    """The lines of a block, without their line ends."""
    return bytes(text[:-1]).split(b"\n")


def check_count(storage: Storage, row: PartRow, count: int) -> None:
    """See that a part holds as many records as the manifest says.

    Raises:
        OutputError: it does not.
    """
    if count != row.records:
        raise OutputError(
            f"{row.key} in {storage.url} holds {count} records, the manifest says {row.records}"
        )


def iter_parts(
    storage: Storage,
    rows: Iterable[PartRow],
    *,
    ahead: int = 1,
    skip: Callable[[OutputError], None] | None = None,
) -> Iterator[tuple[PartRow, bytes]]:
    """Yield the parts' checked bytes in order, with `ahead` more being fetched meanwhile.

    Args:
        storage: the run's output.
        rows: the parts to read.
        ahead: how many are fetched in advance.
        skip: called with the error of a part that is missing or damaged, which is then left out.

    Raises:
        OutputError: a part is missing or damaged, and there is no `skip`.
    """
    waiting: deque[tuple[PartRow, Future[bytes]]] = deque()
    with ThreadPoolExecutor(max_workers=ahead, thread_name_prefix="parts") as pool:
        try:
            for row in rows:
                waiting.append((row, pool.submit(read_part, storage, row)))
                if len(waiting) > ahead:
                    yield from _fetched(*waiting.popleft(), skip)
            while waiting:
                yield from _fetched(*waiting.popleft(), skip)
        finally:
            for _, fetched in waiting:
                fetched.cancel()


def _fetched(
    row: PartRow, future: Future[bytes], skip: Callable[[OutputError], None] | None
) -> Iterator[tuple[PartRow, bytes]]:
    try:
        data = future.result()
    except OutputError as error:
        if skip is None:
            raise
        skip(error)
        return
    yield row, data


def decode_line(decode: Callable[[bytes], T], line: bytes, *, key: str, number: int) -> T:
    """Decode one line of a part; `number` counts its lines from 1.

    Raises:
        OutputError: the line is not what `decode` reads, with the part and the line named.
    """
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OutputError(f"{key} line {number} is not a record: {error}") from error


def iter_part_records(
    storage: Storage,
    manifest: Manifest,
    decode: Callable[[bytes], T] = decode_record,  # type: ignore[assignment] # the default fits T = Record
) -> Iterator[T]:
    """Yield every record of a run, part by part, decoded by `decode` (whole records by default).

    A decoder of a smaller struct, `msgspec.json.Decoder(Small).decode`, skips what it does not name.

    Raises:
        OutputError: a part is missing or damaged, or a line of it is not a record.
    """
    for row, data in iter_parts(storage, manifest.parts):
        number = 0
        for lines in iter_lines(data, name=row.key):
            for line in lines:
                number += 1
                yield decode_line(decode, line, key=row.key, number=number)
        check_count(storage, row, number)
