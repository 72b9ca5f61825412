"""S3 storage as its tests open it: in haste, and looked at behind its back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.storage.patience import Patience
from common.storage.s3_storage import S3Storage

if TYPE_CHECKING:
    from support.s3 import S3Server

HASTE = Patience(total_s=60.0, first_pause_s=0.01, longest_pause_s=0.05)
DATA = bytes(range(256)) * 64
OTHER = DATA[::-1]


def hasty(server: S3Server, *, patience: Patience = HASTE, read_timeout_s: float = 5.0) -> S3Storage:
    """Storage under `runs/one` that does not pause for long."""
    return S3Storage(server.bucket, "runs/one", patience=patience, read_timeout_s=read_timeout_s)


def behind_its_back(server: S3Server, name: str = "part-0") -> bytes:
    """What the store holds, past any proxy."""
    return server.client().get_object(Bucket=server.bucket, Key=f"runs/one/{name}")["Body"].read()
