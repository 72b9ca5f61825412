"""Makes the parts of one seal: read, built, and written, each by a thread of its own, in order.

While one part's bytes are built, the next one's completions are read and the ones before are written and
committed. Nothing is written before the seal is on Redis's disk; what is built meanwhile waits in memory, up
to a bound.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from common.store.runs import Part, RunStore, Seal
from consumers.collector.decide import next_part, part_bytes

STEP_S: Final = 2.0
"""No new part is begun after this long: the run's progress is to be told, and others served."""
AHEAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of built parts that may wait to be written."""


class Assembly:
    """One seal's parts, from the first completion that waits."""

    def __init__(
        self,
        store: RunStore,
        run: str,
        seal: Seal,
        number: int,
        *,
        promise: Callable[[], bool],
        put: Callable[[Part, bytes], bool],
        stopping: Callable[[], bool],
    ) -> None:
        """The first part is `number`.

        `promise` sees that the seal is on Redis's disk; `put` writes and commits a part; false is that no
        other part may follow. Both are called by the writing thread, and neither after one that failed.
        """
        self.store = store
        self.run = run
        self.seal = seal
        self.number = number
        self.promise = promise
        self.put = put
        self.stopping = stopping
        self._broken = False
        self._writing: deque[tuple[Future[bool], int]] = deque()

    def make(self) -> bool:
        """Make parts until none is left, which is true, or it is time for other things, or one is another's.

        Raises:
            StorageError: a part could not be written; nothing is lost, and the same is made again.
            QueueError: Redis could not be asked, or the seal could not be set.
        """
        with (
            ThreadPoolExecutor(1, thread_name_prefix="writer") as writer,
            ThreadPoolExecutor(1, thread_name_prefix="reader") as reader,
        ):
            try:
                self._submit(writer, self.promise, 0)
                return self._make(reader, writer)
            except BaseException:
                self._broken = True  # what has not begun is not worth a wait: it is made again
                raise

    def _make(self, reader: ThreadPoolExecutor, writer: ThreadPoolExecutor) -> bool:
        begun = time.monotonic()
        reading: Future[list[tuple[str, bytes]]] | None = reader.submit(self._read, "")
        while reading:
            found = next_part(reading.result(), self.seal, self.number)
            if found is None:
                break
            part, lines = found
            self.number += 1
            late = time.monotonic() - begun > STEP_S or self.stopping()
            reading = None if late else reader.submit(self._read, part.last)
            data = part_bytes(lines)
            self._submit(writer, partial(self.put, part, data), len(data))
            if not self._drain(AHEAD_BYTES):
                return False
        return self._drain(-1) and reading is not None

    def _read(self, after: str) -> list[tuple[str, bytes]]:
        return self.store.results(self.run, after, self.seal.last, self.seal.records)

    def _submit(self, writer: ThreadPoolExecutor, step: Callable[[], bool], size: int) -> None:
        self._writing.append((writer.submit(self._unless_broken, step), size))

    def _unless_broken(self, step: Callable[[], bool]) -> bool:
        if self._broken:
            return False
        try:
            fine = step()
        except BaseException:
            self._broken = True
            raise
        if not fine:
            self._broken = True
        return fine

    def _drain(self, most: int) -> bool:
        """Take the steps that are done off the list, and wait until at most so many bytes are on it."""
        waiting = sum(size for _, size in self._writing)
        while self._writing and (waiting > most or self._writing[0][0].done()):
            step, size = self._writing.popleft()
            waiting -= size
            if not step.result():
                return False
        return True
