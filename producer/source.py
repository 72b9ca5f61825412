"""Where prompts come from: a file on disk, or standard input copied to one.

The input is read twice, once to check it whole and once to admit it, so whatever can be read only once
(standard input, a pipe) is first copied to a file in the spool folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from common.errors import InputError

STANDARD_INPUT: Final = "-"
_COPY_BYTES: Final = 1 << 20


class FileState(msgspec.Struct, frozen=True):
    """What the file system says about a file's content without reading it."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> FileState:
        """The state of an open file."""
        found = os.fstat(descriptor)
        return cls(inode=found.st_ino, size=found.st_size, mtime_ns=found.st_mtime_ns)


class Source(msgspec.Struct, frozen=True):
    """An input that can be read any number of times. `name` is what the user called it, for messages."""

    name: str
    path: str


def open_source(name: str, *, spool: Path, stream: BinaryIO | None = None) -> Source:
    """Make sure that `name` can be read, and read again.

    Args:
        name: a path, or `-` for standard input.
        spool: the folder that gets a copy of what can be read only once; made if it is not there.
        stream: read for `-` instead of standard input.

    Raises:
        InputError: it is not there, is no file, or may not be read; or the copy could not be written.
    """
    if name == STANDARD_INPUT:
        return Source(name=name, path=_copy(stream or sys.stdin.buffer, spool, "standard input"))
    try:
        with Path(name).open("rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(kind):
                return Source(name=name, path=name)
            return Source(name=name, path=_copy(file, spool, name))
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error


def _copy(stream: BinaryIO, spool: Path, name: str) -> str:
    """Copy `stream` to a file named by its content, so that the same input makes the same file."""
    digest = hashlib.sha256()
    partial = spool / f".input-{os.getpid()}.partial"
    try:
        spool.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as copy:
                while block := stream.read(_COPY_BYTES):
                    digest.update(block)
                    copy.write(block)
                copy.flush()
                os.fsync(copy.fileno())
            final = spool / f"input-{digest.hexdigest()[:32]}"
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{name}: cannot be copied to {spool}: {error.strerror or error}") from error
    return str(final)
