"""The bytes of an input file, decompressed as they stream by. Memory is bounded whatever the file holds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

import zstandard

from common.errors import InputError
from producer.source import FileState, Source

CHUNK_BYTES: Final = 1 << 18
_ZSTD_FEED_BYTES: Final = 512  # 4 bytes can become 128 KiB, so this bounds what one feeding yields to 16 MiB
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"


class Digest(Protocol):
    """The part of a hash object that reading needs."""

    def update(self, data: bytes, /) -> None:
        """Take in more bytes."""


class InputFile:
    """One open pass over a source.

    Attributes:
        state: the file's state when it was opened.
        compressed: whether the bytes have to be decompressed.
    """

    def __init__(self, source: Source) -> None:
        """Open the file.

        Raises:
            InputError: it cannot be opened, or its name promises a compression that its content has not.
        """
        self._name = source.name
        try:
            self._file: BinaryIO = Path(source.path).open("rb")  # noqa: SIM115 closed by close()
        except OSError as error:
            raise InputError(f"{source.name}: cannot be read: {error.strerror or error}") from error
        self.state = FileState.of(self._file.fileno())
        try:
            self._decompress = self._choose_decompressor()
        except BaseException:
            self.close()
            raise
        self.compressed = self._decompress is not None

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    @property
    def done(self) -> int:
        """How many bytes of the file on disk are read, for progress."""
        return self._file.tell()

    def check_unchanged(self) -> None:
        """Raise `InputError` if the file was written to since it was opened."""
        if FileState.of(self._file.fileno()) != self.state:
            raise InputError(
                f"{self._name}: was changed while it was being read; leave it alone and start again"
            )

    def chunks(self, offset: int = 0, digest: Digest | None = None) -> Iterator[bytes]:
        """The decompressed bytes from `offset`, which must be 0, the start of a line, or the end.

        Args:
            offset: in the decompressed bytes. Plain files seek there, compressed ones are read up to it.
            digest: takes in every byte that passes, those before `offset` too when they are read.

        Raises:
            InputError: the file is cut off or damaged, changed meanwhile, or has no line that
                starts at `offset`.
        """
        if offset == 0:
            yield from self._passing(digest)
        else:
            yield from self._after_newline(self._from(offset - 1, digest), offset)

    def _from(self, offset: int, digest: Digest | None) -> Iterator[bytes]:
        if self._decompress is None:
            self._file.seek(offset)
            yield from self._passing(digest)
            return
        for chunk in self._passing(digest):
            if offset < len(chunk):
                yield chunk[offset:]
                offset = 0
            else:
                offset -= len(chunk)

    def _after_newline(self, chunks: Iterator[bytes], offset: int) -> Iterator[bytes]:
        first = next(chunks, b"")
        rest = first[1:]
        if not rest:
            rest = next(chunks, b"")
        if not first or (rest and not first.startswith(b"\n")):
            raise InputError(
                f"{self._name}: no line starts at byte {offset:,} any more: the file was changed"
            )
        if rest:
            yield rest
        yield from chunks

    def _passing(self, digest: Digest | None) -> Iterator[bytes]:
        for chunk in self._decompressed():
            if digest is not None:
                digest.update(chunk)
            self.check_unchanged()
            yield chunk

    def _decompressed(self) -> Iterator[bytes]:
        if self._decompress is None:
            while chunk := self._read(CHUNK_BYTES):
                yield chunk
            return
        size = lines = 0
        try:
            for chunk in self._decompress(self._file):
                yield chunk
                size += len(chunk)
                lines += chunk.count(b"\n")
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise InputError(
                f"{self._name}: the compressed data is cut off or damaged on line {lines + 1:,}, after "
                f"{size:,} decompressed bytes ({error}); get the whole file again"
            ) from error
        except OSError as error:
            raise InputError(f"{self._name}: reading failed: {error.strerror or error}") from error

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise InputError(f"{self._name}: reading failed: {error.strerror or error}") from error

    def _choose_decompressor(self) -> Callable[[BinaryIO], Iterator[bytes]] | None:
        """By content, so that a compressed standard input needs no name."""
        magic = self._read(4)
        self._file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            return _gunzip
        if magic == _ZSTD_MAGIC or (magic[1:] == _ZSTD_SKIPPABLE and magic[0] & 0xF0 == 0x50):  # noqa: PLR2004 format
            return _unzstd
        for suffix, kind in ((".gz", "gzip"), (".zst", "zstd")):
            if self._name.endswith(suffix):
                raise InputError(f"{self._name}: is not {kind} data, though its name says so")
        return None


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as members:
        while chunk := members.read(CHUNK_BYTES):
            yield chunk


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    """All frames of the file, in chunks of about `CHUNK_BYTES`.

    Raises:
        EOFError: the last frame does not end.
    """
    held: list[bytes] = []
    size = 0
    frame: Any = None
    while data := file.read(_ZSTD_FEED_BYTES):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            held.append(frame.decompress(data))
            size += len(held[-1])
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)
    if frame is not None:
        raise EOFError("the last frame has no end")
