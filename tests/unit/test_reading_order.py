"""Admission in another order: every line once with its own index, and a restart that goes on exactly."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import msgspec
import pytest

from common.records import Fingerprint
from common.settings import RunSettings
from producer.lines import Position
from producer.order import opener
from producer.parse import InvalidLine
from producer.scan import scan
from producer.source import open_source


def settings(order, field=None):
    return RunSettings(
        run="r",
        output="/o",
        input_name="p",
        fingerprint=Fingerprint("", 0, 0),
        created_at="",
        order=order,
        order_field=field,
    )


LINES = [
    b"\xef\xbb\xbf" + json.dumps({"prompt": "shared beginning, then a", "metadata": {"n": 3}}).encode(),
    json.dumps({"prompt": "x" * 500, "metadata": {"n": 1}}).encode() + b"\r",
    b"",
    b"not json",
    json.dumps({"id": "twice", "prompt": "middle " * 10, "metadata": {"n": 9}}).encode(),
    json.dumps({"prompt": "shared beginning, then b"}).encode(),
    json.dumps({"id": "twice", "prompt": "short"}).encode(),
]


@pytest.fixture(params=["plain", "gz"])
def source(request, tmp_path):
    data = b"\n".join(LINES)
    path = tmp_path / ("p.jsonl" if request.param == "plain" else "p.jsonl.gz")
    path.write_bytes(data if request.param == "plain" else gzip.compress(data))
    return open_source(str(path), spool=tmp_path / "spool")


def read(source, order, tmp_path, start=None, field=None):
    report = scan(source)
    with opener(source, report, settings(order, field), tmp_path / "spool")(start or Position()) as reader:
        return [(item, reader.position) for item in reader]


@pytest.mark.parametrize(
    ("order", "field", "indexes"),
    [
        ("input", None, [0, 1, 2, 3, 4, 5]),
        ("longest-first", None, [1, 3, 0, 4, 5, 2]),
        ("longest-first", "n", [3, 0, 1, 2, 4, 5]),
        ("prefix", None, [2, 1, 5, 3, 4, 0]),
    ],
)
def test_every_line_comes_once_with_its_own_index(source, tmp_path, order, field, indexes):
    items = [item for item, _ in read(source, order, tmp_path, field=field)]
    assert [item.index for item in items] == indexes
    by_index = {item.index: item for item in items}
    assert by_index[0].messages[0].content == "shared beginning, then a"
    assert isinstance(by_index[2], InvalidLine)
    assert by_index[2].line == 4
    assert isinstance(by_index[5], InvalidLine)
    assert "seen before, on line 5" in by_index[5].reason


@pytest.mark.parametrize("order", ["longest-first", "prefix"])
def test_a_restart_at_any_position_gives_the_rest(source, tmp_path, order):
    whole = read(source, order, tmp_path)
    for at, (_, position) in enumerate(whole, start=1):
        rest = read(source, order, tmp_path, start=position)
        assert [msgspec.json.encode(i) for i, _ in rest] == [msgspec.json.encode(i) for i, _ in whole[at:]]
        assert [p for _, p in rest] == [p for _, p in whole[at:]]


def test_prompts_that_share_a_system_prompt_stand_together(tmp_path):
    """Also where all system prompts begin alike."""
    common = "You are a careful assistant. " * 8
    systems = [f"{common}{n} {'rules ' * 60}" for n in range(5)]
    lines = []
    for n in range(60):
        system, user = {"role": "system", "content": systems[n % 5]}, {"role": "user", "content": f"{n}?"}
        lines.append(json.dumps({"messages": [system, user]}))
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(lines))
    items = [item for item, _ in read(open_source(str(path), spool=tmp_path / "spool"), "prefix", tmp_path)]
    order = [item.index % 5 for item in items]
    assert sorted(item.index for item in items) == list(range(60))
    assert sum(a != b for a, b in pairwise(order)) == 4


def test_long_prompts_that_share_a_document_stand_together(tmp_path):
    documents = [f"Read this. {'word ' * 600}{n} {'more ' * 900}" for n in range(4)]
    lines = [json.dumps({"prompt": f"{documents[n % 4]} Question {n}"}) for n in range(40)]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(lines))
    items = [item for item, _ in read(open_source(str(path), spool=tmp_path / "spool"), "prefix", tmp_path)]
    order = [item.index % 4 for item in items]
    assert sum(a != b for a, b in pairwise(order)) == 3
