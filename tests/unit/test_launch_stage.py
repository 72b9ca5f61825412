import fcntl
import hashlib
import os

import msgspec
import pytest

from common.errors import UsageError
from ops.launch import stage as staging
from ops.launch.stage import LIST_NAME, stage


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "weights.bin").write_bytes(os.urandom(100_000))
    (folder / "sub" / "empty").touch()
    (folder / ".cache").mkdir()
    (folder / ".cache" / "junk").write_text("x")
    return folder


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in files if path.name != LIST_NAME
    }


def run(model, folder):
    return stage(model, folder, spare=0)


def partial_of(source, folder):
    info = source.stat()
    return folder / f".{source.name}.{info.st_size}-{info.st_mtime_ns}.partial"


def test_a_copy_has_the_same_bytes_and_a_list_of_hashes(model, tmp_path):
    report = run(model, tmp_path / "shm")
    assert contents(tmp_path / "shm") == {
        name: data for name, data in contents(model).items() if not name.startswith(".cache")
    }
    assert (report.files, report.copied) == (3, 3)
    listed = msgspec.json.decode((tmp_path / "shm" / LIST_NAME).read_bytes())
    digest = hashlib.sha256((model / "weights.bin").read_bytes()).hexdigest()
    assert listed["weights.bin"]["sha256"] == digest


def test_a_copy_that_stands_is_not_made_again(model, tmp_path):
    run(model, tmp_path / "shm")
    assert run(model, tmp_path / "shm").bytes_copied == 0


def test_a_copy_that_was_cut_off_goes_on_where_it_stopped(model, tmp_path):
    target = tmp_path / "shm"
    target.mkdir()
    partial_of(model / "weights.bin", target).write_bytes((model / "weights.bin").read_bytes()[:70_000])
    assert run(model, target).bytes_copied == 30_000 + 2
    assert (target / "weights.bin").read_bytes() == (model / "weights.bin").read_bytes()


def test_a_copy_of_a_source_that_changed_is_not_continued(model, tmp_path):
    target = tmp_path / "shm"
    target.mkdir()
    stale = partial_of(model / "weights.bin", target)
    stale.write_bytes(b"old")
    (model / "weights.bin").write_bytes(b"new weights")
    run(model, target)
    assert (target / "weights.bin").read_bytes() == b"new weights"
    assert not stale.exists()


def test_damage_to_a_copy_is_found_and_mended(model, tmp_path):
    target = tmp_path / "shm"
    run(model, target)
    damaged = bytearray((target / "weights.bin").read_bytes())
    damaged[5] ^= 1
    (target / "weights.bin").write_bytes(damaged)
    assert run(model, target).copied == 1
    assert (target / "weights.bin").read_bytes() == (model / "weights.bin").read_bytes()


def test_a_file_the_model_lost_leaves_the_copy(model, tmp_path):
    run(model, tmp_path / "shm")
    (model / "sub" / "empty").unlink()
    run(model, tmp_path / "shm")
    assert not (tmp_path / "shm" / "sub" / "empty").exists()


def test_too_little_space_stops_before_anything_is_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "free_bytes", lambda _folder: 99_999)
    with pytest.raises(UsageError, match="--stage-dir"):
        run(model, tmp_path / "shm")
    assert contents(tmp_path / "shm") == {}


def test_space_that_an_unfinished_copy_holds_counts_as_there(model, tmp_path, monkeypatch):
    target = tmp_path / "shm"
    target.mkdir()
    partial_of(model / "weights.bin", target).write_bytes((model / "weights.bin").read_bytes()[:70_000])
    monkeypatch.setattr(staging, "free_bytes", lambda _folder: 30_002)
    run(model, target)


def test_two_that_stage_the_same_model_take_turns(model, tmp_path):
    target = tmp_path / "shm"
    target.mkdir()
    with (target / ".stage.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = stage(model, target, spare=0, waiting=lambda: fcntl.flock(lock, fcntl.LOCK_UN))
    assert report.copied == 3


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no model files"):
        run(tmp_path / "nothing", tmp_path / "shm")


def test_memory_bounds_the_space_of_a_file_system_in_memory(tmp_path):
    assert staging.free_bytes(tmp_path) > 0
    assert staging._in_memory(staging.Path("/dev/shm"))
