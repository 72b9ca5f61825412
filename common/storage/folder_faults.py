"""What went wrong with a folder, as a sentence that says what to do. Pure."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from common.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

_RIGHTS: Final = "Let this user {doing} in {root} (owner, mode), or give another output folder"
_REMEDIES: Final = {
    errno.ENOSPC: "The disk of {root} is full: free some space there, nothing is lost",
    errno.EDQUOT: "The quota of {root} is used up: raise it or free some space, nothing is lost",
    errno.EROFS: "{root} is read-only: remount it for writing, or give another output folder",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "The folder {root} is gone: mount or restore it, then start again",
    errno.ENOTDIR: "A file stands where a folder should be: move it away, or give another output folder",
    errno.EEXIST: "A file stands where a folder should be: move it away, or give another output folder",
    errno.ENAMETOOLONG: "Give an output folder with a shorter path",
}
_PASSING: Final = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EHOSTDOWN,
    errno.ENOTCONN,
}


def folder_error(error: OSError, *, doing: str, path: Path, root: Path) -> StorageError:
    """Make the `StorageError` for an `OSError` met while `doing` (read, write or list) something at `path`.

    A full disk and passing faults of disks and networks are transient; what a person must change is not.
    """
    number = error.errno or 0
    remedy = _REMEDIES.get(number, "Look at the disk or mount of {root}").format(root=root, doing=doing)
    what = error.strerror or type(error).__name__
    return StorageError(f"cannot {doing} {path}: {what}. {remedy}", transient=number in _PASSING)
