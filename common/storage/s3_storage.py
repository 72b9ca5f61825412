"""Objects under a prefix of an S3 bucket: create once, retry, and tell one's own success from a conflict.

Each attempt to create looks first and then writes under the condition that nothing is there. So an object
whose confirmation was lost is recognised, and a store that ignores conditions does not overwrite either,
except in a race of two writers. A store that was seen to keep the condition is not asked first, and one that
was seen to check a SHA-256 is sent that alone (see `s3_traits`). Nothing is ever deleted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from common.errors import ObjectMissingError, StorageConflictError, StorageError
from common.storage.base import ObjectInfo, StorageReport
from common.storage.names import MAX_KEY_BYTES, check_name, is_listed
from common.storage.patience import Patience, patiently
from common.storage.s3 import S3Bucket
from common.storage.s3_faults import Fault, S3FaultError
from common.storage.s3_probe import probe_s3
from common.storage.s3_traits import Traits, learn_traits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 30.0


class S3Storage:
    """The objects under one prefix of one bucket."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        patience: Patience | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        """Set up the client; the store is not asked yet. The timeouts are for each wait on the socket.

        Raises:
            StorageError: the S3 configuration cannot be used.
        """
        self._bucket = S3Bucket(bucket, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s)
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._patience = patience or Patience()
        self._conditions = True
        self._traits: Traits | None = None

    def __repr__(self) -> str:
        """The class and the place, never credentials."""
        return f"S3Storage({self.url!r})"

    @property
    def url(self) -> str:
        """The bucket and prefix."""
        return f"s3://{self._bucket.name}/{self._root}".rstrip("/")

    def create(self, name: str, data: bytes, *, sha256: str | None = None) -> bool:
        """See `Storage.create`. The store is tried out by the first that gives a digest: it writes many."""
        key = self._key(name)
        unsure = False

        def attempt() -> bool:
            nonlocal unsure
            traits = Traits() if sha256 is None else self._known()
            # After an answer that was lost, a look costs less than to send it all again.
            size = None if traits.creates_once and not unsure else self._find(key)
            if size is None:
                try:
                    if self._put_once(key, data, sha256 if traits.checks_sha256 else None):
                        return True
                except S3FaultError:
                    # The store may have kept what it did not confirm: then what is found next is our own.
                    unsure = True
                    raise
            self._compare(name, key, data, size)
            return unsure

        return self._patiently(attempt)

    def replace(self, name: str, data: bytes) -> None:
        """See `Storage.replace`."""
        key = self._key(name)
        self._patiently(lambda: self._bucket.put(key, data, once=False))

    def read(self, name: str) -> bytes:
        """See `Storage.read`."""
        key = self._key(name)
        return self._patiently(lambda: self._read(name, key))

    def stat(self, name: str) -> ObjectInfo | None:
        """See `Storage.stat`."""
        key = self._key(name)
        size = self._patiently(lambda: self._find(key))
        return None if size is None else ObjectInfo(name, size)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Storage.list`."""
        found: list[ObjectInfo] = []
        token: str | None = None
        while True:
            page = self._patiently(partial(self._bucket.page, self._root + prefix, token))
            for key, size in page.objects:
                name = key.removeprefix(self._root)
                if name and is_listed(name, prefix) and not name.endswith("/"):  # no folder markers
                    found.append(ObjectInfo(name, size))
            token = page.next_token
            if token is None:
                return iter(sorted(found, key=lambda info: info.name))

    def probe(self) -> StorageReport:
        """See `Probeable.probe`. Leaves one small private object."""
        return probe_s3(self, self._bucket, self._root, self._patience)

    def _key(self, name: str) -> str:
        key = self._root + check_name(name)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise StorageError(f"{self.url}/{name} is longer than the {MAX_KEY_BYTES} bytes S3 allows")
        return key

    def _patiently(self, step: Callable[[], T]) -> T:
        return patiently(step, self._patience)

    def _find(self, key: str) -> int | None:
        """Return the object's size, or None if it is not there as far as these credentials can tell."""
        try:
            return self._bucket.head(key)
        except S3FaultError as error:
            if error.fault is Fault.MISSING:
                return None
            if error.transient:
                raise
        # A refused HEAD gives no reason, and may be all that S3 says of a missing object: a listing knows.
        try:
            page = self._bucket.page(key, limit=1)
        except S3FaultError as error:
            if error.fault is Fault.DENIED:
                return None  # no right to list; then the condition of a create, or a read, decides
            raise
        return next((size for found, size in page.objects if found == key), None)

    def _known(self) -> Traits:
        """What the store does by itself; the careful way while it does not answer."""
        if self._traits is None:
            self._traits = learn_traits(self._bucket, self._root)
        return self._traits or Traits()

    def _put_once(self, key: str, data: bytes, sha256: str | None) -> bool:
        """Write if nothing is there, as far as the store can tell; False if something is."""
        try:
            self._bucket.put(key, data, once=self._conditions, sha256=sha256)
        except S3FaultError as error:
            if error.fault is Fault.EXISTS:
                return False
            if error.fault is Fault.CONDITION_UNSUPPORTED and self._conditions:
                self._conditions, self._traits = False, Traits()
                return self._find(key) is None and self._put_once(key, data, None)
            raise
        return True

    def _compare(self, name: str, key: str, data: bytes, size: int | None) -> None:
        """Raise unless the object that is there has these bytes."""
        try:
            if size in {None, len(data)} and self._bucket.get(key) == data:
                return
        except S3FaultError as error:
            if error.fault is Fault.MISSING:
                raise StorageError(
                    f"{name} in {self.url} comes and goes: look who removes it", transient=True
                ) from None
            raise
        raise StorageConflictError(
            f"{name} is in {self.url} already with other bytes, and was left as it is. Another run writes "
            "there: give this run an output of its own"
        )

    def _read(self, name: str, key: str) -> bytes:
        try:
            return self._bucket.get(key)
        except S3FaultError as error:
            if error.fault is Fault.MISSING:
                raise ObjectMissingError(f"{name} is not in {self.url}") from None
            if error.fault is Fault.DENIED and self._find(key) is None:
                raise ObjectMissingError(
                    f"{name} is not in {self.url}, or may not be read: S3 tells the two apart only "
                    "with s3:ListBucket: grant that and s3:GetObject if it should be there"
                ) from None
            raise
