"""Scripted faults: how they are written, whom they befall, and what they make of an answer."""

from __future__ import annotations

import pytest

from common.errors import UsageError
from ops.simulator.answers import Answer, compose, draw
from ops.simulator.distort import distort
from ops.simulator.faults import ANSWER_FAULTS, STATES, Fault, FaultBook, FaultKind, parse_faults
from ops.simulator.settings import ServerSettings


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def book(*faults: Fault, clock: Clock | None = None) -> FaultBook:
    made = FaultBook(seed=1, now=clock or Clock())
    made.set(faults)
    return made


def struck(made: FaultBook, count: int, prompt: str = "hello") -> list[bool]:
    return [made.strike(prompt, number * 7919) is not None for number in range(count)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("empty", [Fault(kind=FaultKind.EMPTY)]),
        (
            "boilerplate:share=0.87,first=3",
            [Fault(kind=FaultKind.BOILERPLATE, share=0.87, first=3)],
        ),
        ("kill:containing=BOOM,seconds=5", [Fault(kind=FaultKind.KILL, containing="BOOM", seconds=5.0)]),
        ('{"kind": "nan", "share": 0.5}', [Fault(kind=FaultKind.NAN, share=0.5)]),
        ('[{"kind": "hang"}, {"kind": "slow"}]', [Fault(kind=FaultKind.HANG), Fault(kind=FaultKind.SLOW)]),
    ],
)
def test_faults_are_written_short_or_as_json(text, wanted):
    assert parse_faults(text) == wanted


def test_faults_come_from_a_file(tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"kind": "refuse", "seconds": 2, "server": 3}]')
    assert parse_faults(str(path)) == [Fault(kind=FaultKind.REFUSE, seconds=2.0, server=3)]


@pytest.mark.parametrize(
    "text",
    ["", "explode", "empty:share", "empty:share=2", "empty:sometimes=1", '{"kind": 1}', "[", "absent.json"],
)
def test_faults_that_cannot_be_read_name_the_kinds(text):
    with pytest.raises(UsageError, match="boilerplate"):
        parse_faults(text)


def test_first_and_skip_count_requests():
    made = book(Fault(kind=FaultKind.ERROR_500, skip=2, first=3))
    assert struck(made, 8) == [False, False, True, True, True, False, False, False]
    assert made.counts == {FaultKind.ERROR_500: 3}


def test_containing_reads_the_prompt():
    made = book(Fault(kind=FaultKind.KILL, containing="BOOM"))
    assert made.reads_prompts
    assert made.strike("hello", 1) is None
    assert made.strike("well, BOOM it went", 1) is not None


@pytest.mark.parametrize("kind", [FaultKind.ERROR_500, FaultKind.BOILERPLATE])
def test_share_befalls_that_share(kind):
    hits = struck(book(Fault(kind=kind, share=0.3)), 3000)
    assert sum(hits) / 3000 == pytest.approx(0.3, abs=0.04)


def test_answer_faults_stay_with_their_prompts():
    made = book(Fault(kind=FaultKind.BOILERPLATE, share=0.5))
    assert struck(made, 200) == struck(made, 200)


def test_faults_begin_and_end():
    clock = Clock()
    made = book(Fault(kind=FaultKind.EMPTY, after=5, until=9), clock=clock)
    seen = []
    for moment in (0, 4.9, 5, 8.9, 9):
        clock.now = 100.0 + moment
        seen.append(made.strike("", 1) is not None)
    assert seen == [False, False, True, True, False]


def test_setting_again_begins_anew():
    made = book(Fault(kind=FaultKind.ERROR_500, first=1))
    assert struck(made, 2) == [True, False]
    made.set([Fault(kind=FaultKind.ERROR_500, first=1)])
    assert struck(made, 2) == [True, False]
    made.set([])
    assert not made.active


def test_the_first_matching_fault_wins():
    made = book(Fault(kind=FaultKind.NAN, first=1), Fault(kind=FaultKind.EMPTY))
    kinds = [fault.kind for fault in (made.strike("", 1), made.strike("", 1)) if fault]
    assert kinds == [FaultKind.NAN, FaultKind.EMPTY]


def test_states_end_after_their_seconds():
    assert Fault(kind=FaultKind.STARTING, after=3, seconds=2).end == 5
    assert Fault(kind=FaultKind.SLOW, seconds=2).end is None
    assert not STATES & ANSWER_FAULTS


# What becomes of an answer


def whole(*, thinking: bool = True, limit: int = 4096) -> Answer:
    draws = draw([b"Explain queues."], None, 0)
    settings = ServerSettings(median_tokens=400)
    return compose(settings, draws, "Explain queues.", thinking=thinking, limit=limit)


def faulty(kind: FaultKind, *, thinking: bool = True, limit: int = 4096) -> Answer:
    return distort(whole(thinking=thinking), kind, limit=limit, draw=1)


@pytest.mark.parametrize("kind", sorted(ANSWER_FAULTS))
def test_every_answer_fault_changes_a_thinking_answer(kind):
    assert faulty(kind) != whole()


@pytest.mark.parametrize("kind", sorted(set(FaultKind) - ANSWER_FAULTS))
def test_other_faults_leave_answers_alone(kind):
    assert faulty(kind) == whole()


@pytest.mark.parametrize("kind", sorted(ANSWER_FAULTS))
@pytest.mark.parametrize("limit", [1, 30])
def test_every_answer_fault_bears_no_thinking_and_tight_limits(kind, limit):
    answer = distort(whole(thinking=False, limit=limit), kind, limit=limit, draw=5)
    assert answer.tokens >= 0
    assert answer.raw is not None


def test_boilerplate_is_six_tokens():
    answer = faulty(FaultKind.BOILERPLATE)
    assert (answer.tokens, answer.finish, answer.thinking) == (6, "stop", "thinking")
    assert answer.text.endswith("OK.")


@pytest.mark.parametrize("kind", [FaultKind.LOOP, FaultKind.LOOP_THINKING])
def test_loops_repeat_to_the_limit(kind):
    answer = faulty(kind, limit=3000)
    tail = answer.raw[-400:]
    assert (answer.finish, answer.tokens) == ("length", 3000)
    assert answer.raw.count(tail[-60:]) > 20
    assert answer.closed is (kind is FaultKind.LOOP)


def test_aborts_may_have_text_or_none():
    partial, empty = faulty(FaultKind.ABORT_PARTIAL), faulty(FaultKind.ABORT_EMPTY)
    assert partial.finish == empty.finish == "abort"
    assert partial.raw
    assert not empty.raw


def test_thinking_cut_short():
    answer = faulty(FaultKind.TRUNCATED_THINKING)
    assert (answer.finish, answer.closed, answer.text) == ("length", False, "")


def test_garbled_text_is_a_third_replacement_characters():
    text = faulty(FaultKind.GARBLED).text
    assert text.count("\ufffd") * 3 == pytest.approx(len(text), abs=3)
