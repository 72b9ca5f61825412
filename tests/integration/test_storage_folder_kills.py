"""Folders under real deaths and a really full disk."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.wait import wait_for

from common.errors import StorageError
from common.storage import open_storage, probe
from common.storage.names import is_temporary

ROOT = Path(__file__).parents[2]

WRITER = """
import itertools, sys
from common.storage import open_storage
storage = open_storage(sys.argv[1])
first = int(sys.argv[2])
print("ready", flush=True)
for number in itertools.count(first):
    storage.create(f"part-{number:06d}", number.to_bytes(4, "big") * 50_000)
    storage.replace("progress.json", number.to_bytes(4, "big") * 50_000)
"""


def start_writer(folder, first):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(first)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert writer.stdout.readline() == b"ready\n"
    return writer


def test_killed_at_any_moment_nothing_is_half_there_and_the_next_writer_cleans_up(tmp_path):
    chance = random.Random(1)
    storage = open_storage(str(tmp_path / "out"))
    for _ in range(8):
        before = len(list(storage.list("part-")))
        with start_writer(tmp_path / "out", before) as writer:
            goal = before + chance.randrange(1, 6)
            wait_for(lambda goal=goal: len(list(storage.list("part-"))) > goal, "a few parts")
            writer.send_signal(signal.SIGKILL)
        parts = list(storage.list("part-"))
        assert [info.name for info in parts] == [f"part-{number:06d}" for number in range(len(parts))]
        assert {info.size for info in parts} == {200_000}
        progress = storage.read("progress.json")
        assert progress == progress[:4] * 50_000
    for number, info in enumerate(storage.list("part-")):
        assert storage.read(info.name) == number.to_bytes(4, "big") * 50_000
    open_storage(str(tmp_path / "out")).create("last", b"")
    assert not [path for path in (tmp_path / "out").iterdir() if is_temporary(path.name)]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full_and_then_has_room_again(small_disk):
    storage = open_storage(str(small_disk / "out"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(150_000))
    storage.replace("progress.json", b"old")
    for change in (storage.create, storage.replace):
        with pytest.raises(StorageError, match="is full: free some space") as caught:
            change("part-0", bytes(200_000))
        assert caught.value.transient
    assert [info.name for info in storage.list()] == ["progress.json"]
    assert [path.name for path in (small_disk / "out").iterdir()] == ["progress.json"]
    ballast.unlink()
    assert storage.create("part-0", bytes(200_000)) is True
    assert storage.read("progress.json") == b"old"


def test_a_disk_that_is_really_read_only(small_disk):
    storage = open_storage(str(small_disk / "out"))
    storage.create("part-0", b"data")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match="is read-only: remount it") as caught:
        storage.create("part-1", b"data")
    assert not caught.value.transient
    assert storage.create("part-0", b"data") is False
    assert storage.read("part-0") == b"data"
    assert "is read-only" in probe(storage).problems[0]
