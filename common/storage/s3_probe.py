"""Trying an S3 prefix out: may we write, read and list, is create-once kept, is the clock right?"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

import msgspec

from common.errors import StorageError
from common.storage.base import PROBE_FOLDER, CreateOnce, Storage, StorageReport
from common.storage.patience import Patience, patiently
from common.storage.s3_faults import Fault, S3FaultError

if TYPE_CHECKING:
    from common.storage.s3 import S3Bucket

_FIRST: Final = b"promptmill was here\n"
_SECOND: Final = b"promptmill was here again\n"
_PATIENCE_S: Final = 10.0
"""A store that somebody waits to hear of is given up sooner than one that a run depends on."""

_MOST_SKEW_S: Final = 60.0
"""S3 refuses requests from 15 minutes on; a minute is a clock that nobody keeps."""


def probe_s3(storage: Storage, bucket: S3Bucket, root: str, patience: Patience) -> StorageReport:
    """Write, write again, read and list one small object under `root`; faults become problems."""
    hasty = msgspec.structs.replace(patience, total_s=min(patience.total_s, _PATIENCE_S))
    probe = _Probe(storage, bucket, root, hasty)
    problems: list[str] = []
    for step in (probe.try_write, probe.try_read, probe.try_list):
        try:
            step()
        except StorageError as error:
            problems.append(str(error))
            if error.transient:
                # It did not answer: the next step would wait as long again, and tell the same.
                break
    return StorageReport(
        url=storage.url,
        writable=probe.written is not None,
        readable=probe.readable,
        listable=probe.listable,
        create_once=probe.create_once,
        latency_s=probe.latency_s,
        clock_skew_s=probe.clock_skew_s,
        problems=tuple(dict.fromkeys(problems)),
        warnings=probe.warnings(),
    )


class _Probe:
    """The state of one probe. Its object has a name of its own, so two probes at once do not meet."""

    def __init__(self, storage: Storage, bucket: S3Bucket, root: str, patience: Patience) -> None:
        self._storage = storage
        self._bucket = bucket
        self._name = f"{PROBE_FOLDER}/{secrets.token_hex(8)}"
        self._key = root + self._name
        self._patience = patience
        self.written: bytes | None = None
        self.readable = self.listable = False
        self.create_once = CreateOnce.UNKNOWN
        self.latency_s: float | None = None
        self.clock_skew_s: float | None = None

    def try_write(self) -> None:
        """Create the object, then try to create it once more with other bytes."""
        self._put(_FIRST, once=False)
        self.written = _FIRST
        try:
            self._put(_SECOND, once=True)
        except S3FaultError as error:
            answers = {
                Fault.EXISTS: CreateOnce.ENFORCED,
                Fault.CONDITION_UNSUPPORTED: CreateOnce.UNSUPPORTED,
            }
            if error.fault not in answers:
                raise
            self.create_once = answers[error.fault]
        else:
            self.written = _SECOND
            self.create_once = CreateOnce.IGNORED

    def try_read(self) -> None:
        """Read back what was written."""
        if self.written is None:
            return
        if self._storage.read(self._name) != self.written:
            raise StorageError(
                f"{self._storage.url} gives back other bytes than were written: use another store"
            )
        self.readable = True

    def try_list(self) -> None:
        """Find the object in a listing."""
        names = {info.name for info in self._storage.list(f"{PROBE_FOLDER}/")}
        if self.written is not None and self._name not in names:
            raise StorageError(
                f"{self._storage.url} does not list an object that was just written: its listings lag, so a "
                "run that is rebuilt from them could miss parts; use another store"
            )
        self.listable = True

    def warnings(self) -> tuple[str, ...]:
        """What a run can live with, but its operator should know."""
        return tuple(self._warnings())

    def _warnings(self) -> list[str]:
        found = []
        if self.create_once in {CreateOnce.IGNORED, CreateOnce.UNSUPPORTED}:
            found.append(
                f"the store of {self._storage.url} does not keep If-None-Match ({self.create_once}), so that "
                "nothing is overwritten rests on there being one collector, which its lease sees to"
            )
        if self.clock_skew_s is not None and abs(self.clock_skew_s) > _MOST_SKEW_S:
            found.append(
                f"the clock of the store of {self._storage.url} is {self.clock_skew_s:+.0f} s from this "
                "machine's: set the clock (NTP), for S3 refuses requests that are 15 minutes off"
            )
        return found

    def _put(self, data: bytes, *, once: bool) -> None:
        def attempt() -> None:
            started, sent_at = time.monotonic(), time.time()
            server_at = self._bucket.put(self._key, data, once=once)
            self.latency_s = time.monotonic() - started
            if server_at is not None:
                # The header counts whole seconds, so half of one is its likeliest rest.
                self.clock_skew_s = server_at + 0.5 - (sent_at + self.latency_s / 2)

        patiently(attempt, self._patience)
