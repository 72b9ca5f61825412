"""Names of objects and URLs of storages: which are allowed, and what they mean. All pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from common.errors import StorageError, UsageError

TEMPORARY_PREFIX: Final = ".promptmill-"
TEMPORARY_SUFFIX: Final = ".tmp"
MAX_KEY_BYTES: Final = 1024
"""S3's limit for a whole key."""


class Place(msgspec.Struct, frozen=True):
    """A parsed storage URL: a bucket and the prefix in it, or a folder's absolute path."""

    bucket: str | None
    path: str


def parse_storage_url(url: str) -> Place:
    """Tell an S3 prefix from a folder.

    Raises:
        UsageError: it is neither. A URL that may hold credentials is never quoted.
    """
    scheme, separator, rest = url.partition("://")
    if not url.strip() or "\0" in url:
        raise UsageError("the output is empty or holds a NUL: give a folder or s3://bucket/prefix")
    if not separator:
        return Place(None, _folder(url))
    if scheme.lower() == "s3":
        return _parse_s3(rest)
    if scheme.lower() == "file":
        return _parse_file(url)
    raise UsageError(
        f"an output of kind {scheme!r}:// is not known: give a folder or s3://bucket/prefix "
        "(for another S3-compatible store, with AWS_ENDPOINT_URL set to its address)"
    )


def _folder(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise UsageError(f"the output folder {path} names the home of an unknown user") from None


def _parse_s3(rest: str) -> Place:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            "an s3:// output takes a bucket and a prefix only: put keys in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or a profile, and the address of another store in AWS_ENDPOINT_URL"
        )
    if not bucket:
        raise UsageError("the s3:// output names no bucket: write s3://bucket/prefix")
    prefix = prefix.strip("/")
    if prefix:
        try:
            check_name(prefix)
        except StorageError as error:
            raise UsageError(f"the prefix of s3://{bucket} cannot be used: {error}") from None
    return Place(bucket, prefix)


def _parse_file(url: str) -> Place:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise UsageError("a file:// output names a folder on this machine: write file:///absolute/path")
    path = unquote(parts.path)
    if not path.startswith("/"):
        raise UsageError("the file:// output names no folder: write file:///absolute/path")
    return Place(None, path)


def check_name(name: str) -> str:
    """Return `name` if it can name an object in any storage.

    Raises:
        StorageError: it is empty, absolute, climbs out with `..`, or could not be stored as it is.
    """
    problem = _problem_with(name)
    if problem:
        raise StorageError(f"{name[:200]!r} cannot name an object: {problem}")
    return name


def _problem_with(name: str) -> str | None:
    components = name.split("/")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if any(component in {"", ".", ".."} for component in components):
        return "it has an empty, '.' or '..' component"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):  # noqa: PLR2004 - ASCII controls
        return "it has a control character"
    if size > MAX_KEY_BYTES:
        return f"it has more than {MAX_KEY_BYTES} bytes"
    if is_temporary(components[-1]):
        return "it is of the form that marks unfinished files"
    return None


def is_temporary(leaf: str) -> bool:
    """Whether a file's name marks it as unfinished: written, but not yet an object."""
    return leaf.startswith(TEMPORARY_PREFIX) and leaf.endswith(TEMPORARY_SUFFIX)


def is_listed(name: str, prefix: str) -> bool:
    """Whether a listing of `prefix` shows `name`.

    It does unless a component that starts with a dot begins at or after the end of the prefix.
    """
    return name.startswith(prefix) and f"/{name}".find("/.", len(prefix)) < 0
