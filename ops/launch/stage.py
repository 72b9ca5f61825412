"""Copies a model into memory once, so that every server of the machine loads it from there.

A copy that was cut off goes on where it stopped. What was copied is listed with its SHA-256 in
`stage.json`; a copy that stands is checked against it before it is used. Names of unfinished files carry
the source's size and time, so a source that changed is never continued.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
import psutil

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST_NAME: Final = "stage.json"
_LOCK_NAME: Final = ".stage.lock"
_CHUNK: Final = 8 << 20
_SPARE: Final = 1 << 30
"""Bytes to leave free: servers keep shared memory of their own beside the model."""

_WORKERS: Final = 4
_GIB: Final = 1 << 30


class StagedFile(msgspec.Struct, frozen=True):
    """One copied file: its source's size and time, and the hash of its bytes."""

    size: int
    mtime_ns: int
    sha256: str


class StageReport(msgspec.Struct, frozen=True):
    """What staging did."""

    path: str
    files: int
    copied: int
    bytes_copied: int


def stage(
    model: Path, folder: Path, *, spare: int = _SPARE, waiting: Callable[[], object] = lambda: None
) -> StageReport:
    """Make `folder` a checked copy of the model's files; returns what was copied.

    Another process that stages into the same folder is waited for; what it copied is checked and used.

    Args:
        model: The model's folder. Hidden files and folders are left out, links are followed.
        folder: Where the copy goes, for example `/dev/shm/<model>`.
        spare: Bytes that must stay free there.
        waiting: Called once if another process has to be waited for.

    Raises:
        UsageError: the model is no folder, there is not enough space, or it changes while it is copied.
    """
    sources = dict(_files(model))
    if not sources:
        raise UsageError(f"{model} holds no model files: --model must name a model's folder")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, waiting):
        listed = _read_list(folder)
        missing = _missing(sources, folder, listed)
        _check_space(folder, missing, spare)
        _drop_strangers(folder, sources)
        copied = 0
        for name, source in missing.items():
            listed.pop(name, None)
            staged, written = _copy(source, folder / name)
            listed[name] = staged
            copied += written
            _write_list(folder, listed)
        for name in listed.keys() - sources.keys():  # copies of files that the model no longer has
            (folder / name).unlink(missing_ok=True)
        _write_list(folder, {name: listed[name] for name in sources})
    return StageReport(path=str(folder), files=len(sources), copied=len(missing), bytes_copied=copied)


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written there; in a file system in memory, no more than the memory has."""
    free = shutil.disk_usage(folder).free
    if _in_memory(folder):
        free = min(free, psutil.virtual_memory().available)
    return free


def _in_memory(folder: Path) -> bool:
    real = str(folder.resolve())
    mounts = [disk for disk in psutil.disk_partitions(all=True) if _below(real, disk.mountpoint)]
    return bool(mounts) and max(mounts, key=lambda disk: len(disk.mountpoint)).fstype in {"tmpfs", "ramfs"}


def _below(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint.rstrip("/") + "/")


def _files(model: Path) -> Iterator[tuple[str, Path]]:
    for root, folders, names in os.walk(model, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(root, name)
                yield path.relative_to(model).as_posix(), path


@contextlib.contextmanager
def _locked(folder: Path, waiting: Callable[[], object]) -> Iterator[None]:
    with (folder / _LOCK_NAME).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_list(folder: Path) -> dict[str, StagedFile]:
    try:
        return msgspec.json.decode((folder / LIST_NAME).read_bytes(), type=dict[str, StagedFile])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write_list(folder: Path, listed: dict[str, StagedFile]) -> None:
    beside = folder / f".{LIST_NAME}.new"
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(listed)))
    beside.replace(folder / LIST_NAME)


def _missing(sources: dict[str, Path], folder: Path, listed: dict[str, StagedFile]) -> dict[str, Path]:
    """The files whose copy is absent, of another source, or not what was copied."""

    def stands(name: str) -> bool:
        known, copy, source = listed.get(name), folder / name, sources[name].stat()
        if known is None or (known.size, known.mtime_ns) != (source.st_size, source.st_mtime_ns):
            return False
        if not copy.is_file() or copy.stat().st_size != known.size:
            return False
        with copy.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == known.sha256

    with ThreadPoolExecutor(_WORKERS) as pool:  # hashing lets other threads run
        standing = dict(zip(sources, pool.map(stands, sources), strict=True))
    return {name: path for name, path in sources.items() if not standing[name]}


def _check_space(folder: Path, missing: dict[str, Path], spare: int) -> None:
    needed = 0
    for name, source in missing.items():
        there = sum(
            path.stat().st_size for path in (folder / name, _partial(source, folder / name)) if path.exists()
        )
        needed += max(0, source.stat().st_size - there)
    free = free_bytes(folder)
    if missing and needed + spare > free:
        raise UsageError(
            f"{folder} has {free / _GIB:.1f} GiB free and the model needs {needed / _GIB:.1f} GiB more and "
            f"{spare / _GIB:.1f} GiB to spare: make room, choose another --stage-dir, or give --no-stage"
        )


def _drop_strangers(folder: Path, sources: dict[str, Path]) -> None:
    """Remove unfinished copies of sources that have changed since."""
    partials = {_partial(source, folder / name) for name, source in sources.items()}
    for path in folder.rglob(".*.partial"):
        if path not in partials:
            path.unlink()


def _partial(source: Path, target: Path) -> Path:
    info = source.stat()
    return target.with_name(f".{target.name}.{info.st_size}-{info.st_mtime_ns}.partial")


def _copy(source: Path, target: Path) -> tuple[StagedFile, int]:
    """Copy one file, going on with an unfinished copy of that source; returns it and the bytes written."""
    info, partial = source.stat(), _partial(source, target)
    partial.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # frees its memory before the new copy needs it
    digest = hashlib.sha256()
    with source.open("rb") as reader, partial.open("a+b") as writer:
        if writer.tell() > info.st_size:
            writer.truncate(0)
        writer.seek(0)
        done = _pump(writer, digest.update)
        reader.seek(done)

        def add(chunk: bytes) -> None:
            digest.update(chunk)
            writer.write(chunk)

        written = _pump(reader, add)
        writer.flush()
        os.fsync(writer.fileno())
    after = source.stat()
    if done + written != info.st_size or (after.st_size, after.st_mtime_ns) != (
        info.st_size,
        info.st_mtime_ns,
    ):
        partial.unlink()
        raise UsageError(f"{source} changed while it was copied: start again when it is complete")
    partial.replace(target)
    staged = StagedFile(size=info.st_size, mtime_ns=info.st_mtime_ns, sha256=digest.hexdigest())
    return staged, written


def _pump(file: BinaryIO, take: Callable[[bytes], object]) -> int:
    total = 0
    while chunk := file.read(_CHUNK):
        take(chunk)
        total += len(chunk)
    return total
