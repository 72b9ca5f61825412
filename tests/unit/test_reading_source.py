"""What is read: files as they are, everything else from a copy."""

from __future__ import annotations

import io
import os
import threading

import pytest

from common.errors import InputError
from producer.lines import read_lines
from producer.source import FileState, Source, open_source


def raws(source):
    return [line.raw for line in read_lines(source)]


def test_a_file_is_read_where_it_is(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n")
    assert open_source(str(path), spool=tmp_path / "spool") == Source(name=str(path), path=str(path))
    assert not (tmp_path / "spool").exists()


def test_standard_input_is_copied_once_by_its_content(tmp_path):
    spool = tmp_path / "deep" / "spool"
    source = open_source("-", spool=spool, stream=io.BytesIO(b"a\nb"))
    assert (source.name, raws(source)) == ("-", [b"a", b"b"])
    assert open_source("-", spool=spool, stream=io.BytesIO(b"a\nb")) == source
    other = open_source("-", spool=spool, stream=io.BytesIO(b"a\nc"))
    assert sorted(map(str, spool.iterdir())) == sorted([source.path, other.path])


def test_a_broken_copy_leaves_nothing_behind(tmp_path):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(4)

    with pytest.raises(InputError) as caught:
        open_source("-", spool=tmp_path / "spool", stream=Broken(b"a\nb\nc\n"))
    assert str(caught.value) == f"standard input: cannot be copied to {tmp_path}/spool: Input/output error"
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_pipe_is_copied_too(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\nb\n",))
    writer.start()
    source = open_source(str(pipe), spool=tmp_path / "spool")
    writer.join()
    assert source.name == str(pipe)
    assert raws(source) == raws(source) == [b"a", b"b"]


def test_what_cannot_be_read_is_named(tmp_path):
    for path, why in ((tmp_path / "none.jsonl", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError) as caught:
            open_source(str(path), spool=tmp_path)
        assert str(caught.value) == f"{path}: cannot be read: {why}"
        with pytest.raises(InputError) as caught:
            raws(Source(name=str(path), path=str(path)))
        assert str(caught.value) == f"{path}: cannot be read: {why}"


def test_the_state_of_a_file_changes_with_it(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n")
    with path.open("rb") as file:
        before = FileState.of(file.fileno())
        assert before == FileState.of(file.fileno())
        os.utime(path, ns=(1, 1))
        assert before != FileState.of(file.fileno())
