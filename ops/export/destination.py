"""Where an export goes: a folder that appears whole, or an S3 prefix whose card is written last."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from common.errors import UsageError
from common.storage import open_storage
from common.storage.names import parse_storage_url
from ops.export.card import CARD, fingerprint_in
from ops.export.errors import ExportError
from ops.export.shards import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.storage import Storage


class Destination(Protocol):
    """A place that a finished tree of files is published to, all or nothing."""

    @property
    def work(self) -> Path:
        """The folder that the export is made in."""
        ...

    @property
    def url(self) -> str:
        """The place, for messages."""
        ...

    def published(self) -> str | None:
        """The fingerprint of the export that is there already.

        Raises:
            UsageError: something else is there.
        """
        ...

    def publish(self, tree: Path) -> None:
        """Make the tree appear."""
        ...


class FolderDestination:
    """A folder, made beside its place and renamed into it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.work = path.parent / f".{path.name}.promptmill-export"
        self.url = str(path)

    def published(self) -> str | None:
        """The fingerprint of the export that is there already."""
        if not self._path.exists():
            return None
        if not self._path.is_dir():
            raise UsageError(f"{self._path} is a file: name a folder that does not exist yet")
        if not any(self._path.iterdir()):
            return None
        card = self._path / CARD
        found = fingerprint_in(card.read_bytes()) if card.is_file() else None
        if found is None:
            raise UsageError(f"{self._path} is not empty: name a folder that does not exist yet")
        return found

    def publish(self, tree: Path) -> None:
        """Rename the tree into place."""
        for folder, _, _ in os.walk(tree):
            sync_folder(Path(folder))
        tree.rename(self._path)
        sync_folder(self._path.parent)


class StorageDestination:
    """An S3 prefix: the files first, the card last, so a prefix with a card is whole."""

    def __init__(self, storage: Storage, scratch: Path | None) -> None:
        self._storage = storage
        self.url = storage.url
        name = hashlib.sha256(storage.url.encode()).hexdigest()[:16]
        self.work = (scratch or Path(tempfile.gettempdir())) / f"promptmill-export-{os.getuid()}-{name}"

    def published(self) -> str | None:
        """The fingerprint of the export that is there already."""
        if self._storage.stat(CARD) is None:
            return None
        found = fingerprint_in(self._storage.read(CARD))
        if found is None:
            raise UsageError(f"{self.url} holds a {CARD} of something else: name another prefix")
        return found

    def publish(self, tree: Path) -> None:
        """Upload every file; one that is there already must have the same bytes."""
        for path in _files(tree):
            self._storage.create(path.relative_to(tree).as_posix(), path.read_bytes())
        self._storage.create(CARD, (tree / CARD).read_bytes())


def open_destination(url: str, *, scratch: Path | None = None) -> Destination:
    """Open where an export goes.

    Args:
        url: a folder, which must not exist yet or be empty, or an S3 prefix.
        scratch: where an export to S3 is made first; the system's temporary folder by default.

    Raises:
        UsageError: the URL cannot be used.
    """
    place = parse_storage_url(url)
    if place.bucket is None:
        return FolderDestination(Path(place.path))
    return StorageDestination(open_storage(url), scratch)


class WorkFolder:
    """The folder that one export is made in, locked against a second one of the same destination."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ExportError(f"another export to the same place is under way in {path}") from None

    def resume(self, fingerprint: str) -> bool:
        """Whether an earlier export of the same kind left work here; work of another kind is cleared away."""
        mark = self.path / "fingerprint"
        if mark.is_file() and mark.read_text() == fingerprint:
            return True
        for path in self.path.iterdir():
            if path.name == "lock":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        mark.write_text(fingerprint)
        return False

    def remove(self) -> None:
        """Remove everything; the export is published."""
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Let go of the lock."""
        self._lock.close()


def _files(tree: Path) -> Iterator[Path]:
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.name != CARD:
            yield path
