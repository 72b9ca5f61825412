"""Grouping the records of each split into chunks of one shard. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK: Final = 256
"""Records that are encoded together."""


class Chunk(msgspec.Struct, frozen=True):
    """Records of one shard, in order: lines of a part, or what a decoder made of them."""

    split: int
    shard: int
    records: list[Any]


class SplitQueue:
    """The records of one split, counted into shards.

    Where a chunk ends depends on a record's place in its split alone, and so do a shard's bytes.
    """

    def __init__(self, split: int, size: int, done: Callable[[int, int], bool]) -> None:
        """Make chunks for shards of `size` records each, or one shard if 0, except where one is `done`."""
        self._split = split
        self._size = size
        self._done = done
        self._shard = 0
        self._room = size
        self._waiting: list[Any] = []

    def add(self, records: list[Any]) -> Iterator[Chunk]:
        """Take the records that come next; yield the chunks that are full, or at the end of a shard."""
        at = 0
        while at < len(records):
            if self._size and not self._room:
                yield from self.rest()
                self._shard, self._room = self._shard + 1, self._size
            done = self._done(self._split, self._shard)
            end = len(records) if done else at + CHUNK - len(self._waiting)
            piece = records[at : min(end, at + self._room) if self._size else end]
            at += len(piece)
            self._room -= len(piece)
            if not done:
                self._waiting += piece
                if len(self._waiting) == CHUNK:
                    yield from self.rest()

    def rest(self) -> Iterator[Chunk]:
        """Yield what is left as a chunk."""
        if self._waiting:
            yield Chunk(self._split, self._shard, self._waiting)
            self._waiting = []
