"""Running an iterator ahead of its reader, in a thread, so that the two overlap."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")

_POLL_S: Final = 0.1


class _End:
    """What comes after the last item: the error that ended it, or none."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Feeder(Generic[T]):
    def __init__(self, items: Generator[T, None, None], depth: int) -> None:
        self._items = items
        self.ready: queue.Queue[T | _End] = queue.Queue(depth)
        self.stopped = threading.Event()

    def run(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    break
        except BaseException as caught:  # noqa: BLE001 - raised again where the items are read
            error = caught
        self._items.close()
        self._put(_End(error))

    def _put(self, entry: T | _End) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(entry, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False


def ahead(items: Generator[T, None, None], depth: int) -> Iterator[T]:
    """Yield what `items` yields, with up to `depth` of them made in advance; its errors come in their place.

    The thread ends, and `items` is closed, when the reader stops early.
    """
    feeder = _Feeder(items, depth)
    thread = threading.Thread(target=feeder.run, name="ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(entry := feeder.ready.get(), _End):
            yield entry
        if entry.error is not None:
            raise entry.error
    finally:
        feeder.stopped.set()
        thread.join()
