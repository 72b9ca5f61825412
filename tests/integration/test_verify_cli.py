"""`ops verify` as it is typed: on a folder and on S3, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.outputs import draft
from support.runs import claim, collect, enqueue, work, write_prompts
from support.s3 import S3Server

from common.parts import part_name
from common.store import RunStore
from ops.cli import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Not where the prompts are: they are not found by name."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def source(tmp_path):
    path = write_prompts(tmp_path / "prompts.jsonl", 10)
    with path.open("a") as file:
        file.write("not json\n")
    return path


@pytest.fixture(params=["folder", "s3"])
def output(request, tmp_path):
    """Where the run goes: every test runs on both kinds."""
    if request.param == "folder":
        return str(tmp_path / "out")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.url()


def verify(*args, code):
    done = CliRunner().invoke(main, ["verify", *map(str, args)])
    assert done.exit_code == code, done.output
    return done.output


def test_a_whole_run_is_proven(redis_url, source, output):
    store = RunStore.from_url(redis_url)
    settings = enqueue(store, source, output, batch_size=4)
    work(redis_url, most=5)
    collect(store, settings)
    claim(redis_url, 2)
    place = settings.destination
    text = verify(place, "--input", source, code=3)
    assert "NOT FINISHED (it last said: running). Of the 11 prompts, 4 have ended as one record" in text
    assert "and 1 as a dead letter, each exactly once; 6 have no end" in text
    assert "1 newer part is not in the manifest yet. Nothing is wrong." in text
    store.client.flushall()
    again = enqueue(store, source, output, batch_size=4)
    work(redis_url)
    collect(store, again)
    text = verify(place, "--input", source, code=0)
    assert "10 completions: ok 10" in text
    assert "1 dead letter: invalid_line 1" in text
    last = text.splitlines()[-1]
    assert last.startswith(
        "PROVEN: each of the 11 prompts ended exactly once, 10 as one record in one part, 1"
    )
    assert last.endswith(f"Ids, conversations and metadata are those of {source}.")


def test_a_wrong_output_is_named_and_ends_with_1(source, output):
    made = draft(source)
    made.records.append(made.records[0])
    place = made.write(output)
    text = verify(place, "--input", source, code=1)
    assert f"index 0 (id 'p0') in {part_name(3)} stands in {part_name(0)} too" in text
    assert text.splitlines()[-1].startswith("WRONG: ")


def test_json_is_one_object(source, output):
    place = draft(source).write(output)
    report = json.loads(verify(place, "--json", "--input", source, code=0))
    assert (report["run"], report["outcome"], report["units"]) == ("r", "proven", 11)
    assert report["tallies"]["completions"] == 10
    assert report["findings"] == []


def test_the_input_may_come_by_standard_input(source, tmp_path):
    place = draft(source).write(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", "verify", place, "--input", "-"],
        input=source.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"are those of -" in done.stdout


def test_a_place_without_a_run_and_an_input_that_is_not_there_are_bad_usage(source, tmp_path):
    assert "holds no manifest.json" in verify(tmp_path / "nothing", code=2)
    place = draft(source).write(tmp_path / "out")
    assert "cannot be read" in verify(place, "--input", tmp_path / "absent.jsonl", code=2)


def test_another_input_is_wrong_not_bad_usage(source, tmp_path):
    place = draft(source).write(tmp_path / "out")
    other = write_prompts(tmp_path / "other.jsonl", 3)
    text = verify(place, "--input", other, code=1)
    assert "is not the input of run r" in text
    assert "fewer than the 11 it had" in text
