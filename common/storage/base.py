"""The storage interface and the values that cross it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_FOLDER: Final = ".promptmill-probe"
"""Where probes leave their objects: a private name, so no listing of a run shows it."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object's name, relative to its storage, and its size in bytes."""

    name: str
    size: int


class Storage(Protocol):
    """A flat space of named objects. Implementations are safe to use from several threads.

    Every method may raise `StorageError`, whose `transient` tells whether to wait and call again. Names are
    relative, with `/` between folders; one with a component that starts with a dot is private (see `list`).
    """

    @property
    def url(self) -> str:
        """The place as a person would type it, without any secret: fit for messages and logs."""
        ...

    def create(self, name: str, data: bytes, *, sha256: str | None = None) -> bool:
        """Put an object there once. When this returns, the object is whole and durable.

        A caller that knows the SHA-256 of the data (in hex) gives it, which may spare work.

        Returns:
            True if it was created, False if it was there already with the same bytes.

        Raises:
            StorageConflictError: it is there with other bytes, and stays as it is.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put an object there, in place of one of that name. A reader sees the old or the new, whole."""
        ...

    def read(self, name: str) -> bytes:
        """Return an object's bytes.

        Raises:
            ObjectMissingError: it is not there.
        """
        ...

    def stat(self, name: str) -> ObjectInfo | None:
        """Return an object's size, or None if it is not there."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose names start with `prefix`, sorted by name, at any depth.

        Private names are left out unless the prefix reaches past their dot.
        """
        ...


class CreateOnce(StrEnum):
    """What a store does with a second create of the same name."""

    ENFORCED = "enforced"
    IGNORED = "ignored"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found. `problems` stop a run, `warnings` do not; both are sentences for a person.

    `latency_s` is the time the small create took, `clock_skew_s` how far the server's clock is ahead of this
    machine's (None for a folder), `free_bytes` the room left (None for S3).
    """

    url: str
    writable: bool
    readable: bool
    listable: bool
    create_once: CreateOnce
    latency_s: float | None = None
    clock_skew_s: float | None = None
    free_bytes: int | None = None
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a run may use this storage."""
        return not self.problems


@runtime_checkable
class Probeable(Protocol):
    """A storage that can try itself out."""

    def probe(self) -> StorageReport:
        """Write, write again, read and list a small private object; report, never raise StorageError."""
        ...


def probe(storage: Storage) -> StorageReport:
    """Try a storage out before a run depends on it.

    In S3 this leaves one object of a few bytes under `.promptmill-probe/`, for promptmill asks for no
    permission to delete; in a folder it leaves nothing.

    Raises:
        TypeError: the storage is of a kind that cannot be probed.
    """
    if not isinstance(storage, Probeable):
        raise TypeError(f"{type(storage).__name__} cannot be probed")
    return storage.probe()
