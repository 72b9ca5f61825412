"""What an S3 store does by itself, seen by trying: what it does need not be done for it at every object.

Unlike `s3_probe`, which tells an operator what to expect, this is for a writer of many objects, as it begins.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from common.storage.base import PROBE_FOLDER
from common.storage.s3_faults import Fault, S3FaultError

if TYPE_CHECKING:
    from common.storage.s3 import S3Bucket

NAME: Final = f"{PROBE_FOLDER}/traits"
"""Written by every writer under this one name, so that few objects are left."""

_DATA: Final = b"promptmill tries what this store checks\n"
_OTHER_DIGEST: Final = hashlib.sha256(b"other bytes").hexdigest()


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen. All false is the careful way, that works with any store."""

    creates_once: bool = False
    """It refuses a create of a name that is taken, so that nobody has to look first."""

    checks_sha256: bool = False
    """It refuses a body whose SHA-256 is another, so that no other digest has to be made."""


def learn_traits(bucket: S3Bucket, root: str) -> Traits | None:
    """Try a store with a small private object under `root`; None if it did not answer just now."""
    key = root + NAME
    try:
        return Traits(
            # The second tells where the first made the object.
            creates_once=any(_refuses(bucket, key, Fault.EXISTS, once=True) for _ in range(2)),
            checks_sha256=_refuses(bucket, key, Fault.DAMAGED, once=False, sha256=_OTHER_DIGEST),
        )
    except S3FaultError:
        return None


def _refuses(bucket: S3Bucket, key: str, reason: Fault, *, once: bool, sha256: str | None = None) -> bool:
    """Whether a write is refused for this very reason.

    Raises:
        S3FaultError: the store, or the way to it, is unwell.
    """
    try:
        bucket.put(key, _DATA, once=once, sha256=sha256)
    except S3FaultError as error:
        if error.fault is not reason and error.transient:
            raise
        return error.fault is reason
    return False
