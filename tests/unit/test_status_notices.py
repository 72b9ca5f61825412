"""What is said to the operator, and in which order."""

from __future__ import annotations

import pytest
from support.statuses import consumer, run, status

from common.store.look import Silent
from ops.status.notices import Level, Notice, notices
from ops.status.values import Memory, Pause, State

BAD, WARNING, NOTE = Level.BAD, Level.WARNING, Level.NOTE


def said(shown, *more):
    return [(notice.level, notice.text) for notice in notices(shown, more)]


def test_of_a_healthy_run_nothing_is_said():
    assert said(status()) == []


@pytest.mark.parametrize(
    ("shown", "level", "words"),
    [
        (status(run(queued=1)), BAD, "do not add up"),
        (status(run(missing=1234)), WARNING, "1,234 jobs are gone from Redis"),
        (status(run(state=State.NO_CONSUMER)), WARNING, "no consumer is at work"),
        (status(collector=False), WARNING, "no collector is at work"),
        (status(suspended=True), WARNING, "until `rq resume`"),
        (status(stock_workers=list("abcde")), BAD, "stock RQ workers on this queue (a, b, c and 2 more)"),
        (status(silent=[Silent("w", "gpu1", 77, 61.4)]), WARNING, "gpu1 pid 77 for 61 s"),
        (status(memory=Memory(90, 100)), WARNING, "Redis uses 90% of its memory"),
        (status(disk_ok=False), BAD, "Redis cannot write to its disk"),
        (status(run(state=State.FINISHED, active=False)), NOTE, "`ops retry main`"),
        (
            status(run(paused=[Pause(scope="http://s", sentence="Bad answers.", samples=["x"])])),
            BAD,
            "http://s: Bad answers. Look at prompts x.",
        ),
        (status(run(paused=[Pause(scope="*", sentence="All bad.")])), BAD, "All bad."),
        (status(run(paused=[Pause(scope="*")])), BAD, "the run is paused"),
    ],
)
def test_what_is_wrong_is_said(shown, level, words):
    ((found, text),) = said(shown)
    assert found is level
    assert words in text


@pytest.mark.parametrize("shown", [status(run(state=State.NO_CONSUMER)), status(collector=False)])
def test_who_tends_the_parts_is_not_told_that_one_is_not_there_yet(shown):
    assert notices(shown, tended=True) == []


def test_a_server_that_the_sentence_names_is_not_named_again():
    pause = Pause(scope="http://s", sentence="The quality guard paused http://s: x")
    assert said(status(run(paused=[pause]))) == [(BAD, "The quality guard paused http://s: x")]


def test_an_output_that_takes_nothing_is_bad_only_once_consumers_wait_for_it():
    assert said(status(run(waiting=20_000))) == []
    full = status(run(waiting=20_000), consumers=0)
    full.consumers.append(consumer(state="waiting for output"))
    assert said(full)[0][0] is BAD


def test_the_worst_comes_first_and_what_others_say_has_its_place():
    shown = status(run(missing=1), stock_workers=["w"])
    more = Notice(NOTE, "a note")
    assert [level for level, _ in said(shown, more)] == [BAD, WARNING, NOTE]


def test_of_several_runs_only_what_they_share_is_said():
    shown = status(run(missing=1), run(run="b", missing=1), suspended=True)
    assert [text[:9] for _, text in said(shown)] == ["suspended"]
