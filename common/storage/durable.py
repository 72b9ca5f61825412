"""Steps on files that survive a power cut, and clean up after a process that did not.

A temporary is locked for as long as its writer lives, so one that can be locked is a dead process's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from typing import TYPE_CHECKING, Final

from common.storage.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_HARD_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_NO_SYNC_OF_FOLDERS: Final = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOTSUP}
_ATTEMPTS: Final = 3


@contextlib.contextmanager
def written_temporary(folder: Path, data: bytes) -> Iterator[Path]:
    """A locked temporary in `folder` that holds `data` on disk; gone at the end unless it was renamed."""
    descriptor, path = _open_temporary(folder)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Like `Path.mkdir(parents=True)`, with every new name synced into its parent."""
    if folder.is_dir():
        return
    make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sweep(folder: Path) -> None:
    """Remove temporaries that no living process holds. Never fails: what cannot go stays, unlisted."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if is_temporary(path.name):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)


def _open_temporary(folder: Path) -> tuple[int, Path]:
    """Create and lock a temporary. A sweeper may take it between the two steps; then make another."""
    for _ in range(_ATTEMPTS):
        path = folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # no locks on this file system: then no sweeper gets one either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink > 0:
            return descriptor, path
        os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
