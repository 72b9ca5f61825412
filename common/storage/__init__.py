"""Where completions end up: a folder or an S3 prefix, with one meaning.

An object is created once, whole or not at all, and never deleted; only the few that describe a run
(`manifest.json`, `progress.json`, `dead.jsonl`) are ever replaced.
"""

from __future__ import annotations

from common.crashpoints import watched
from common.storage.base import CreateOnce, ObjectInfo, Storage, StorageReport, probe
from common.storage.names import parse_storage_url

__all__ = ["CreateOnce", "ObjectInfo", "Storage", "StorageReport", "open_storage", "probe"]


def open_storage(url: str) -> Storage:
    """Open `s3://bucket/prefix`, `file:///folder` or a folder's path. Nothing is read or written yet.

    A folder that does not exist is made by the first write. S3 credentials, region and endpoint come from
    boto3's own chain (`AWS_*` variables, `AWS_ENDPOINT_URL` for other stores, profiles, instance roles).

    Raises:
        UsageError: the URL is of another kind, or carries credentials.
        StorageError: the S3 client could not be set up, for example for an unknown profile.
    """
    place = parse_storage_url(url)
    # One kind is imported, not both: boto3 takes a third of a second that a folder has no need of.
    if place.bucket is None:
        from common.storage.folder import FolderStorage  # noqa: PLC0415 - see above

        return watched(FolderStorage(place.path))
    from common.storage.s3_storage import S3Storage  # noqa: PLC0415 - see above

    return watched(S3Storage(place.bucket, place.path))
