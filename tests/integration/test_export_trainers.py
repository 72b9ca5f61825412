"""Exports load in the data preparation of SpecForge and of vLLM's speculators: with the packages themselves.

They bring torch and pin other versions of much else, so these tests run where they are installed, in an
environment of their own; `docs/export.md` says how.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.export_runs import record, write_run
from support.qwen import QWEN3, QWEN36, make_tokenizer

from common.records import Message, Response
from ops.export.options import ExportOptions, Format
from ops.export.run import export

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 40


def answer(index: int) -> str:
    return f"Let me think about {index}.\n</think>\n\n" + " ".join([f"word{index}"] * 30) + "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    path = make_tokenizer(tmp_path_factory.mktemp("tokenizer"), QWEN36)
    return path, transformers.AutoTokenizer.from_pretrained(path)


@pytest.fixture
def exported(tmp_path, tokenizer):
    """An export of each kind that trainers read, one file a split."""
    run = write_run(tmp_path, [record(index) for index in range(COUNT)])
    kinds = {
        "sharegpt": ExportOptions(format=Format.SHAREGPT, shard_size=0),
        "tokens": ExportOptions(format=Format.JSONL, shard_size=0, tokenize=tokenizer[0]),
    }
    for name, options in kinds.items():
        export([str(run)], str(tmp_path / name), options, workers=1)
    return tmp_path


@pytest.fixture
def render_endpoint(tokenizer):
    """What speculators asks of a vLLM server: a conversation as the template renders it, in token ids."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = tokenizer[1].apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=body["add_generation_prompt"]
            )
            ids = tokenizer[1](text, add_special_tokens=False).input_ids[: body["truncate_prompt_tokens"]]
            data = json.dumps({"token_ids": ids}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def learned(tokenizer, rows) -> set[str]:
    """The text under each row's mask."""
    return {
        tokenizer.decode([token for token, on in zip(row["input_ids"], row["loss_mask"], strict=True) if on])
        for row in rows
    }


def specforge(path, tokenizer, template, **changes):
    prompts = pytest.importorskip("specforge.data.prompt_builder")
    wanted = {
        "chat_template": template,
        "max_length": 2048,
        "is_preformatted": False,
        "train_only_last_turn": True,
        "cache_dir": None,
        "cache_key": None,
        "num_proc": 1,
    }
    return [
        task["payload"] for task in prompts.prepare_prompt_tasks(str(path), tokenizer, **(wanted | changes))
    ]


def test_specforge_reads_conversations_with_their_thinking(exported, tokenizer):
    rows = specforge(exported / "sharegpt" / "train" / "train-00000.jsonl", tokenizer[1], "qwen3.5")
    assert len(rows) == COUNT
    # SpecForge's own mask takes in the line break after the end of the turn.
    assert learned(tokenizer[1], rows) == {answer(index) + "\n" for index in range(COUNT)}


def test_specforge_reads_token_ids(exported, tokenizer):
    rows = specforge(exported / "tokens" / "train" / "train-00000.jsonl", tokenizer[1], None)
    assert learned(tokenizer[1], rows) == {answer(index) for index in range(COUNT)}


def speculators_rows(folder, tokenizer, endpoint=None):
    preparing = pytest.importorskip("speculators.data_generation.preprocessing")
    raw, _ = preparing.load_raw_dataset(str(folder))
    made = preparing.build_speculator_training_dataset(raw, tokenizer, 2048, 1, render_endpoint=endpoint)
    return [{name: row[name].tolist() for name in ("input_ids", "loss_mask")} for row in made]


def test_speculators_reads_conversations_with_their_thinking(exported, tokenizer, render_endpoint):
    rows = speculators_rows(exported / "sharegpt", tokenizer[1], render_endpoint)
    assert len(rows) == COUNT
    assert learned(tokenizer[1], rows) == {answer(index) + "\n" for index in range(COUNT)}


def test_speculators_reads_token_ids(exported, tokenizer):
    rows = speculators_rows(exported / "tokens", tokenizer[1])
    assert learned(tokenizer[1], rows) == {answer(index) for index in range(COUNT)}


def test_conversations_that_differ_load_too(tmp_path, tokenizer, render_endpoint):
    """Tool calls in some rows, none in others; a system prompt; several turns; no thinking."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    kinds = [
        {},
        {"messages": [Message("system", "be kind"), Message("user", "q")]},
        {"messages": [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]},
        {"response": Response(content="plain words " * 20), "params": {"thinking": False}},
        {
            "messages": [
                Message("user", "go"),
                Message("assistant", None, tool_calls=calls),
                Message("tool", "42", tool_call_id="c"),
            ]
        },
    ]
    records = [record(index, **kinds[index % len(kinds)]) for index in range(COUNT)]
    run = write_run(tmp_path, records)
    export([str(run)], str(tmp_path / "out"), ExportOptions(format=Format.SHAREGPT, shard_size=0))
    path = tmp_path / "out" / "train" / "train-00000.jsonl"
    assert len(specforge(path, tokenizer[1], "qwen3.5")) == COUNT
    assert len(speculators_rows(path.parent, tokenizer[1], render_endpoint)) >= COUNT


def test_the_template_that_drops_thinking_in_specforge(tmp_path):
    """Its `qwen` template keeps roles and content alone: the reason for a warning in the docs."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(make_tokenizer(tmp_path / "qwen3", QWEN3))
    run = write_run(tmp_path, [record(0)])
    export([str(run)], str(tmp_path / "out"), ExportOptions(format=Format.SHAREGPT, shard_size=0))
    path = tmp_path / "out" / "train" / "train-00000.jsonl"
    for template, kept in (("qwen", False), ("qwen3-thinking", True)):
        (text,) = learned(tokenizer, specforge(path, tokenizer, template))
        assert ("Let me think" in text) is kept
