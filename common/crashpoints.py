"""Places where a test can make a process die: every step that changes something outside the process.

`PROMPTMILL_CRASH_AT=name:n:how` acts when `name` is reached for the n-th time. `before` and `after` end the
process at once, as `kill -9` does, before the step or after it took effect; `lost` raises a connection error
after it, as if the answer had been lost. Unset, a point costs one comparison.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from common.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.storage.base import Storage

VARIABLE: Final = "PROMPTMILL_CRASH_AT"
KILLED: Final = 137
_NOTHING: Final = contextlib.nullcontext()


class _Plan:
    """What the environment asks for, and how often its point has been reached."""

    def __init__(self, text: str) -> None:
        self.name, number, self.how = text.split(":")
        self.left = int(number)


_plan: _Plan | None = _Plan(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


class _Point:
    def __init__(self, how: str) -> None:
        self.how = how

    def __enter__(self) -> None:
        if self.how == "before":
            os._exit(KILLED)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        if self.how == "after":
            os._exit(KILLED)
        raise ConnectionResetError("the answer was lost (a crash point)")


def point(name: str) -> contextlib.AbstractContextManager[None]:
    """What to do the step `name` under."""
    if _plan is None or _plan.name != name:
        return _NOTHING
    _plan.left -= 1
    return _Point(_plan.how) if _plan.left == 0 else _NOTHING


def watched(storage: Storage) -> Storage:
    """The storage itself, or one with points at its writes if a test asks for any."""
    return storage if _plan is None else _Watched(storage)


class _Watched:
    def __init__(self, storage: Storage) -> None:
        self.inner: Any = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, name: str, data: bytes, *, sha256: str | None = None) -> bool:
        with _as_storage_error(), point("storage.create"):
            created: bool = self.inner.create(name, data, sha256=sha256)
        return created

    def replace(self, name: str, data: bytes) -> None:
        with _as_storage_error(), point(f"storage.replace.{name.partition('.')[0]}"):
            self.inner.replace(name, data)


@contextlib.contextmanager
def _as_storage_error() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as error:
        raise StorageError(str(error), transient=True) from error
