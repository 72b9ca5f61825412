from __future__ import annotations

from itertools import islice

import msgspec
import pytest
import zstandard
from support.export_runs import record

from common.errors import UsageError
from common.parts import BLOCK, OutputError, iter_texts
from common.records import Message, Response, Turn, Usage, Verdict
from ops.export.card import fingerprint_in
from ops.export.chat import Scaffold, Scaffolds, _cut
from ops.export.chunks import SplitQueue
from ops.export.errors import ExportError, ShortAnswersError
from ops.export.options import ExportOptions, Format, check_options, parse_split, parse_verdicts
from ops.export.rows import locate_turns, text_of, to_batch_line, to_conversation
from ops.export.select import Splitter
from ops.export.spill import Buckets, Shuffler
from ops.export.tally import Tally, check, total

QWEN = Scaffolds(
    plain=Scaffold("", "", "<|im_end|>"), thinking=Scaffold("<think>\n", "\n</think>\n\n", "<|im_end|>")
)


def cut(tail, thought, said, *, ended=True):
    return _cut("prompt", tail, thought, said, QWEN, ended=ended)


def test_verdicts_keep_their_order_for_it_is_their_rank():
    assert parse_verdicts("truncated,ok") == (Verdict.TRUNCATED, Verdict.OK)
    assert set(parse_verdicts("all")) == set(Verdict)


@pytest.mark.parametrize("text", ["", "fine", "ok,ok", "ok,,"])
def test_verdicts_that_cannot_be_used(text):
    with pytest.raises(UsageError):
        parse_verdicts(text)


@pytest.mark.parametrize("text", ["", "0.9/0.2", "1/0", "0.25/0.25/0.25/0.25", "a/b", "nan/1", "-0.5/1.5"])
def test_splits_that_cannot_be_used(text):
    with pytest.raises(UsageError):
        parse_split(text)


def test_split_names():
    options = ExportOptions(format=Format.JSONL, split=parse_split("0.98/0.01/0.01"))
    assert options.split_names == ("train", "validation", "test")


@pytest.mark.parametrize(
    "changes",
    [
        {"shard_size": -1},
        {"max_length": 5},
        {"tokenize": "t", "format": Format.SHAREGPT},
        {"tokenize": "t", "max_length": 0},
    ],
)
def test_options_that_do_not_go_together(changes):
    with pytest.raises(UsageError):
        check_options(ExportOptions(**({"format": Format.JSONL} | changes)))


def test_a_split_follows_from_the_id_alone_and_has_about_its_share():
    split_of = Splitter((0.9, 0.1))
    places = [split_of(f"prompt-{n}") for n in range(5000)]
    assert places == [Splitter((0.9, 0.1))(f"prompt-{n}") for n in range(5000)]
    assert 0.08 < sum(places) / 5000 < 0.12


@pytest.mark.parametrize("expected_bytes", [1, 100 << 20, 100 << 30])
def test_shuffling_does_not_depend_on_the_number_of_buckets(tmp_path, expected_bytes):
    def shuffled(names, seed, size):
        shuffler = Shuffler(Buckets(tmp_path / "spill", size), seed)
        for name in names:
            shuffler.add(name, name.encode())
        return list(shuffler.drain())

    names = [f"n{n}" for n in range(300)]
    order = shuffled(names, 7, expected_bytes)
    assert order == shuffled(names[::-1], 7, 1)
    assert sorted(order) == sorted(name.encode() for name in names)
    assert order != shuffled(names, 8, 1)
    assert order != [name.encode() for name in names]


@pytest.mark.parametrize("steps", [[1000], [1] * 1000, [300, 7, 500, 193]])
def test_chunks_are_the_same_however_the_records_come(steps):
    queue = SplitQueue(0, 300, lambda split, shard: shard == 1)
    records = iter(range(1000))
    chunks = [chunk for step in steps for chunk in queue.add(list(islice(records, step)))]
    chunks += queue.rest()
    assert [(chunk.shard, len(chunk.records)) for chunk in chunks] == [
        *[(0, 256), (0, 44)],  # shard 1 is finished
        *[(2, 256), (2, 44)],
        (3, 100),
    ]
    assert [n for chunk in chunks for n in chunk.records] == [*range(300), *range(600, 1000)]


def in_frames(text):
    """The text in several frames."""
    return b"".join(zstandard.compress(line) for line in text.splitlines(keepends=True))


def unsized(text):
    """The text in a frame that does not say how long it is."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(text)


@pytest.mark.parametrize("pack", [zstandard.compress, in_frames, unsized])
@pytest.mark.parametrize("length", [10, BLOCK - 3, BLOCK - 2, BLOCK - 1, BLOCK, 5 * BLOCK])
def test_blocks_are_whole_lines_of_any_length(length, pack):
    lines = [b"a\n", b"x" * length + b"\n", b"\n", b"b" * (BLOCK // 2) + b"\n", b"c\n"]
    blocks = [bytes(block) for block in iter_texts(pack(b"".join(lines)), name="part")]
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks) == b"".join(lines)


@pytest.mark.parametrize("pack", [zstandard.compress, in_frames, unsized])
def test_a_text_that_is_cut_off_is_told(pack):
    with pytest.raises(OutputError, match="part is cut off"):
        list(iter_texts(pack(b"a\nb"), name="part"))


def test_a_part_that_is_long_is_read_piece_by_piece(monkeypatch):
    monkeypatch.setattr("common.parts.WHOLE", 100)
    lines = b"".join(b"%d\n" % n for n in range(100_000))
    assert b"".join(iter_texts(zstandard.compress(lines), name="part")) == lines


@pytest.mark.parametrize("spoil", [lambda data: data[:-9] + b"123456789", lambda data: data + b"more"])
def test_a_part_that_is_not_zstd_throughout_is_told(spoil):
    data = zstandard.ZstdCompressor(write_checksum=True).compress(b"a line\n" * 1000)
    with pytest.raises(OutputError, match="part cannot be decompressed"):
        list(iter_texts(spoil(data), name="part"))


def test_tallies_add_up_and_survive_the_journal():
    one, two = Tally(), Tally()
    one.count_records([record(1, usage=Usage(1, 40, 0)), record(2, verdict=Verdict.TRUNCATED)])
    two.count_records([record(3, usage=Usage(1, 7, 0))])
    two.leave_out("fail", "p3")
    again = msgspec.json.decode(msgspec.json.encode(two), type=Tally)
    whole = total([one, again])
    assert whole.records == 3
    assert whole.verdicts == {"ok": 2, "truncated": 1}
    assert whole.lengths[6] >= 1
    assert whole.lengths[3] == 1
    assert whole.examples == {"fail": ["p3"]}
    assert one.examples == {}


def test_one_short_row_in_a_hundred_passes_and_two_do_not():
    check(Tally(rows=100, short=1), allow_short=False, done=True)
    with pytest.raises(ShortAnswersError, match="2 of 100 rows"):
        check(Tally(rows=100, short=2), allow_short=False, done=True)
    check(Tally(rows=100, short=2), allow_short=True, done=True)


def test_a_hopeless_set_is_stopped_early_a_mixed_one_is_not():
    check(Tally(rows=1999, short=1999), allow_short=False, done=False)
    check(Tally(rows=2000, short=300), allow_short=False, done=False)
    with pytest.raises(ShortAnswersError):
        check(Tally(rows=2000, short=500), allow_short=False, done=False)


def test_failed_answers_above_one_in_a_hundred_stop_the_export():
    few = Tally(rows=99, left_out={"fail": 1}, examples={"fail": ["p"]})
    check(few, tokens=True, allow_short=False, done=True)
    with pytest.raises(ExportError, match="2 of 100 answers"):
        check(Tally(rows=98, left_out={"fail": 2}, examples={"fail": ["p"]}), allow_short=True, done=True)


def test_nothing_to_export_is_an_error():
    with pytest.raises(ExportError, match="nothing to export"):
        check(Tally(), allow_short=True, done=True)


def test_the_whole_turn_with_its_end():
    tail = "<think>\nhm\n</think>\n\nanswer<|im_end|>\n"
    assert cut(tail, "hm\n", "\n\nanswer").produced == "<think>\nhm\n</think>\n\nanswer<|im_end|>"


def test_a_turn_cut_off_in_its_answer_has_no_end():
    tail = "<think>\nhm\n</think>\n\nans<|im_end|>\n"
    assert cut(tail, "hm", "ans", ended=False).produced == "<think>\nhm\n</think>\n\nans"


def test_a_turn_cut_off_in_thinking_has_no_end_of_thinking_either():
    tail = "<think>\nhm\n</think>\n\n<|im_end|>\n"
    assert cut(tail, "hm", "", ended=False).produced == "<think>\nhm"


def test_an_end_token_in_the_answer_is_not_taken_for_the_end():
    tail = "<think>\nhm\n</think>\n\nsay <|im_end|> twice<|im_end|>\n"
    assert cut(tail, "hm", "say <|im_end|> twice").produced == tail[:-1]


@pytest.mark.parametrize(
    ("tail", "thought", "said"),
    [
        ("answer<|im_end|>\n", "hm", "answer"),
        ("<think>\nhm\n</think>\n\nother<|im_end|>\n", "hm", "answer"),
        ("<think>\nhm and more\n</think>\n\nanswer<|im_end|>\n", "hm", "answer"),
        ("<think>\nhm\n</think>\n\nanswer<|im_end|>\nmore", "hm", "answer"),
        ("<think>\nhm\n</think>\n\nanswer", "hm", "answer"),
        ("kept back answer<|im_end|>\n", "", "answer"),
    ],
)
def test_a_template_that_changes_the_words_is_found_out(tail, thought, said):
    with pytest.raises(ExportError, match="changed by the chat template"):
        cut(tail, thought, said)


def test_turns_are_found_by_their_text_wherever_a_system_prompt_shifted_them():
    messages = [
        Message("system", "s"),
        Message("user", "a"),
        Message("assistant", "one"),
        Message("user", "b"),
        Message("assistant", "two"),
        Message("user", "c"),
    ]
    turns = [
        Turn(1, Response(content="\n\none", reasoning_content="t1"), "stop", Usage()),
        Turn(3, Response(content="\n\ntwo", reasoning_content="t2"), "stop", Usage()),
    ]
    made = record(messages=messages, turns=turns)
    assert locate_turns(messages, made) == [2, 4]
    thinking = [message.reasoning_content for message in to_conversation(made).conversations]
    assert thinking[2:5:2] == ["t1", "t2"]
    lost = record(messages=messages[:4], turns=turns)
    with pytest.raises(ExportError, match="not in the conversation"):
        locate_turns(lost.messages, lost)


def test_parts_of_text_are_joined_and_others_are_not_text():
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert text_of([{"type": "text", "text": "a"}, {"type": "image_url"}]) is None
    picture = record(messages=[Message("user", [{"type": "image_url", "image_url": {"url": "x"}}])])
    with pytest.raises(ExportError, match="part that is not text"):
        to_conversation(picture)


def test_samples_have_names_of_their_own():
    assert [to_batch_line(record(sample=n))["custom_id"] for n in (0, 1)] == ["p0", "p0#1"]


def test_a_batch_line_asks_again_for_what_was_asked():
    body = to_batch_line(record(params={"max_output_tokens": 9, "thinking": False, "top_p": 0.5}))["request"][
        "body"
    ]
    assert body["max_completion_tokens"] == 9
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["top_p"] == 0.5


def test_only_a_card_of_ours_has_a_fingerprint():
    assert fingerprint_in(b'---\nconfigs: []\npromptmill_export: "abc"\n---\n# x') == "abc"
    assert fingerprint_in(b'---\nconfigs: []\n---\npromptmill_export: "abc"\n') is None
    assert fingerprint_in(b"\xff") is None
