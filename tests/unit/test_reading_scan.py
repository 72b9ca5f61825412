"""The two passes: what is found, and that both agree on every index."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from itertools import islice
from pathlib import Path

import pytest

from common.errors import InputError
from common.records import Fingerprint
from producer.ids import Duplicates, IdIndex
from producer.lines import Position
from producer.parse import InvalidLine, Prompt
from producer.scan import describe_change, read_prompts, scan
from producer.source import Source


def write(folder, lines, name="in.jsonl"):
    path = folder / name
    data = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return Source(name=name, path=str(path)), data


MIXED = [
    {"id": "a", "prompt": "one"},
    b"",
    b"nonsense",
    {"id": "a", "prompt": "two"},
    {"prompt": "zwölf"},
    {"id": "prompt-00000003", "prompt": "taken"},
    {"id": "prompt-00000006", "prompt": "takes the next"},
    {"id": None, "prompt": "gone"},
    {"id": "a", "prompt": ""},
    {"id": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "p"}, {"type": "x"}]}]},
    b"  \r",
    b"x" * 300,
]

MIXED_INVALID = [
    (1, 3, "prompt-00000001", "is not JSON: Expecting value (character 0 of the line)"),
    (2, 4, "a", "the id 'a' was seen before, on line 1"),
    (4, 6, "prompt-00000003", "the id 'prompt-00000003' was seen before, on line 5"),
    (6, 8, "prompt-00000006", "the id 'prompt-00000006' was seen before, on line 7"),
    (7, 9, "a", '"prompt" is empty'),
    (8, 10, "a", "the id 'a' was seen before, on line 1"),
    (9, 12, "prompt-00000009", "has more than 200 bytes, the most a line may have"),
]


@pytest.mark.parametrize("held_ids", [0, 2, 1000])
@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_a_scan_finds_everything(tmp_path, held_ids, name):
    source, data = write(tmp_path, MIXED, name)
    report = scan(source, spill=tmp_path, max_line=200, held_ids=held_ids)
    assert report.fingerprint == Fingerprint(hashlib.sha256(data).hexdigest(), 10, len(data))
    assert report.invalid == [InvalidLine(*line) for line in MIXED_INVALID]
    assert report.invalid_total == 7
    assert report.usable == 3
    assert report.longest_prompt_bytes == len("takes the next")
    assert report.prompt_bytes == sum(
        map(len, ["one", "two", "zwoelf", "taken", "takes the next", "gone", "p"])
    )
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize("held_ids", [0, 1000])
def test_both_passes_judge_alike(tmp_path, held_ids):
    source, _ = write(tmp_path, MIXED)
    report = scan(source, max_line=200, held_ids=held_ids)
    with read_prompts(source, report) as reader:
        items = list(reader)
    assert [item.index for item in items] == list(range(10))
    assert [item for item in items if isinstance(item, InvalidLine)] == report.invalid
    assert sum(isinstance(item, Prompt) for item in items) == report.usable


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_reading_goes_on_from_any_position(tmp_path, name):
    source, _ = write(tmp_path, MIXED, name)
    report = scan(source)
    with read_prompts(source, report) as reader:
        whole = list(reader)
    for taken in range(len(whole) + 1):
        with read_prompts(source, report) as reader:
            assert list(islice(reader, taken)) == whole[:taken]
            position = reader.position
        with read_prompts(source, report, start=position) as reader:
            assert list(reader) == whole[taken:]
            assert reader.position.index == len(whole)


def test_few_invalid_lines_are_kept_and_all_are_counted(tmp_path):
    lines = [{"id": n % 3, "prompt": "p"} if n % 2 else b"?" for n in range(40)]
    source, _ = write(tmp_path, lines)
    for held_ids in (0, 1000):
        report = scan(source, keep_invalid=5, held_ids=held_ids)
        assert [line.index for line in report.invalid] == [0, 2, 4, 6, 7]
        assert report.invalid_total == 37
        assert (report.usable, report.fingerprint.lines) == (3, 40)


def test_an_empty_input_has_no_prompts(tmp_path):
    source, _ = write(tmp_path, [b"", b" "])
    report = scan(source)
    assert (report.fingerprint.lines, report.usable, report.invalid, len(report.duplicates)) == (0, 0, [], 0)
    assert list(read_prompts(source, report)) == []


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_progress_ends_at_the_size_of_the_file(tmp_path, name):
    noise = [{"prompt": hashlib.sha256(b"%d" % n).hexdigest() * 20} for n in range(1000)]
    source, _ = write(tmp_path, noise, name)
    size = Path(source.path).stat().st_size
    seen = []
    scan(source, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert seen[0][0] < size


def test_a_file_changed_after_the_scan_is_refused(tmp_path):
    source, _ = write(tmp_path, [{"prompt": "a"}])
    report = scan(source)
    write(tmp_path, [{"prompt": "a"}, {"prompt": "b"}])
    with pytest.raises(InputError, match=r"^in.jsonl: was changed since it was checked; start again$"):
        read_prompts(source, report)


def test_a_file_changed_while_it_is_read_is_noticed(tmp_path):
    source, _ = write(tmp_path, [{"prompt": "x" * 1000} for _ in range(1000)])
    report = scan(source)

    def append():
        with Path(source.path).open("ab") as file:
            file.write(b'{"prompt": "late"}\n')

    with read_prompts(source, report) as reader:
        next(reader)
        append()
        with pytest.raises(InputError, match="was changed while it was being read"):
            list(reader)
    called = []
    with pytest.raises(InputError, match="was changed while it was being read"):
        scan(source, progress=lambda *_: called or called.append(append()))


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_other_bytes_under_the_same_state_are_noticed_at_the_end(tmp_path, name):
    source, data = write(tmp_path, [{"prompt": "a"}, {"prompt": "b"}], name)
    report = scan(source)
    other = data.replace(b'"b"', b'"c"')
    with Path(source.path).open("r+b") as file:
        file.write(gzip.compress(other, mtime=0) if name.endswith(".gz") else other)
    os.utime(source.path, ns=(report.state.mtime_ns, report.state.mtime_ns))
    with read_prompts(source, report) as reader:
        seen = [next(reader).index, next(reader).index]
        with pytest.raises(InputError, match="its content is not what was checked"):
            next(reader)
    assert seen == [0, 1]


def test_a_missing_line_is_noticed_without_the_hash(tmp_path):
    source, _ = write(tmp_path, [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}])
    report = scan(source)
    end = len(b'{"prompt": "a"}\n')
    with (
        read_prompts(source, report, start=Position(2, 2, end)) as reader,
        pytest.raises(InputError, match="its content is not what was checked"),
    ):
        list(reader)


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        (("a", 10, 100), "The input is the same as before."),
        (("b", 10, 100), "The input has 10 prompts and 100 bytes as before, but other content."),
        (
            ("b", 10, 1200),
            "The input has 10 prompts as before, but other content: 1,200 bytes instead of 100.",
        ),
        (("b", 1010, 100), "The input has 1,010 prompts now, 1,000 more than the 10 it had."),
        (("b", 9, 100), "The input has 9 prompts now, 1 fewer than the 10 it had."),
    ],
)
def test_a_change_is_described(new, sentence):
    assert describe_change(Fingerprint("a", 10, 100), Fingerprint(*new)) == sentence


def test_duplicates_are_looked_up_by_index():
    duplicates = Duplicates([(2, 1), (5, 3), (9, 1)])
    assert len(duplicates) == 3
    assert {index: duplicates.first_line(index) for index in range(11) if duplicates.first_line(index)} == {
        2: 1,
        5: 3,
        9: 1,
    }


def test_many_ids_go_to_files_and_none_is_missed(tmp_path):
    names = [str(n % 40_000) for n in range(50_000)] + ["é" * 512, "é" * 512]
    with IdIndex(folder=tmp_path, held=1000, keep=3) as ids:
        for index, name in enumerate(names):
            ids.add(name, index, index + 1)
        duplicates, repeats = ids.finish()
        assert list(tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == []
    assert len(duplicates) == 10_001
    assert duplicates.first_line(40_000) == 1
    assert duplicates.first_line(49_999) == 10_000
    assert duplicates.first_line(50_001) == 50_001
    assert duplicates.first_line(50_000) is None
    assert [(repeat.index, repeat.id) for repeat in repeats] == [(40_000, "0"), (40_001, "1"), (40_002, "2")]


def test_a_spill_that_cannot_be_written_says_what_to_do(tmp_path):
    with IdIndex(folder=tmp_path / "none", held=1) as ids:
        ids.add("a", 0, 1)
        with pytest.raises(InputError, match="set TMPDIR to a folder"):
            ids.add("b", 1, 2)
