"""`ops export` on whole runs: folders and S3, killed and resumed, merged, damaged."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner
from support.export_runs import USAGE, mixed, record, write_run
from support.wait import wait_for

from common.errors import UsageError
from common.missing import missing_from
from common.parts import MANIFEST, OutputError, part_name, read_manifest
from common.records import DeadLetter, DeadReason, Message, Response, Usage, Verdict
from common.storage import open_storage
from ops.export import run as export_run
from ops.export.cli import export_command
from ops.export.errors import ExportError, GapsError, ShortAnswersError
from ops.export.options import ExportOptions, Format
from ops.export.run import export


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for lines in files(folder) for line in lines]


def files(folder: Path) -> list[list[bytes]]:
    return [path.read_bytes().split(b"\n")[:-1] for path in sorted(folder.glob("*/*.jsonl"))]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def options(**changes) -> ExportOptions:
    return ExportOptions(**({"format": Format.JSONL} | changes))


def good(count: int, **changes):
    return [record(index, usage=USAGE, **changes) for index in range(count)]


def test_splits_shards_and_verdicts(tmp_path):
    records = [*good(90), *(record(n, verdict=Verdict.TRUNCATED, usage=USAGE) for n in range(90, 100))]
    run = write_run(tmp_path, records)
    summary = export([str(run)], str(tmp_path / "out"), options(split=(0.8, 0.2), shard_size=20))
    found = rows(tmp_path / "out")
    assert sorted(row["index"] for row in found) == list(range(90))
    assert {split.name for split in summary.splits} == {"train", "validation"}
    assert max(map(len, files(tmp_path / "out"))) == 20
    assert "| truncated | 10 | 0 |" in (tmp_path / "out" / "README.md").read_text()
    assert not list(tmp_path.glob(".out*"))


def test_columns_say_what_the_record_says_in_both_encodings(tmp_path):
    records = [mixed(index) for index in range(12)]
    run = write_run(tmp_path, records)
    for shape in (Format.JSONL, Format.PARQUET):
        export([str(run)], str(tmp_path / shape), options(format=shape))
    lines = rows(tmp_path / "jsonl")
    table = pq.read_table(tmp_path / "parquet" / "train" / "train-00000.parquet").to_pylist()
    empty = dict.fromkeys(("name", "tool_calls", "tool_call_id", "content_parts"))
    for line, row, one in zip(lines, table, records, strict=True):
        figures = line["speculation"] and dict.fromkeys(("accept_rate", "verify_steps")) | line["speculation"]
        asked = [empty | message for message in line["messages"]]
        assert row == line | {"messages": asked, "speculation": figures}
        assert json.loads(line["params"]) == one.params
        assert line["response"] == msgspec.to_builtins(one.response)
    assert json.loads(lines[1]["metadata"]) == {"a": {"b": [1, "x"]}}
    assert lines[2]["metadata"] == '"just text"'
    assert lines[2]["speculation"]["accept_length"] == 2.5
    assert json.loads(lines[3]["messages"][0]["content_parts"]) == [{"type": "text", "text": "in parts"}]
    assert lines[4]["turns"][0]["verdict"] == "ok"
    assert lines[0]["turns"] is None


def test_the_same_export_again_is_done_already_another_is_refused(tmp_path):
    run = write_run(tmp_path, good(5))
    export([str(run)], str(tmp_path / "out"), options())
    before = tree(tmp_path / "out")
    assert export([str(run)], str(tmp_path / "out"), options()).already
    with pytest.raises(UsageError, match="another export"):
        export([str(run)], str(tmp_path / "out"), options(shuffle=1))
    assert tree(tmp_path / "out") == before


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    run = write_run(tmp_path, good(5))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("do not lose")
    with pytest.raises(UsageError, match="not empty"):
        export([str(run)], str(tmp_path / "out"), options())


@pytest.mark.parametrize("shuffle", [None, 5])
def test_killed_at_any_shard_it_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch, shuffle):
    run = write_run(tmp_path, good(200))
    wanted = options(split=(0.9, 0.1), shard_size=10, shuffle=shuffle)
    export([str(run)], str(tmp_path / "whole"), wanted)
    finish = export_run.Shards._finish
    calls = 0

    def dies(self, split):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        finish(self, split)

    with monkeypatch.context() as patch:
        patch.setattr(export_run.Shards, "_finish", dies)
        with pytest.raises(KeyboardInterrupt):
            export([str(run)], str(tmp_path / "out"), wanted)
    assert not (tmp_path / "out").exists()
    summary = export([str(run)], str(tmp_path / "out"), wanted)
    assert summary.kept_shards == 3
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_sigkill_leaves_nothing_at_the_destination_and_is_made_good(tmp_path):
    run = write_run(tmp_path, good(4000), batch=100)
    arguments = [str(run), str(tmp_path / "out"), "--format", "parquet", "--shard-size", "100"]
    code = "from ops.export.cli import export_command; export_command()"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    journal = tmp_path / ".out.promptmill-export" / "journal"
    with subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, cwd=root) as process:
        try:
            wait_for(lambda: journal.is_dir() and any(journal.glob("*.json")), "a finished shard", 60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    again = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Took 4,000 of 4,000 records" in again.stdout
    export([str(run)], str(tmp_path / "whole"), options(format=Format.PARQUET, shard_size=100))
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_work_of_another_kind_is_not_taken_over(tmp_path, monkeypatch):
    run = write_run(tmp_path, good(50))

    def dies(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export_run.Shards, "close", dies)
        with pytest.raises(KeyboardInterrupt):
            export([str(run)], str(tmp_path / "out"), options(shard_size=10, shuffle=1))
    summary = export([str(run)], str(tmp_path / "out"), options(shard_size=10))
    assert summary.kept_shards == 0
    assert [row["index"] for row in rows(tmp_path / "out")] == list(range(50))


def test_two_exports_to_one_place_do_not_meet(tmp_path):
    run = write_run(tmp_path, good(5))
    work = export_run.WorkFolder(tmp_path / ".out.promptmill-export")
    with pytest.raises(ExportError, match="under way"):
        export([str(run)], str(tmp_path / "out"), options())
    work.close()
    export([str(run)], str(tmp_path / "out"), options())


def test_a_lost_part_stops_it_unless_gaps_are_allowed(tmp_path):
    run = write_run(tmp_path, good(30))
    (run / part_name(1)).unlink()
    with pytest.raises(OutputError, match="part-000001"):
        export([str(run)], str(tmp_path / "out"), options())
    assert not (tmp_path / "out").exists()
    summary = export([str(run)], str(tmp_path / "out"), options(allow_gaps=True))
    assert summary.rows == 20
    assert "1 parts left out" in (tmp_path / "out" / "README.md").read_text()


def test_a_damaged_part_is_found_by_its_hash(tmp_path):
    run = write_run(tmp_path, good(30))
    path = run / part_name(2)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(OutputError, match=r"part-000002.*SHA-256"):
        export([str(run)], str(tmp_path / "out"), options())


def test_a_prompt_without_record_or_dead_letter_is_a_gap(tmp_path):
    records = good(30)
    del records[7]
    elsewhere = DeadLetter(index=3, id="p3", reason=DeadReason.TOO_LONG, last_error="e", attempts=1)
    run = write_run(tmp_path, records, dead=[elsewhere])
    with pytest.raises(GapsError, match=r"1 of 30 prompts \(index 7\)"):
        export([str(run)], str(tmp_path / "out"), options())


def test_dead_letters_close_gaps(tmp_path):
    records = good(30)
    del records[7]
    letter = DeadLetter(index=7, id="p7", reason=DeadReason.TOO_LONG, last_error="e", attempts=1)
    run = write_run(tmp_path, records, dead=[letter])
    assert export([str(run)], str(tmp_path / "out"), options()).census.dead == 1


def test_a_run_of_part_of_an_input_may_have_any_indexes(tmp_path):
    run = write_run(tmp_path, [record(index, usage=USAGE) for index in (3, 900, 40_000)])
    assert export([str(run)], str(tmp_path / "out"), options()).rows == 3


def test_a_prompt_with_a_picture_is_left_out_of_sharegpt_and_named(tmp_path):
    picture = [Message("user", [{"type": "image_url", "image_url": {"url": "x"}}])]
    records = [record(n, usage=USAGE, **({"messages": picture} if n == 7 else {})) for n in range(200)]
    run = write_run(tmp_path, records)
    assert export([str(run)], str(tmp_path / "out"), options(format=Format.SHAREGPT)).rows == 199
    assert "r/p7" in (tmp_path / "out" / "README.md").read_text()
    assert export([str(run)], str(tmp_path / "rows"), options()).rows == 200
    many = write_run(tmp_path / "many", [record(n, usage=USAGE, messages=picture) for n in range(20)])
    with pytest.raises(ExportError, match=r"20 of 20 answers .*part that is not text"):
        export([str(many)], str(tmp_path / "none"), options(format=Format.SHAREGPT))


def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    run = write_run(tmp_path, good(5))
    monkeypatch.setattr("ops.export.writers._write_all", full)
    with pytest.raises(ExportError, match="No space left on device"):
        export([str(run)], str(tmp_path / "out"), options())


def test_a_double_stops_it_and_with_gaps_allowed_the_first_is_taken(tmp_path):
    records = good(30)
    records[20] = msgspec.structs.replace(records[3], response=Response(content="other " * 20))
    run = write_run(tmp_path, records)
    with pytest.raises(GapsError, match=r"'p3'.*twice"):
        export([str(run)], str(tmp_path / "out"), options())
    summary = export([str(run)], str(tmp_path / "out"), options(allow_gaps=True))
    assert summary.census.doubles == 1
    assert "other" not in json.dumps(rows(tmp_path / "out"))


def test_a_run_that_is_not_finished_needs_leave(tmp_path):
    run = write_run(tmp_path, good(30), accepted=50, finished=False)
    with pytest.raises(GapsError, match="not finished"):
        export([str(run)], str(tmp_path / "out"), options())
    assert export([str(run)], str(tmp_path / "out"), options(allow_gaps=True)).rows == 30


def test_a_part_that_the_manifest_does_not_name_is_not_passed_over(tmp_path):
    run = write_run(tmp_path, good(30))
    (run / part_name(3)).write_bytes((run / part_name(0)).read_bytes())
    with pytest.raises(GapsError, match="part-000003"):
        export([str(run)], str(tmp_path / "out"), options())


def test_a_line_that_is_no_record_is_named(tmp_path):
    run = write_run(tmp_path, good(30))
    manifest = json.loads((run / MANIFEST).read_text())
    lines = [msgspec.json.encode(one) for one in good(10)]
    lines[4] = b'{"index": "x"}'
    data = zstandard.ZstdCompressor().compress(b"\n".join(lines) + b"\n")
    (run / part_name(0)).write_bytes(data)
    manifest["parts"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    (run / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(OutputError, match=r"part-000000\.jsonl\.zst line 5"):
        export([str(run)], str(tmp_path / "out"), options())


def test_merged_runs_take_the_best_verdict_then_the_later_run(tmp_path):
    truncated = {"verdict": Verdict.TRUNCATED, "finish_reason": "length"}
    first = [record(0, usage=USAGE), record(1, usage=USAGE, **truncated), record(2, usage=USAGE, **truncated)]
    better = [record(0, usage=USAGE, id="p1", messages=[Message("user", "Question 1?")], model="later")]
    both = [
        record(0, usage=USAGE, model="later"),
        record(
            1, usage=USAGE, id="p2", messages=[Message("user", "Question 2?")], model="later", **truncated
        ),
    ]
    places = [
        str(write_run(tmp_path, records, run=name))
        for name, records in (("first", first), ("better", better), ("both", both))
    ]
    wanted = options(verdicts=(Verdict.OK, Verdict.TRUNCATED))
    summary = export(places, str(tmp_path / "out"), wanted)
    assert {row["id"]: row["run"] for row in rows(tmp_path / "out")} == {
        "p0": "both",
        "p1": "better",
        "p2": "both",
    }
    assert summary.census.superseded == 3
    export(places[::-1], str(tmp_path / "reversed"), wanted)
    found = {row["id"]: row["run"] for row in rows(tmp_path / "reversed")}
    assert found == {"p0": "first", "p1": "better", "p2": "first"}


def test_runs_of_different_prompts_under_one_id_are_not_merged(tmp_path):
    one = write_run(tmp_path, [record(0, usage=USAGE)], run="one")
    other = write_run(tmp_path, [record(0, usage=USAGE, messages=[Message("user", "else?")])], run="other")
    with pytest.raises(ExportError, match="different prompts under one id"):
        export([str(one), str(other)], str(tmp_path / "out"), options())


def test_what_an_earlier_run_lacks(tmp_path):
    records = [record(0), record(1, verdict=Verdict.TRUNCATED), record(2)]
    letter = DeadLetter(index=3, id="p3", reason=DeadReason.TIMEOUT, last_error="e", attempts=5)
    storage = open_storage(str(write_run(tmp_path, records, dead=[letter])))
    missing = missing_from(storage)
    assert list(missing.filter(["p0", "p1", "p2", "p3", "never"])) == ["p1", "p3", "never"]
    lenient = missing_from(storage, verdicts_bad=[Verdict.EMPTY])
    assert "p1" not in lenient


def test_a_prompt_is_answered_when_all_its_samples_are(tmp_path):
    records = [
        record(0, sample=0),
        record(0, sample=1),
        record(1, sample=0),
        record(1, sample=1, verdict=Verdict.EMPTY),
    ]
    storage = open_storage(str(write_run(tmp_path, records, samples=2)))
    assert read_manifest(storage).completed == 4
    missing = missing_from(storage)
    assert list(missing.filter(["p0", "p1"])) == ["p1"]
    assert missing.answered == 1


@pytest.mark.parametrize("shape", list(Format))
def test_a_set_of_six_token_answers_is_stopped_in_every_shape(tmp_path, shape):
    bad = Response(content="OK.", reasoning_content="thinking, response")
    records = [
        record(n, usage=Usage(5, 6, 3), response=bad) if n % 100 < 87 else record(n, usage=USAGE)
        for n in range(200)
    ]
    run = write_run(tmp_path, records)
    with pytest.raises(ShortAnswersError, match=r"174 of 200 rows \(87.0%\)"):
        export([str(run)], str(tmp_path / "out"), options(format=shape))
    assert not (tmp_path / "out").exists()
    assert export([str(run)], str(tmp_path / "out"), options(format=shape, allow_short=True)).kept_shards == 1


def test_to_s3_and_from_it_with_the_card_last(tmp_path, s3_server, monkeypatch):
    local = write_run(tmp_path, good(30))
    run = s3_server.url("run")
    storage = open_storage(run)
    for path in local.iterdir():
        storage.create(path.name, path.read_bytes())
    destination = s3_server.url("set")
    there = open_storage(destination)
    create = type(there).create

    def dies(self, name, data):
        if name == "README.md":
            raise KeyboardInterrupt
        return create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(there), "create", dies)
        with pytest.raises(KeyboardInterrupt):
            export([run], destination, options(shard_size=10), scratch=tmp_path)
    assert there.stat("README.md") is None
    export([run], destination, options(shard_size=10), scratch=tmp_path)
    assert [info.name for info in there.list()] == [
        "README.md",
        *(f"train/train-{number:05d}.jsonl" for number in range(3)),
    ]
    assert export([run], destination, options(shard_size=10), scratch=tmp_path).already
    with pytest.raises(UsageError, match="another export"):
        export([run], destination, options(), scratch=tmp_path)
    assert not list(tmp_path.glob("promptmill-export*"))


def test_the_command_says_what_it_made(tmp_path):
    run = write_run(tmp_path, good(30))
    arguments = [str(run), str(tmp_path / "out"), "--format", "sharegpt", "--verdict", "ok,truncated"]
    first = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    assert "train: 30 rows in 1 file," in first.output
    assert "already" in CliRunner().invoke(export_command, arguments).output


def test_memory_stays_flat_however_long_the_run_is(tmp_path):
    """The peak of a run eight times as long is within a few megabytes."""
    code = (
        "import resource, sys; from ops.export.run import export;"
        "from ops.export.options import ExportOptions, Format;"
        "options = ExportOptions(format=Format(sys.argv[3]), shuffle=1, shard_size=500);"
        "export([sys.argv[1]], sys.argv[2], options);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    root = Path(__file__).parents[2]
    text = Response(content="some words of an answer " * 200, reasoning_content="thoughts " * 300)
    peaks = []
    for count in (2000, 16000):
        run = write_run(tmp_path, good(count, response=text), run=f"r{count}", batch=250)
        done = subprocess.run(
            [sys.executable, "-c", code, str(run), str(tmp_path / f"out{count}"), "jsonl"],
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < peaks[0] + 64, f"megabytes: {peaks}"
