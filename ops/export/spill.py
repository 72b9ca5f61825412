"""Files of entries sorted into buckets by a hash: what shuffling and merging need in bounded memory."""

from __future__ import annotations

import hashlib
import resource
import shutil
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BUCKETS: Final = 512
BUCKET_BYTES: Final = 32 << 20
"""What one bucket is meant to hold; with more than `MAX_BUCKETS` times this, buckets grow."""

_BUFFER: Final = 1 << 16
_LINE: Final = struct.Struct("<8sI")


class Buckets:
    """Append-only files, one per range of the key's first 16 bits."""

    def __init__(self, folder: Path, expected_bytes: int) -> None:
        """Make `folder` anew, with as many buckets as `expected_bytes` asks for."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = MAX_BUCKETS if allowed == resource.RLIM_INFINITY else min(MAX_BUCKETS, allowed // 2)
        self._count = max(1, min(most, -(-expected_bytes // BUCKET_BYTES)))
        self._paths = [folder / f"{number:03d}" for number in range(self._count)]
        self._files = [path.open("wb", buffering=_BUFFER) for path in self._paths]

    def add(self, key: bytes, *data: bytes) -> None:
        """Append `data` to the bucket of `key`."""
        bucket = (int.from_bytes(key[:2], "big") * self._count) >> 16
        self._files[bucket].write(b"".join(data))

    def close(self) -> list[Path]:
        """Finish the files and return them in the order of their keys."""
        for file in self._files:
            file.close()
        return self._paths


class Shuffler:
    """Puts lines into an order that a seed and each line's own name decide, whatever order they came in."""

    def __init__(self, buckets: Buckets, seed: int) -> None:
        self._buckets = buckets
        self._salt = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()

    def add(self, name: str, line: bytes) -> None:
        """Take one line; `name` is its own among all."""
        key = hashlib.blake2b(name.encode(), digest_size=8, key=self._salt).digest()
        self._buckets.add(key, _LINE.pack(key, len(line)), line)

    def drain(self) -> Iterator[bytes]:
        """Yield every line in the new order; each file goes once it is read."""
        for path in self._buckets.close():
            data = memoryview(path.read_bytes())
            entries: list[tuple[bytes, int, int]] = []
            at = 0
            while at < len(data):
                key, length = _LINE.unpack_from(data, at)
                at += _LINE.size
                entries.append((key, at, length))
                at += length
            path.unlink()
            entries.sort()
            for _, start, length in entries:
                yield bytes(data[start : start + length])
