"""Objects as files: created once, whole or not at all, with faults that say what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import ObjectMissingError, StorageConflictError, StorageError
from common.storage import CreateOnce, ObjectInfo, open_storage, probe
from common.storage.folder import FolderStorage
from common.storage.names import TEMPORARY_PREFIX, TEMPORARY_SUFFIX

TEMPORARY = f"{TEMPORARY_PREFIX}0123456789abcdef{TEMPORARY_SUFFIX}"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "out" / "run"


@pytest.fixture
def storage(root):
    return FolderStorage(root)


def fail_with(number):
    def failing(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return failing


def is_folder(descriptor):
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def files(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_an_object_is_created_once(storage, root):
    assert storage.create("part-0", b"abc") is True
    assert storage.create("part-0", b"abc") is False
    with pytest.raises(StorageConflictError, match="already with other bytes") as caught:
        storage.create("part-0", b"abd")
    assert not caught.value.transient
    assert storage.read("part-0") == b"abc"
    assert files(root) == ["part-0"]


def test_an_empty_object_is_an_object(storage):
    assert storage.create("empty", b"") is True
    assert storage.create("empty", b"") is False
    assert storage.read("empty") == b""
    assert storage.stat("empty") == ObjectInfo("empty", 0)


def test_replace_puts_the_new_in_place_of_the_old(storage, root):
    storage.replace("progress.json", b"1")
    storage.replace("progress.json", b"22")
    assert storage.read("progress.json") == b"22"
    assert files(root) == ["progress.json"]


def test_a_reader_never_sees_a_part_of_a_replacement(storage):
    versions = [bytes([number]) * 100_000 for number in range(8)]
    storage.replace("progress.json", versions[0])
    seen: list[bytes] = []
    done = threading.Event()

    def reader():
        while not done.is_set():
            seen.append(storage.read("progress.json"))

    with ThreadPoolExecutor() as pool:
        future = pool.submit(reader)
        for _ in range(10):
            for version in versions:
                storage.replace("progress.json", version)
        done.set()
        future.result()
    assert seen
    assert set(seen) <= set(versions)


def test_of_many_creators_one_wins_and_the_rest_are_told(root):
    storages = [FolderStorage(root) for _ in range(16)]
    start = threading.Barrier(16)

    def attempt(number):
        start.wait()
        try:
            return storages[number].create("part-0", bytes([number]) * 10_000)
        except StorageConflictError:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(attempt, range(16)))
    assert sorted(outcomes, key=str) == [None] * 15 + [True]
    assert FolderStorage(root).read("part-0") == bytes([outcomes.index(True)]) * 10_000
    assert files(root) == ["part-0"]


def test_a_missing_object_is_told_from_a_fault(storage):
    with pytest.raises(ObjectMissingError, match="nothing is not in"):
        storage.read("nothing")
    assert storage.stat("nothing") is None
    storage.create("a", b"")
    with pytest.raises(ObjectMissingError):
        storage.read("a/b")
    storage.create("b/c", b"")
    with pytest.raises(ObjectMissingError):
        storage.read("b")
    assert storage.stat("b") is None


def test_listing_is_sorted_deep_and_without_private_or_unfinished_files(storage, root):
    for name in ("b", "a/2", "a/10", "a.1", "ü", ".private/x", "c/.hidden"):
        storage.create(name, name.encode())
    (root / TEMPORARY).write_bytes(b"unfinished")
    (root / "a" / TEMPORARY).write_bytes(b"unfinished")
    assert [info.name for info in storage.list()] == ["a.1", "a/10", "a/2", "b", "ü"]
    assert list(storage.list("a/")) == [ObjectInfo("a/10", 4), ObjectInfo("a/2", 3)]
    assert [info.name for info in storage.list("a")] == ["a.1", "a/10", "a/2"]
    assert [info.name for info in storage.list(".private/")] == [".private/x"]
    assert [info.name for info in storage.list(".")] == [".private/x"]
    assert list(storage.list("nothing/")) == []


def test_modes_follow_the_umask_so_that_others_may_read(storage, root):
    old = os.umask(0o022)
    try:
        storage.create("a", b"")
        storage.replace("b", b"")
    finally:
        os.umask(old)
    assert {(root / name).stat().st_mode & 0o777 for name in "ab"} == {0o644}


def test_an_object_is_on_disk_before_it_has_its_name(storage, monkeypatch):
    steps: list[str] = []
    fsync, link = os.fsync, Path.hardlink_to

    def watched_fsync(descriptor):
        kind = "folder" if is_folder(descriptor) else "file"
        steps.append(f"sync {kind}")
        fsync(descriptor)

    def watched_link(path, target):
        steps.append("link")
        link(path, target)

    storage.create("first", b"")
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "hardlink_to", watched_link)
    storage.create("a", b"data")
    assert steps == ["sync file", "link", "sync folder"]
    steps.clear()
    storage.create("a", b"data")
    assert steps == ["sync file", "sync folder"], "one found there may have lost its writer before the sync"


def test_new_folders_are_synced_into_their_parents(storage, root, monkeypatch):
    synced: set[int] = set()
    fsync = os.fsync

    def watched(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    storage.create("sub/a", b"")
    assert {path.stat().st_ino for path in (root.parent.parent, root.parent, root, root / "sub")} <= synced


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_leaves_nothing_and_passes(storage, root, monkeypatch, number, step):
    storage.create("first", b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail_with(number))
        for change in (storage.create, storage.replace):
            with pytest.raises(StorageError, match=f"{root}.*free.*space") as caught:
                change("part-1", b"data")
            assert caught.value.transient
    assert files(root) == ["first"]
    assert storage.create("part-1", b"data") is True


def test_a_full_disk_keeps_the_old_version(storage, root, monkeypatch):
    storage.replace("progress.json", b"old")
    written = 0
    write = os.write

    def fills_up(descriptor, data):
        nonlocal written
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:3])
        return written

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(StorageError, match="full"):
        storage.replace("progress.json", b"much newer")
    assert storage.read("progress.json") == b"old"
    assert files(root) == ["progress.json"]


def test_short_writes_are_carried_on(storage, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    storage.create("a", bytes(range(100)))
    assert storage.read("a") == bytes(range(100))


@pytest.mark.parametrize(
    ("number", "remedy", "transient"),
    [
        (errno.EROFS, "read-only: remount", False),
        (errno.EACCES, "Let this user write", False),
        (errno.EPERM, "Let this user write", False),
        (errno.EIO, "Look at the disk", True),
        (errno.ESTALE, "Look at the disk", True),
        (errno.ELOOP, "Look at the disk", False),
    ],
)
def test_faults_say_what_to_do_and_whether_to_wait(tmp_path, monkeypatch, number, remedy, transient):
    storage, root = FolderStorage(tmp_path), tmp_path
    storage.create("first", b"")
    monkeypatch.setattr(os, "open", fail_with(number))
    with pytest.raises(StorageError, match=f"cannot write {root}/part-1: .*{remedy}") as caught:
        storage.create("part-1", b"data")
    assert caught.value.transient is transient


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights(storage, root):
    root.mkdir(parents=True, mode=0o500)
    with pytest.raises(StorageError, match="Let this user write"):
        storage.create("a", b"")
    assert not probe(storage).ok


def test_a_folder_that_vanishes_is_not_made_anew(storage, root):
    storage.create("part-0", b"")
    (root / "part-0").unlink()
    root.rmdir()
    with pytest.raises(StorageError, match="is gone: mount or restore it") as caught:
        storage.create("part-1", b"")
    assert not caught.value.transient
    for use in (
        lambda: storage.create("sub/part-1", b""),
        lambda: storage.replace("progress.json", b""),
        lambda: storage.read("part-0"),
        lambda: storage.stat("part-0"),
        lambda: list(storage.list()),
    ):
        with pytest.raises(StorageError, match="is gone") as caught:
            use()
        assert not isinstance(caught.value, ObjectMissingError)
    assert not root.exists()


def test_a_file_in_the_way_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match="A file stands where a folder should be"):
        FolderStorage(tmp_path / "out").create("a", b"")
    with pytest.raises(StorageError, match="A file stands where a folder should be"):
        FolderStorage(tmp_path / "out" / "run").create("a", b"")


def test_a_folder_in_the_way_of_an_object(storage, root):
    (root / "a").mkdir(parents=True)
    with pytest.raises(StorageError, match="move it away"):
        storage.create("a", b"")


def test_the_first_write_sweeps_what_dead_processes_left(root):
    root.mkdir(parents=True)
    (root / TEMPORARY).write_bytes(b"half")
    (root / ".promptmill-not-ours").write_bytes(b"")
    FolderStorage(root).create("a", b"")
    assert files(root) == [".promptmill-not-ours", "a"]


def test_the_sweep_spares_a_living_writer(root):
    root.mkdir(parents=True)
    with (root / TEMPORARY).open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        FolderStorage(root).create("a", b"")
        assert files(root) == [TEMPORARY, "a"]


def test_a_writer_whose_temporary_was_swept_before_its_lock_makes_another(storage, root, monkeypatch):
    storage.create("first", b"")
    flock = fcntl.flock
    swept: list[Path] = []

    def swept_first(descriptor, operation):
        if not swept:
            swept.extend(root.glob(f"{TEMPORARY_PREFIX}*{TEMPORARY_SUFFIX}"))
            swept[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    assert storage.create("part-1", b"data") is True
    assert swept
    assert storage.read("part-1") == b"data"


def test_without_locks_nothing_is_swept(root, monkeypatch):
    root.mkdir(parents=True)
    (root / TEMPORARY).write_bytes(b"perhaps alive")
    monkeypatch.setattr(fcntl, "flock", fail_with(errno.ENOLCK))
    assert FolderStorage(root).create("a", b"") is True
    assert files(root) == [TEMPORARY, "a"]


def test_without_hard_links_objects_are_still_created_once(storage, root, monkeypatch):
    monkeypatch.setattr(Path, "hardlink_to", fail_with(errno.EPERM))
    assert storage.create("a", b"1") is True
    assert storage.create("a", b"1") is False
    with pytest.raises(StorageConflictError):
        storage.create("a", b"2")
    assert files(root) == ["a"]
    report = probe(storage)
    assert report.ok
    assert report.create_once is CreateOnce.UNSUPPORTED
    assert "no hard links" in report.warnings[0]


def test_a_folder_that_cannot_be_synced_is_no_fault(storage, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if is_folder(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    assert storage.create("a", b"") is True


def test_a_probe_of_a_good_folder_leaves_nothing_but_the_folder(root):
    report = probe(open_storage(str(root)))
    assert report.ok
    assert (report.writable, report.readable, report.listable) == (True, True, True)
    assert report.create_once is CreateOnce.ENFORCED
    assert report.url == str(root)
    assert report.free_bytes is not None
    assert report.free_bytes > 0
    assert report.latency_s is not None
    assert report.clock_skew_s is None
    assert list(root.iterdir()) == []
    assert probe(open_storage(str(root))).ok


def test_a_probe_of_a_full_disk_is_a_problem(storage, monkeypatch):
    monkeypatch.setattr(os, "write", fail_with(errno.ENOSPC))
    report = probe(storage)
    assert not report.ok
    assert not report.writable
    assert report.create_once is CreateOnce.UNKNOWN
    assert "full" in report.problems[0]
    assert not report.listable


def test_what_is_no_storage_cannot_be_probed():
    with pytest.raises(TypeError, match="str cannot be probed"):
        probe("a string")
