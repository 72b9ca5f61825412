"""The files of an export under way, in a work folder, so that a killed export goes on where it was.

A shard holds a fixed range of the selected records, so which records are whose is known whatever came before.
It is written under a temporary name, synced, renamed, and then noted in a journal with its size and its
counts; a shard whose file is as its note says is never made again.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from ops.export.options import ExportOptions, Format
from ops.export.tally import Tally, total
from ops.export.writers import JsonlWriter, ParquetWriter

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from ops.export.encode import Encoded
    from ops.export.writers import ShardWriter


class Note(msgspec.Struct, frozen=True):
    """A journal entry: the size of the shard's file, None where it came out without rows, and its counts."""

    bytes: int | None
    tally: Tally


class _Open:
    def __init__(self, number: int, writer: ShardWriter) -> None:
        self.number = number
        self.writer = writer
        self.tally = Tally()


class Shards:
    """All shards of an export. `kept` counts those that an earlier, killed export had finished."""

    def __init__(self, work: Path, options: ExportOptions) -> None:
        self._options = options
        self._names = options.split_names
        self._tree = work / "tree"
        self._journal = work / "journal"
        self._open: dict[int, _Open] = {}
        self._notes: dict[tuple[int, int], Note] = {}
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="finisher")
        self._finishing: Future[None] | None = None
        self.kept = 0
        for split, name in enumerate(self._names):
            (self._tree / name).mkdir(parents=True, exist_ok=True)
            self._read_notes(split)
        self._journal.mkdir(exist_ok=True)

    @property
    def tree(self) -> Path:
        """The folder that is published."""
        return self._tree

    @property
    def tally(self) -> Tally:
        """The counts of all finished shards, in the order of splits and shards."""
        return total(self._notes[key].tally for key in sorted(self._notes))

    def files(self, split: int) -> list[tuple[str, Note]]:
        """The finished files of a split, relative to the tree, in order."""
        return [
            (self._path(split, number).relative_to(self._tree).as_posix(), note)
            for (of, number), note in sorted(self._notes.items())
            if of == split and note.bytes is not None
        ]

    def has(self, split: int, number: int) -> bool:
        """Whether a shard is finished."""
        return (split, number) in self._notes

    def add(self, encoded: Encoded) -> bool:
        """Append rows to their shard, finishing the split's shard before it; True if one was finished."""
        current = self._open.get(encoded.split)
        finished = current is not None and current.number != encoded.shard
        if finished:
            self._finish(encoded.split)
        current = self._open.get(encoded.split)
        if current is None:
            writer = self._writer(self._temporary(encoded.split, encoded.shard))
            current = self._open[encoded.split] = _Open(encoded.shard, writer)
        current.writer.add(encoded.rows)
        current.tally.add(encoded.tally)
        return finished

    def close(self) -> None:
        """Finish the shards that are open."""
        for split in sorted(self._open):
            self._finish(split)
        self._wait()

    def abandon(self) -> None:
        """Let go of the shards that are open; they are made anew another time."""
        self._finisher.shutdown(wait=True)
        for shard in self._open.values():
            shard.writer.abandon()
        self._open.clear()

    def _finish(self, split: int) -> None:
        """Finish a split's open shard while others are filled; its errors come when the next is finished."""
        self._wait()
        self._finishing = self._finisher.submit(self._complete, split, self._open.pop(split))

    def _wait(self) -> None:
        last, self._finishing = self._finishing, None
        if last is not None:
            last.result()

    def _complete(self, split: int, shard: _Open) -> None:
        try:
            size = shard.writer.close()
        except BaseException:
            shard.writer.abandon()
            raise
        temporary, path = self._temporary(split, shard.number), self._path(split, shard.number)
        if shard.tally.rows:
            temporary.replace(path)
            sync_folder(path.parent)
        else:
            temporary.unlink()
        note = Note(size if shard.tally.rows else None, shard.tally)
        write_durably(self._note_path(split, shard.number), msgspec.json.encode(note))
        self._notes[split, shard.number] = note

    def _read_notes(self, split: int) -> None:
        for path in sorted(self._journal.glob(f"{self._names[split]}-*.json")):
            number = int(path.stem.rpartition("-")[2])
            note = msgspec.json.decode(path.read_bytes(), type=Note)
            if note.bytes is None or _has_size(self._path(split, number), note.bytes):
                self._notes[split, number] = note
                self.kept += 1

    def _writer(self, path: Path) -> ShardWriter:
        options = self._options
        if options.format is not Format.PARQUET:
            return JsonlWriter(path)
        from ops.export import columns  # noqa: PLC0415 - pyarrow is an optional part

        tokens = options.tokenize is not None
        return ParquetWriter(path, schema=columns.TOKEN_SCHEMA if tokens else columns.ROW_SCHEMA)

    def _path(self, split: int, number: int) -> Path:
        name = self._names[split]
        return self._tree / name / f"{name}-{number:05d}.{self._options.format.suffix}"

    def _temporary(self, split: int, number: int) -> Path:
        return self._journal / f"{self._names[split]}-{number:05d}.tmp"

    def _note_path(self, split: int, number: int) -> Path:
        return self._journal / f"{self._names[split]}-{number:05d}.json"


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole after a power cut, or not at all."""
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _has_size(path: Path, size: int) -> bool:
    # The size is proof enough: a note is written only after its file was synced.
    return path.is_file() and path.stat().st_size == size
