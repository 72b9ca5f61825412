"""Objects as files of a folder, with the promises of an object store.

An object is written under a temporary name in its own folder, synced, and only then linked to its name: the
link fails if the name is taken, so nothing is overwritten, and no reader ever sees a part of a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ObjectMissingError, StorageConflictError, StorageError
from common.storage.base import PROBE_FOLDER, CreateOnce, ObjectInfo, StorageReport
from common.storage.durable import NO_HARD_LINKS, make_folders, sweep, sync_folder, written_temporary
from common.storage.folder_faults import folder_error
from common.storage.names import check_name, is_listed, is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROBE_DATA = b"promptmill was here\n"


class FolderStorage:
    """A folder of objects. The first write makes it; once seen, it is never made anew if it vanishes."""

    def __init__(self, path: str | Path) -> None:
        """Take the folder's path; nothing is touched yet."""
        self._root = Path(path).absolute()
        self._seen = False
        self._prepared: set[Path] = set()

    def __repr__(self) -> str:
        """The class and the path."""
        return f"FolderStorage({self.url!r})"

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def create(self, name: str, data: bytes, *, sha256: str | None = None) -> bool:  # noqa: ARG002  # S3's
        """See `Storage.create`."""
        path = self._path(name)
        with self._translated("write", path):
            if os.path.lexists(path):
                return self._settle(name, path, data)
            self._prepare(path.parent)
            return self._write_once(path, data) or self._settle(name, path, data)

    def replace(self, name: str, data: bytes) -> None:
        """See `Storage.replace`."""
        path = self._path(name)
        with self._translated("write", path):
            self._prepare(path.parent)
            with written_temporary(path.parent, data) as temporary:
                temporary.replace(path)
            sync_folder(path.parent)

    def read(self, name: str) -> bytes:
        """See `Storage.read`."""
        path = self._path(name)
        with self._translated("read", path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._check_not_vanished()
                raise ObjectMissingError(f"{name} is not in {self._root}") from None

    def stat(self, name: str) -> ObjectInfo | None:
        """See `Storage.stat`."""
        path = self._path(name)
        with self._translated("read", path):
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                self._check_not_vanished()
                return None
            return ObjectInfo(name, size) if path.is_file() else None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Storage.list`. A folder that does not exist yet is an empty one."""
        with self._translated("list", self._root):
            self._check_not_vanished()
            found = sorted(self._walk("", prefix), key=lambda info: info.name)
        return iter(found)

    def probe(self) -> StorageReport:
        """See `Probeable.probe`. Leaves nothing behind but the folder itself."""
        name = f"{PROBE_FOLDER}/{secrets.token_hex(8)}"
        done: set[str] = set()
        problems: list[str] = []
        once = CreateOnce.UNKNOWN
        latency = None
        try:
            started = time.monotonic()
            self.create(name, _PROBE_DATA)
            latency = time.monotonic() - started
            done.add("write")
            once = self._probe_create_once(name)
            if self.read(name) == _PROBE_DATA:
                done.add("read")
            if name in {info.name for info in self.list(f"{PROBE_FOLDER}/")}:
                done.add("list")
            if len(done) < 3:  # noqa: PLR2004 - write, read, list
                problems.append(
                    f"{self.url} does not give back what was just written: check its disk or mount"
                )
        except StorageError as error:
            problems.append(str(error))
        finally:
            self._remove_probe(name)
        return StorageReport(
            url=self.url,
            writable="write" in done,
            readable="read" in done,
            listable="list" in done,
            create_once=once,
            latency_s=latency,
            free_bytes=self._free_bytes(),
            problems=tuple(problems),
            warnings=_probe_warnings(self.url, once),
        )

    def _probe_create_once(self, name: str) -> CreateOnce:
        """Whether a hard link to a taken name is refused, which is what `create` rests on."""
        path = self._path(name)
        with self._translated("write", path), written_temporary(path.parent, b"") as temporary:
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                return CreateOnce.ENFORCED
            except OSError as error:
                if error.errno in NO_HARD_LINKS:
                    return CreateOnce.UNSUPPORTED
                raise
        return CreateOnce.IGNORED

    def _remove_probe(self, name: str) -> None:
        path = self._path(name)
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        self._prepared.discard(path.parent)

    def _free_bytes(self) -> int | None:
        with contextlib.suppress(OSError):
            return shutil.disk_usage(self._root).free
        return None

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)

    @contextlib.contextmanager
    def _translated(self, doing: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise folder_error(error, doing=doing, path=path, root=self._root) from error

    def _check_not_vanished(self) -> None:
        """Raise if the folder was there before and now is not: to call it empty would be a lie."""
        if self._root.is_dir():
            self._seen = True
        elif self._seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.url)

    def _prepare(self, folder: Path) -> None:
        """Make `folder` and sweep it, before the first write into it."""
        if folder in self._prepared:
            return
        self._check_not_vanished()
        make_folders(folder)
        sweep(folder)
        self._prepared.add(folder)
        self._seen = True

    def _write_once(self, path: Path, data: bytes) -> bool:
        """Write and link; False if the name was taken in the meantime."""
        with written_temporary(path.parent, data) as temporary:
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_HARD_LINKS:
                    raise
                # No hard links here (exFAT, some network mounts): whole all the same, but open to a race.
                if os.path.lexists(path):
                    return False
                temporary.rename(path)
        sync_folder(path.parent)
        return True

    def _settle(self, name: str, path: Path, data: bytes) -> bool:
        """The name is taken: False if by the same bytes, which are made sure to be durable."""
        try:
            with path.open("rb") as file:
                same = os.fstat(file.fileno()).st_size == len(data) and file.read() == data
                if same:
                    os.fsync(file.fileno())
        except (FileNotFoundError, IsADirectoryError):
            raise StorageError(f"{path} is a folder or a broken link, not a file: move it away") from None
        if not same:
            raise StorageConflictError(
                f"{name} is in {self._root} already with other bytes, and was left as it is. Another run "
                "writes to this folder, or the file was changed: give this run an output of its own"
            )
        sync_folder(path.parent)
        return False

    def _walk(self, base: str, prefix: str) -> Iterator[ObjectInfo]:
        """Objects under the subfolder `base` ("" or ending in "/"), going only where `prefix` leads."""
        try:
            paths = list((self._root / base).iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            name = base + path.name
            if is_temporary(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                inside = f"{name}/"
                if prefix.startswith(inside) or is_listed(inside, prefix):
                    yield from self._walk(inside, prefix)
            elif is_listed(name, prefix) and path.is_file():
                with contextlib.suppress(FileNotFoundError):  # moved away by hand just now
                    yield ObjectInfo(name, path.stat().st_size)


def _probe_warnings(url: str, once: CreateOnce) -> tuple[str, ...]:
    if once in {CreateOnce.UNSUPPORTED, CreateOnce.IGNORED}:
        words = (
            f"the file system of {url} has no hard links, so that nothing is overwritten rests on there "
            "being one collector: run one, or use a local disk"
        )
        return (words,)
    return ()
