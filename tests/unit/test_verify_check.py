"""Every way in which an output can be wrong is found and named with index, id and part."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.outputs import Draft, dead, draft

from common.errors import RunNotFoundError
from common.parts import DEAD_LETTERS, MANIFEST, PROGRESS, OutputError, part_name
from common.records import DeadReason, Message, Response, Usage, Verdict
from common.storage import open_storage
from ops.verify.findings import SHOWN, Kind
from ops.verify.read import verify
from ops.verify.report import EXIT_CODES, Outcome, words

TALK = [
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "old"},
    {"role": "user", "content": "2"},
    {"role": "assistant", "content": "older"},
]
LINES = [
    '{"id": "a", "prompt": "Why?"}',
    '{"id": "b", "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "é😀"}]}',
    '{"prompt": "no id", "metadata": {"k" :  [1, 2.50]}}',
    "",
    json.dumps({"id": "talk", "messages": TALK}),
    "not json",
    '{"id": "own", "prompt": "p", "params": {"temperature": 0.1}}',
    '{"id": "a", "prompt": "again"}',
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def check(made: Draft, source=None, where=None):
    folder = source.parent if source else where
    place = made.write(folder / "out")
    return look(place, source)


def look(place, source=None):
    return verify(
        open_storage(place),
        source=str(source) if source else None,
        here=Path("/nowhere"),
        tick=lambda *_: None,
    )


def kinds(report):
    return {finding.kind: finding.total for finding in report.findings}


def example(report, kind):
    return next(finding.examples[0] for finding in report.findings if finding.kind is kind)


def change(made: Draft, place: int, **changes):
    made.records[place] = msgspec.structs.replace(made.records[place], **changes)


@pytest.mark.parametrize(
    "generation",
    [{}, {"samples": 3}, {"regenerate": "all"}, {"regenerate": "all", "samples": 2, "system": "be brief"}],
)
def test_a_whole_output_is_proven_against_its_input(source, generation):
    report = check(draft(source, **generation), source)
    assert report.findings == []
    assert report.outcome is Outcome.PROVEN
    samples = generation.get("samples", 1)
    assert (report.tallies.completions, report.tallies.dead) == (5 * samples, 2 * samples)
    assert report.tallies.verdicts == {"ok": 5 * samples}
    assert report.tallies.dead_by_reason == {"invalid_line": 2 * samples}
    *_, last = words(report)
    assert last.startswith("PROVEN: each of the 7 prompts")
    assert str(source) in last


def test_tokens_are_summed_over_all_turns(source):
    report = check(draft(source, regenerate="all"), source)
    assert report.tallies.prompt_tokens == 5 * 10 + 5
    assert report.tallies.completion_tokens == 5 * 20 + 6
    assert report.tallies.reasoning_tokens == 5 * 5


def test_without_the_input_ends_are_proven_and_content_is_not(source):
    made = draft(source)
    change(made, 0, id="other")
    report = look(made.write(source.parent / "out"))
    assert report.outcome is Outcome.PROVEN
    assert report.input is None
    assert "name it with --input" in list(words(report))[-1]


def test_a_file_of_the_inputs_name_and_content_in_the_current_folder_is_used(source):
    made = draft(source)
    change(made, 0, id="other")
    place = made.write(source.parent / "out")
    report = verify(open_storage(place), source=None, here=source.parent, tick=lambda *_: None)
    assert report.input == str(source)
    assert kinds(report) == {Kind.ID: 1}
    source.write_text('{"prompt": "another file of that name"}\n')
    report = verify(open_storage(place), source=None, here=source.parent, tick=lambda *_: None)
    assert report.input is None


def test_a_changed_input_is_named_and_not_compared_with(source):
    place = draft(source).write(source.parent / "out")
    source.write_text(source.read_text() + '{"prompt": "one more"}\n')
    report = look(place, source)
    assert kinds(report) == {Kind.INPUT: 1}
    assert "1 more than the 7 it had" in example(report, Kind.INPUT)


def test_a_prompt_completed_twice_names_both_parts(source):
    made = draft(source)
    made.records.append(made.records[0])
    report = check(made, source)
    assert report.outcome is Outcome.WRONG
    assert example(report, Kind.DOUBLE) == f"index 0 (id 'a') in {part_name(1)} stands in {part_name(0)} too"
    assert kinds(report)[Kind.COUNTS] >= 2


def test_a_prompt_both_completed_and_dead(source):
    made = draft(source)
    made.letters.append(dead(made.records[1]))
    report = check(made, source)
    assert example(report, Kind.DOUBLE) == f"the dead letter of index 1 (id 'b') stands in {part_name(0)} too"


def test_two_dead_letters_of_one_prompt(source):
    made = draft(source)
    made.letters.append(made.letters[0])
    assert "stands in dead.jsonl too" in example(check(made, source), Kind.DOUBLE)


def test_a_sample_that_is_missing_is_named_with_the_id_of_the_input(source):
    made = draft(source, samples=2)
    del made.records[3]
    report = check(made, source)
    assert example(report, Kind.MISSING) == "index 1 (id 'b') sample 1 has neither a record nor a dead letter"
    assert report.missing == 1


def test_without_the_input_a_missing_prompt_is_named_by_index(source):
    made = draft(source)
    del made.records[3]
    report = check(made, where=source.parent)
    assert example(report, Kind.MISSING) == "index 3 has neither a record nor a dead letter"


def test_at_most_so_many_of_a_kind_are_shown_and_all_are_counted(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(60)))
    made = draft(path)
    for place in range(50):
        change(made, place, id="x")
    del made.records[55:]
    report = check(made, path)
    assert kinds(report)[Kind.ID] == 50
    assert kinds(report)[Kind.MISSING] == 5
    ids = next(finding for finding in report.findings if finding.kind is Kind.ID)
    assert len(ids.examples) == SHOWN
    assert f"  ... and {50 - SHOWN} more" in list(words(report))


@pytest.mark.parametrize(
    ("place", "changes", "kind", "words_"),
    [
        (0, {"id": "b"}, Kind.ID, "index 0 (id 'b') in part-000000"),
        (0, {"messages": [Message("user", "Why? ")]}, Kind.MESSAGES, "index 0 (id 'a') in part-000000"),
        (0, {"messages": [Message("user", "Why?", name="x")]}, Kind.MESSAGES, "another conversation"),
        (2, {"metadata": msgspec.Raw(b'{"k": [1, 2.50]}')}, Kind.METADATA, "id 'prompt-00000002'"),
        (2, {"metadata": msgspec.UNSET}, Kind.METADATA, "other metadata"),
        (0, {"metadata": msgspec.Raw(b"null")}, Kind.METADATA, "other metadata"),
        (4, {"run": "q"}, Kind.FOREIGN, "part-000001.jsonl.zst belongs to run 'q' (line 2)"),
        (4, {"index": 7}, Kind.RANGE, "the input has 7 prompts"),
        (4, {"index": -1}, Kind.RANGE, "out of range"),
        (4, {"sample": 1}, Kind.RANGE, "1 samples of each"),
        (4, {"schema": 2}, Kind.RECORD, "unknown schema 2"),
        (4, {"verdict": Verdict.EMPTY}, Kind.COUNTS, "verdict empty 0 times, the parts 1"),
    ],
)
def test_one_changed_field_is_found(source, place, changes, kind, words_):
    made = draft(source)
    tally = {"verdicts": {"ok": 5}} if "verdict" in changes else {}
    change(made, place, **changes)
    made.manifest = tally
    report = check(made, source)
    assert report.outcome is Outcome.WRONG
    found = next(finding for finding in report.findings if finding.kind is kind)
    assert any(words_ in sentence for sentence in found.examples), found.examples


def test_an_answer_to_a_line_that_cannot_be_used(source):
    made = draft(source)
    letter = made.letters.pop(0)
    made.records.append(msgspec.structs.replace(made.records[0], index=letter.index, id=letter.id))
    assert "cannot be used" in example(check(made, source), Kind.MESSAGES)


def test_a_dead_letter_that_blames_a_good_line(source):
    made = draft(source)
    made.letters.append(dead(made.records.pop(), DeadReason.INVALID_LINE))
    assert "says that its line cannot be used, but it can" in example(check(made, source), Kind.DEAD_LETTER)


def test_a_dead_letter_with_another_id(source):
    made = draft(source)
    made.letters.append(msgspec.structs.replace(dead(made.records.pop()), id="x"))
    assert example(check(made, source), Kind.ID).startswith("the dead letter of index 5 (id 'x')")


def test_a_dead_letter_of_a_forged_job_bears_the_jobs_name(source):
    made = draft(source)
    letter = dead(made.records.pop(), DeadReason.FORGED_JOB)
    made.letters.append(msgspec.structs.replace(letter, id="r-5"))
    assert check(made, source).outcome is Outcome.PROVEN


def test_a_regenerated_conversation_must_hold_the_answers_of_its_turns(source):
    made = draft(source, regenerate="all")
    record = made.records[3]
    turn = msgspec.structs.replace(record.turns[0], response=Response(content="something else"))
    change(made, 3, turns=[turn])
    assert kinds(check(made, source)) == {Kind.MESSAGES: 1}


@pytest.mark.parametrize("spoiled", [{"position": 2}, None])
def test_a_regenerated_conversation_must_have_the_turns_that_the_input_asks_for(source, spoiled):
    made = draft(source, regenerate="all")
    turn = made.records[3].turns[0]
    change(made, 3, turns=[msgspec.structs.replace(turn, **spoiled)] if spoiled else msgspec.UNSET)
    assert kinds(check(made, source)) == {Kind.MESSAGES: 1}


def test_a_regenerated_conversation_keeps_the_users_turns(source):
    made = draft(source, regenerate="all")
    messages = list(made.records[3].messages)
    messages[0] = Message("user", "changed")
    change(made, 3, messages=messages)
    assert kinds(check(made, source)) == {Kind.MESSAGES: 1}


def test_a_damaged_part_is_named_with_both_hashes(source):
    place = draft(source).write(source.parent / "out")
    path = source.parent / "out" / "r" / part_name(0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    report = look(place, source)
    assert part_name(0) in example(report, Kind.PART)
    assert kinds(report)[Kind.MISSING] == 3
    assert any("3 records of parts that are missing or damaged" in note for note in report.notes)


def test_a_missing_part_is_named(source):
    place = draft(source).write(source.parent / "out")
    (source.parent / "out" / "r" / part_name(1)).unlink()
    report = look(place, source)
    assert part_name(1) in example(report, Kind.PART)
    assert kinds(report)[Kind.MISSING] == 2


def test_a_gap_in_the_numbers_is_named(source):
    made = draft(source)
    place = made.write(source.parent / "out")
    storage = open_storage(place)
    manifest = msgspec.json.decode(storage.read(MANIFEST))
    manifest["parts"].pop(0)
    storage.replace(MANIFEST, msgspec.json.encode(manifest))
    report = look(place, source)
    assert example(report, Kind.MANIFEST) == f"row 0 of the manifest is {part_name(1)}, not {part_name(0)}"
    assert part_name(0) in example(report, Kind.UNLISTED)


def test_a_part_of_another_length_than_the_manifest_says(source):
    place = draft(source).write(source.parent / "out")
    storage = open_storage(place)
    manifest = msgspec.json.decode(storage.read(MANIFEST))
    manifest["parts"][0]["records"] = 4
    storage.replace(MANIFEST, msgspec.json.encode(manifest))
    assert example(look(place, source), Kind.PART).endswith("holds 3 records, the manifest says 4")


def test_a_line_that_is_no_record_costs_only_itself(source):
    made = draft(source)
    change(made, 1, usage=Usage("many", None, None))
    report = check(made, source)
    assert example(report, Kind.RECORD).startswith(f"{part_name(0)} line 2 is not a record")
    assert kinds(report)[Kind.MISSING] == 1


def test_what_else_lies_there_is_noted_and_not_wrong(source):
    place = draft(source).write(source.parent / "out")
    open_storage(place).replace(DEAD_LETTERS, open_storage(place).read(DEAD_LETTERS))
    (source.parent / "out" / "r" / "report.html").write_text("x")
    report = look(place, source)
    assert report.outcome is Outcome.PROVEN
    assert report.notes == ["report.html is no part of the run"]


@pytest.mark.parametrize(
    ("name", "field", "value", "sentence"),
    [
        ("manifest", "completed", 6, "manifest.json says completed 6; what was read says 5"),
        ("manifest", "dead", 1, "manifest.json says dead 1; what was read says 2"),
        ("manifest", "accepted", 6, "manifest.json says accepted 6; what was read says 7"),
        ("progress", "stored", 4, "progress.json says stored 4; what was read says 5"),
        (
            "progress",
            "queued",
            1,
            "progress.json: accepted 7 is not completed 5 + dead 2 + queued 1 + in flight 0",
        ),
        ("progress", "stored", 6, "progress.json: stored 6 is more than completed 5"),
    ],
)
def test_counts_that_disagree(source, name, field, value, sentence):
    made = draft(source)
    setattr(made, name, {field: value})
    report = check(made, source)
    found = next(finding for finding in report.findings if finding.kind is Kind.COUNTS)
    assert sentence in found.examples


def test_a_run_going_on_is_right_so_far(source):
    made = draft(source)
    made.finished = False
    del made.records[3:]
    made.progress = {"accepted": 7, "queued": 1, "in_flight": 1}
    place = made.write(source.parent / "out")
    storage = open_storage(place)
    storage.create(part_name(1), storage.read(part_name(0)) + b"not looked at yet")
    report = look(place, source)
    assert report.outcome is Outcome.UNFINISHED
    assert EXIT_CODES[report.outcome] == 3
    assert (report.missing, report.parts_unlisted, report.state) == (2, 1, "running")
    last = list(words(report))[-1]
    assert "3 have ended as one record in one part" in last
    assert "1 newer part is not in the manifest yet" in last


def test_a_run_going_on_may_not_skip_a_part(source):
    made = draft(source)
    made.finished = False
    place = made.write(source.parent / "out")
    open_storage(place).create(part_name(5), b"x")
    assert part_name(5) in example(look(place, source), Kind.UNLISTED)


def test_a_run_going_on_with_a_doubled_prompt_is_wrong(source):
    made = draft(source)
    made.finished = False
    made.records.append(made.records[0])
    assert check(made, source).outcome is Outcome.WRONG


def test_a_finished_run_without_its_progress_file_is_wrong(source):
    place = draft(source).write(source.parent / "out")
    (source.parent / "out" / "r" / PROGRESS).unlink()
    assert PROGRESS in example(look(place, source), Kind.MANIFEST)


def test_a_place_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunNotFoundError, match=r"holds no manifest\.json"):
        look(str(tmp_path))


def test_a_manifest_without_settings_is_refused(source):
    made = draft(source)
    made.manifest = {"settings": {}}
    with pytest.raises(OutputError, match="is not one that this version can check"):
        check(made, source)


def test_a_dead_letter_line_that_cannot_be_read(source):
    place = draft(source).write(source.parent / "out")
    open_storage(place).replace(DEAD_LETTERS, b"{}\n")
    assert "line 1" in example(look(place, source), Kind.DEAD_LETTER)
