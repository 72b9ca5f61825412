"""Reading, for any input at all: nothing crashes it, text comes out as it went in, any restart is exact."""

from __future__ import annotations

import gzip
import json
import tempfile
from itertools import islice
from pathlib import Path

import msgspec
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.records import PromptJob
from producer.lines import read_lines, split_lines
from producer.parse import InvalidLine, Prompt, parse_line
from producer.scan import read_prompts, scan
from producer.source import Source

text = st.text(max_size=40)
spoken = text.filter(lambda value: bool(value) and not value.isspace())
number = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalar = st.none() | st.booleans() | number | text
json_value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)
turn = st.one_of(
    st.tuples(st.just("user"), spoken), st.tuples(st.sampled_from(["system", "assistant", "tool"]), text)
)
turns = st.lists(turn, min_size=1, max_size=6).filter(lambda said: any(role == "user" for role, _ in said))
FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}


def shaped(said, shape):
    messages = [{"role": role, "content": content} for role, content in said]
    if shape == "conversations":
        return {"conversations": [{"from": FROM[role], "value": content} for role, content in said]}
    if shape == "body":
        return {
            "custom_id": "c",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": messages},
        }
    return {"messages": messages}


@given(turns, st.sampled_from(["messages", "conversations", "body"]), st.booleans(), json_value)
@settings(deadline=None)
def test_any_conversation_comes_out_as_it_went_in(said, shape, ascii_only, metadata):
    kept = json.dumps(metadata, ensure_ascii=ascii_only).encode()
    line = json.dumps(shaped(said, shape), ensure_ascii=ascii_only).encode()
    result = parse_line(line[:-1] + b', "metadata": ' + kept + b"}", line=1, index=0)
    assert isinstance(result, Prompt), result
    assert [(message.role, message.content) for message in result.messages] == said
    assert bytes(result.metadata) == kept
    assert msgspec.json.decode(msgspec.json.encode(result.job()), type=PromptJob) == result.job()


@given(st.binary(max_size=200))
@example(b"\xff\xfe{\0}\0")
@example(b'{"prompt":"\\ud800')
@settings(deadline=None)
def test_any_bytes_have_an_answer(raw):
    result = parse_line(raw, line=1, index=0)
    assert isinstance(result, Prompt | InvalidLine)


fields = st.sampled_from(
    [
        "id",
        "custom_id",
        "prompt",
        "messages",
        "conversations",
        "method",
        "url",
        "body",
        "params",
        "metadata",
        "x",
    ]
)
turn_like = st.dictionaries(
    st.sampled_from(["role", "content", "from", "value", "name", "tool_calls", "tool_call_id"]),
    st.sampled_from(["user", "assistant", "human", "gpt", "q", "", [], [{"type": "text", "text": "q"}]])
    | json_value,
    max_size=4,
)


@given(st.dictionaries(fields, st.lists(turn_like, max_size=3) | turn_like | json_value, max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_object_has_an_answer_and_a_job_that_survives_the_queue(line):
    result = parse_line(json.dumps(line).encode(), line=1, index=0)
    if isinstance(result, Prompt):
        job = result.job()
        assert msgspec.json.decode(msgspec.json.encode(job), type=PromptJob) == job
    else:
        assert result.reason


key = st.sampled_from(["id", "prompt", "params", "metadata", "other", "role", "content"])


@given(st.lists(st.tuples(key, st.sampled_from(['"a"', "null", "{}", '{"id": "a"}'])), max_size=5))
@settings(deadline=None)
def test_no_line_with_a_repeated_key_is_a_prompt(pairs):
    line = "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
    result = parse_line(line.encode(), line=1, index=0)
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in ("id", "prompt", "params", "metadata")):
        assert isinstance(result, InvalidLine)


@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from([b"\n", b"a", b" ", b"\r", b"\xef\xbb\xbf"])).map(b"".join)
)
@settings(deadline=None)
def test_chunk_edges_make_no_difference(data):
    pieces = [data[at : at + 1] for at in range(len(data))]
    for most in (3, 1000):
        whole = list(split_lines([data], max_line=most))
        assert whole == list(split_lines(pieces, max_line=most))
        for line in whole:
            written = data[line.offset : line.end].removesuffix(b"\n")
            if line.number == 1 and line.raw is not None:
                written = written.removeprefix(b"\xef\xbb\xbf")
            assert line.raw in {None, written}


COMPRESS = {
    "plain": lambda data: data,
    "gzip": lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
    "zstd": lambda data: (
        zstandard.compress(data[: len(data) // 3]) + zstandard.compress(data[len(data) // 3 :])
    ),
}
input_line = st.sampled_from(
    [
        b"",
        b" ",
        b"?",
        b'{"prompt": "p"}\r',
        b'{"id": 1, "prompt": "p"}',
        '{"id": 2, "prompt": "\u2028é"}'.encode(),
    ]
)


@given(st.lists(input_line, max_size=12), st.booleans(), st.sampled_from(sorted(COMPRESS)))
@settings(max_examples=60, deadline=None)
def test_a_restart_at_any_index_gives_the_same_rest(lines, ended, form):
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in")
        path.write_bytes(COMPRESS[form](data))
        source = Source(name="in", path=str(path))
        report = scan(source)
        with read_prompts(source, report) as reader:
            whole = list(reader)
        assert [item.index for item in whole] == list(range(report.fingerprint.lines))
        raw = list(read_lines(source))
        for taken in range(len(whole) + 1):
            with read_prompts(source, report) as reader:
                assert list(islice(reader, taken)) == whole[:taken]
                position = reader.position
            with read_prompts(source, report, start=position) as reader:
                assert list(reader) == whole[taken:]
            assert list(read_lines(source, line=position.line, offset=position.offset)) == raw[taken:]
