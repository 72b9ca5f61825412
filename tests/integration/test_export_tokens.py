"""`ops export --tokenize`, with a tokenizer and a chat template in the manner of Qwen3."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.export_runs import record, write_run
from support.need import require
from support.qwen import QWEN3, QWEN36, THOUGHTLESS, make_tokenizer

from common.errors import UsageError
from common.records import Message, Response, Turn, Usage, Verdict
from ops.export.chat import Chat
from ops.export.errors import ExportError, ShortAnswersError
from ops.export.options import ExportOptions, Format
from ops.export.run import export
from ops.export.tokens import tokenize

JSONL = ExportOptions(format=Format.JSONL, tokenize="t")


@pytest.fixture(scope="module", autouse=True)
def _transformers():
    require(importlib.util.find_spec("transformers"), "the optional part: pip install 'promptmill[tokenize]'")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tokenizers")
    templates = {"qwen3": QWEN3, "qwen3.6": QWEN36, "thoughtless": THOUGHTLESS}
    return {name: make_tokenizer(folder / name, template) for name, template in templates.items()}


@pytest.fixture(scope="module")
def chats(tokenizers) -> dict[str, Chat]:
    return {name: Chat(path) for name, path in tokenizers.items()}


def options(tokenizer: str, **changes) -> ExportOptions:
    return ExportOptions(**({"format": Format.JSONL, "tokenize": tokenizer} | changes))


def rows(folder: Path) -> list[dict]:
    lines = [path.read_bytes().split(b"\n")[:-1] for path in sorted(folder.glob("*/*.jsonl"))]
    return [json.loads(line) for group in lines for line in group]


def halves(chat: Chat, row) -> tuple[str, str]:
    """What a row's mask leaves out, and what it covers."""
    ids = msgspec.json.decode(row.line())["input_ids"]
    return chat.decode(ids[: row.start]), chat.decode(ids[row.start :])


def one(chat: Chat, made, **changes):
    (outcome,) = tokenize(made, chat, msgspec.structs.replace(JSONL, **changes))
    return outcome


def test_the_mask_covers_what_the_model_produced_and_nothing_else(chats):
    made = record(3, response=Response(content="\n\nThe answer.", reasoning_content="Let me think.\n"))
    outcome = one(chats["qwen3.6"], made)
    assert halves(chats["qwen3.6"], outcome.row) == (
        "<|im_start|>user\nQuestion 3?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "Let me think.\n</think>\n\nThe answer.<|im_end|>",
    )
    prompt, produced = halves(chats["qwen3"], one(chats["qwen3"], made).row)
    assert prompt.endswith("<|im_start|>assistant\n")
    assert produced == "<think>\nLet me think.\n</think>\n\nThe answer.<|im_end|>"


@pytest.mark.parametrize("name", ["qwen3", "qwen3.6"])
def test_a_closing_tag_in_an_answer_without_thinking_stays_in_the_answer(chats, name):
    code = "Write\n```\nprint('</think>')\n```\nand run it."
    made = record(response=Response(content=code), params={"thinking": False})
    prompt, produced = halves(chats[name], one(chats[name], made).row)
    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert produced == code + "<|im_end|>"


def test_an_answer_cut_off_has_no_end_and_one_cut_off_in_thinking_no_closing_tag(chats):
    chat = chats["qwen3.6"]
    cut = record(response=Response(content="\n\nThe ans", reasoning_content="Hm\n"), finish_reason="length")
    assert halves(chat, one(chat, cut).row)[1] == "Hm\n</think>\n\nThe ans"
    thinking = record(response=Response(content=None, reasoning_content="Hm, let"), finish_reason="length")
    assert halves(chat, one(chat, thinking).row)[1] == "Hm, let"
    stopped = record(
        params={"stop": ["\n\n"]}, response=Response(content="Some words", reasoning_content="Hm")
    )
    assert halves(chat, one(chat, stopped).row)[1] == "Hm\n</think>\n\nSome words"


def test_each_turn_that_was_made_anew_is_a_row_on_the_history_that_it_had(chats):
    chat = chats["qwen3.6"]
    made = record(
        messages=[
            Message("user", "first?"),
            Message("assistant", "one"),
            Message("user", "second?"),
        ],
        turns=[Turn(1, Response(content="\n\none", reasoning_content="thought one\n"), "stop", Usage())],
        response=Response(content="\n\ntwo", reasoning_content="thought two\n"),
    )
    found = [halves(chat, outcome.row) for outcome in tokenize(made, chat, JSONL)]
    assert [produced for _, produced in found] == [
        "thought one\n</think>\n\none<|im_end|>",
        "thought two\n</think>\n\ntwo<|im_end|>",
    ]
    assert "thought one" not in found[1][0]
    turns = [msgspec.structs.replace(made.turns[0], verdict=Verdict.TRUNCATED)]
    bad = msgspec.structs.replace(made, turns=turns)
    assert len(list(tokenize(bad, chat, JSONL))) == 1


def test_earlier_assistant_turns_of_the_input_are_not_learned_from(chats):
    chat = chats["qwen3"]
    history = [Message("user", "a"), Message("assistant", "of another model"), Message("user", "b")]
    prompt, produced = halves(chat, one(chat, record(messages=history)).row)
    assert "of another model" in prompt
    assert "of another model" not in produced


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["qwen3", "qwen3.6"]),
    asked=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    thought=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    said=st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(["<think>\n</think>", "</think>\n\nx", "<|im_end|>\n<|im_start|>user\nhi", "a" * 3000]),
    thinking=st.booleans(),
)
def test_any_text_is_masked_whole_or_left_out_for_a_reason(chats, **drawn):
    chat, asked, thought = chats[drawn["name"]], drawn["asked"], drawn["thought"]
    said, thinking = drawn["said"], drawn["thinking"]
    made = record(
        messages=[Message("user", asked)],
        response=Response(content=said, reasoning_content=thought),
        params={"thinking": thinking},
    )
    outcome = one(chat, made)
    if outcome.row is None:
        # Thinking where none was asked for: the prompt has closed it, and the template opens it again.
        assert (thought or "").strip()
        assert not thinking
        return
    _, produced = halves(chat, outcome.row)
    thought_text, said_text = (chat.normalize(text.strip()) for text in (thought or "", said))
    assert produced.endswith("<|im_end|>")
    assert said_text in produced
    assert thought_text in produced
    extra = len(produced) - len(said_text) - len(thought_text)
    spaces = len(thought or "") + len(said) - len((thought or "").strip()) - len(said.strip())
    assert extra <= len("<think>\n\n</think>\n\n<|im_end|>") + spaces + len(chat.normalize(said)) - len(
        said_text
    )


def test_the_earlier_disaster_cannot_be_exported(tmp_path, tokenizers):
    boilerplate = Response(content="\n\nOK.", reasoning_content="Let me think.")
    assert one(Chat(tokenizers["qwen3.6"]), record(response=boilerplate)).row.masked < 16
    records = [record(n, response=boilerplate) if n % 100 < 87 else record(n) for n in range(300)]
    run = write_run(tmp_path, records)
    for shape in (Format.JSONL, Format.PARQUET):
        wanted = options(tokenizers["qwen3.6"], format=shape)
        with pytest.raises(
            ShortAnswersError, match=r"261 of 300 rows \(87.0%\).*loss mask sums to fewer than 16"
        ):
            export([str(run)], str(tmp_path / "out"), wanted, workers=1)
        assert not (tmp_path / "out").exists()


def test_a_template_that_drops_thinking_is_refused(tmp_path, tokenizers):
    run = write_run(tmp_path, [record(n) for n in range(20)])
    with pytest.raises(ExportError, match="lose their thinking in the chat template"):
        export([str(run)], str(tmp_path / "out"), options(tokenizers["thoughtless"]), workers=1)


def test_counts_that_differ_from_the_servers_are_left_out_and_many_stop_the_export(tmp_path, tokenizers):
    def usage(chat_row, wrong):
        return Usage(5, 10_000 if wrong else chat_row.masked + 3, 0)

    chat = Chat(tokenizers["qwen3.6"])
    right = [one(chat, record(n)).row for n in range(200)]
    few = [record(n, usage=usage(right[n], n == 7)) for n in range(200)]
    run = write_run(tmp_path, few)
    summary = export([str(run)], str(tmp_path / "out"), options(tokenizers["qwen3.6"]), workers=1)
    assert summary.rows == 199
    card = (tmp_path / "out" / "README.md").read_text()
    assert "r/p7#0 turn 1" in card
    assert "| 64 to 127 |" in card
    many = [record(n, usage=usage(right[n], n % 20 == 0)) for n in range(200)]
    run = write_run(tmp_path / "many", many)
    with pytest.raises(ExportError, match=r"10 of 200 answers .*completion_tokens"):
        export([str(run)], str(tmp_path / "other"), options(tokenizers["qwen3.6"]), workers=1)


def test_rows_are_cut_and_answers_past_the_cut_left_out(tmp_path, tokenizers):
    long = record(0, messages=[Message("user", "word " * 500)])
    run = write_run(tmp_path, [long, *(record(n) for n in range(1, 50))])
    summary = export(
        [str(run)], str(tmp_path / "out"), options(tokenizers["qwen3"], max_length=100), workers=1
    )
    found = rows(tmp_path / "out")
    assert summary.tally.too_long == 1
    assert summary.tally.truncated == sum(row["truncated"] for row in found) > 0
    assert max(len(row["input_ids"]) for row in found) == 100
    assert all(len(row["input_ids"]) == len(row["loss_mask"]) for row in found)


def test_text_that_the_tokenizer_normalises_is_told(chats):
    outcome = one(
        chats["qwen3"], record(response=Response(content="cafe\u0301 " * 20, reasoning_content="hm"))
    )
    assert outcome.normalised
    assert "caf\u00e9" in halves(chats["qwen3"], outcome.row)[1]


def test_many_processes_make_the_same_bytes_and_parquet_the_same_rows(tmp_path, tokenizers):
    run = write_run(tmp_path, [record(n) for n in range(700)], batch=100)
    wanted = options(tokenizers["qwen3.6"], split=(0.9, 0.1), shuffle=3, shard_size=200)
    for name, workers in (("one", 1), ("two", 2)):
        export([str(run)], str(tmp_path / name), wanted, workers=workers)
    found = rows(tmp_path / "one")
    assert found == rows(tmp_path / "two")
    assert (tmp_path / "one" / "README.md").read_bytes() == (tmp_path / "two" / "README.md").read_bytes()
    columnar = msgspec.structs.replace(wanted, format=Format.PARQUET)
    export([str(run)], str(tmp_path / "parquet"), columnar, workers=1)
    tables = [pq.read_table(path).to_pylist() for path in sorted((tmp_path / "parquet").glob("*/*.parquet"))]
    assert [row for table in tables for row in table] == found


def test_a_tokenizer_without_a_template_or_of_no_kind_is_refused(tmp_path, tokenizers):
    with pytest.raises(UsageError, match="cannot be loaded"):
        Chat(str(tmp_path / "nowhere"))
    bare = tmp_path / "bare"
    make_tokenizer(bare, "")
    with pytest.raises(UsageError, match="no chat template"):
        Chat(str(bare))


def test_an_unknown_name_without_a_hub_is_told_at_once_in_one_line():
    """The hub's address is read when its package is imported, hence another process."""
    code = "from ops.export.chat import Chat; Chat('nobody/none')"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    assert "Retrying" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "UsageError: the tokenizer nobody/none cannot be loaded: there is no such folder" in last
    assert last.endswith("the hub cannot be reached")


def test_tool_calls_in_history_reach_the_template_as_objects(chats):
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    history = [
        Message("user", "go"),
        Message("assistant", None, tool_calls=calls),
        Message("tool", "42", tool_call_id="c"),
    ]
    made = record(messages=history, params={"tools": [{"type": "function", "function": {"name": "f"}}]})
    outcome = one(chats["qwen3"], made)
    assert outcome.row is not None
    assert '"name": "f"' in halves(chats["qwen3"], outcome.row)[0]
