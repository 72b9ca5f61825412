"""Any conversation in, through every format and back, is the same text."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.export_runs import record, write_run

from common.records import Message, Response, Usage
from ops.export.options import ExportOptions, Format
from ops.export.run import export

NASTY = [
    "",
    "\0 and \x1f",
    "👩‍👩‍👧‍👦 🇫🇮",
    "e\u0301 Å \u0301",
    "\u202eabc\u202c שלום مرحبا",
    "```python\nprint('</think>')\n```",
    '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
    "\r\n\u2028\u2029\x85\ufeff",
    "2026-01-01T00:00:00Z",
    "null",
    '"quoted" \\ /',
]
texts = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
messages = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), texts),
    min_size=1,
    max_size=4,
)
answers = st.builds(Response, content=st.none() | texts, reasoning_content=st.none() | texts)
conversations = st.lists(st.tuples(messages, answers), min_size=1, max_size=4)


def said(found):
    """Who said what: roles and texts, an absent text being none."""
    return [(one["role"], one["content"] or "", one.get("reasoning_content") or "") for one in found]


def read_jsonl(folder):
    for path in sorted(folder.glob("train/*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def back(shape, folder):
    """Every conversation of an export, by id."""
    if shape is Format.PARQUET:
        rows = [row for path in sorted(folder.glob("train/*")) for row in pq.read_table(path).to_pylist()]
    else:
        rows = list(read_jsonl(folder))
    if shape is Format.SHAREGPT:
        return {row["id"]: said(row["conversations"]) for row in rows}
    if shape is Format.OPENAI_BATCH:
        return {
            row["custom_id"]: said(
                [*row["request"]["body"]["messages"], row["response"]["body"]["choices"][0]["message"]]
            )
            for row in rows
        }
    return {row["id"]: said([*row["messages"], row["response"]]) for row in rows}


@pytest.mark.parametrize("shape", list(Format))
@settings(max_examples=25, deadline=None)
@given(found=conversations, shuffle=st.none() | st.integers(0, 3))
@example(
    found=[([Message("user", text)], Response(content=text, reasoning_content=text)) for text in NASTY],
    shuffle=None,
)
@example(
    found=[([Message("user", "q")], Response(content="ä😀\n" * 200_000, reasoning_content="x" * 1_000_000))],
    shuffle=1,
)
def test_every_format_gives_the_same_text_back(shape, found, shuffle):
    records = [
        record(index, messages=asked, response=answer, usage=Usage(1, 50, 0))
        for index, (asked, answer) in enumerate(found)
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = write_run(Path(folder), records, batch=2)
        out = Path(folder, "out")
        export([str(place)], str(out), ExportOptions(format=shape, shuffle=shuffle, shard_size=3))
        expected = {
            one.id: [
                *((message.role, message.content, "") for message in one.messages),
                ("assistant", one.response.content or "", one.response.reasoning_content or ""),
            ]
            for one in records
        }
        assert back(shape, out) == expected
