"""Writing one shard: JSON lines, or Parquet. The bytes depend on the rows alone."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from io import FileIO
    from pathlib import Path

_BUFFER: Final = 1 << 20
_AHEAD: Final = 2
"""Pieces of a writer's work that may wait or be under way."""

FEW_VALUES: Final = ("run", "verdict", "finish_reason", "model", "server", "params")
"""Columns that repeat a few values, which a dictionary makes small; in the others one only costs time."""
LEVEL: Final = 1
"""How hard zstd tries: compressing is the largest part of what a Parquet export costs."""
GROUP_ROWS: Final = 2048
GROUP_BYTES: Final = 64 << 20
"""A Parquet row group ends at the first chunk with so many rows or so much text."""


class ShardWriter(Protocol):
    """Takes rows in order, then finishes the file."""

    def add(self, rows: Any) -> None:
        """Append rows, in the form that the writer takes."""
        ...

    def close(self) -> int:
        """Finish the file, durably, and return its size."""
        ...

    def abandon(self) -> None:
        """Let go of the file as it is."""
        ...


class _Background:
    """One thread that does a writer's work in order, one piece at a time; its error comes back later."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._under_way: deque[Future[None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """Start `work` once the work before it is done; wait while too many pieces are not."""
        while len(self._under_way) >= _AHEAD:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(work))

    def wait(self) -> None:
        """Wait for all that was started, and raise its first error."""
        while self._under_way:
            self._under_way.popleft().result()

    def end(self) -> None:
        """Let the thread go once it is done with what it has."""
        self._pool.shutdown(wait=True)


class JsonlWriter:
    """JSON lines; rows are anything that msgspec encodes, or all lines that are encoded already."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._pieces: list[bytes] = []
        self._size = 0
        self._encode_lines = msgspec.json.Encoder().encode_lines
        self._background = _Background()

    def add(self, rows: Sequence[Any]) -> None:
        """Append rows."""
        if not rows:
            return
        lines = b"\n".join((*rows, b"")) if isinstance(rows[0], bytes) else self._encode_lines(rows)
        self._pieces.append(lines)
        self._size += len(lines)
        if self._size >= _BUFFER:
            self._write()

    def close(self) -> int:
        """Finish the file, durably, and return its size."""
        self._write()
        self._background.wait()
        self._background.end()
        size = self._file.tell()
        os.fsync(self._file.fileno())
        self._file.close()
        return size

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._background.end()
        self._file.close()

    def _write(self) -> None:
        self._background.do(partial(_write_all, self._file, self._pieces))
        self._pieces = []
        self._size = 0


class ParquetWriter:
    """Parquet with zstd, in row groups of bounded size; rows are Arrow tables."""

    def __init__(self, path: Path, *, schema: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415 - an optional part, asked for by format
        import pyarrow.parquet as pq  # noqa: PLC0415 - the same

        self._path = path
        self._join = pa.concat_tables
        names = set(schema.names)
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=LEVEL,
            data_page_version="2.0",  # made with a copy less
            use_dictionary=[name for name in FEW_VALUES if name in names],
            write_statistics=[name for name in ("id", "index", "sample") if name in names],
        )
        self._tables: list[Any] = []
        self._rows = 0
        self._size = 0
        self._background = _Background()

    def add(self, rows: Any) -> None:
        """Append a table."""
        self._tables.append(rows)
        self._rows += rows.num_rows
        self._size += rows.get_total_buffer_size()
        if self._rows >= GROUP_ROWS or self._size >= GROUP_BYTES:
            self._write_group()

    def close(self) -> int:
        """Finish the file, durably, and return its size."""
        self._write_group()
        self._background.wait()
        self._background.end()
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        return self._path.stat().st_size

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._background.end()
        self._writer.close()

    def _write_group(self) -> None:
        if self._rows:
            self._background.do(partial(self._writer.write_table, self._join(self._tables)))
            self._tables = []
            self._rows = 0
            self._size = 0


def _write_all(file: FileIO, pieces: list[bytes]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]
