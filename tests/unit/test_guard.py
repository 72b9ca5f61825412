"""When the guard pauses the run or a server, and what it says."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from common.records import Message, Response, Usage, Verdict
from common.settings import QualitySettings
from consumers.quality import PauseRun, PauseServer, RecentAnswers, check, judge
from consumers.quality.guard import REMEDIES

SETTINGS = QualitySettings()
SEVEN = [f"http://gpu{n}:30000" for n in range(7)]


def spread(counts, servers=SEVEN):
    """The same mix on every server, as evenly as it goes."""
    by_server = {server: {} for server in servers}
    for verdict, number in counts.items():
        for n in range(number):
            mine = by_server[servers[n % len(servers)]]
            mine[verdict] = mine.get(verdict, 0) + 1
    return by_server


def look(counts, servers=SEVEN, settings=SETTINGS):
    return check(counts, spread(counts, servers), settings)


@pytest.mark.parametrize(
    ("counts", "pauses"),
    [
        ({"ok": 500}, False),
        ({}, False),
        ({"ok": 400, "looping": 100}, False),  # 20 % is not above 20 %
        ({"ok": 399, "looping": 101}, True),
        ({"looping": 49}, False),
        ({"looping": 50}, True),
        ({"ok": 199, "empty": 50}, True),
        ({"ok": 201, "empty": 50}, False),
        ({"ok": 350, "truncated": 150}, False),
        ({"ok": 249, "truncated": 251}, True),
        ({"ok": 350, "truncated_thinking": 150}, True),
        ({"ok": 380, "looping": 60, "empty": 60}, True),  # together
        ({"ok": 300, "looping": 60, "truncated": 140}, False),
        ({"ok": 100, "unheard_of": 400}, False),
    ],
)
@pytest.mark.parametrize("servers", [SEVEN, SEVEN[:1]])
def test_limits(counts, pauses, servers):
    assert isinstance(look(counts, servers), PauseRun) is pauses


def test_every_bad_verdict_has_a_remedy():
    assert set(REMEDIES) == set(Verdict) - {Verdict.OK}


def test_the_sentence_says_what_where_and_the_remedy():
    found = look({"ok": 350, "truncated_thinking": 150})

    assert found == PauseRun(found.sentence, Verdict.TRUNCATED_THINKING, 0.3)
    assert found.sentence == (
        "The quality guard paused the run: 150 of the last 500 completions (30%) are truncated_thinking "
        "(limit 20%) on all 7 servers; raise --max-output-tokens in a new run (thinking counts towards it), "
        "or use --no-thinking; or go on as it is with `ops resume --accept`."
    )


def test_the_sentence_for_several_kinds_names_the_most_frequent():
    found = look({"ok": 380, "looping": 50, "empty": 70})

    assert found.verdict is Verdict.EMPTY
    assert "are bad, most of them empty" in found.sentence


def test_one_bad_server_of_seven_is_singled_out():
    by_server = {server: {"ok": 70} for server in SEVEN}
    by_server[SEVEN[3]] = {"ok": 30, "broken": 40}
    window = {"ok": 450, "broken": 40}  # 8 %: the run as a whole is under its limit

    found = check(window, by_server, SETTINGS)

    assert isinstance(found, PauseServer)
    assert (found.server, found.verdict) == (SEVEN[3], Verdict.BROKEN)
    assert f"server {SEVEN[3]} alone: 40 of the last 70" in found.sentence
    assert "0% on the others" in found.sentence


def test_a_paused_server_neither_hides_another_nor_stops_the_run():
    by_server = {"a": {"looping": 70}, "b": {"looping": 70, "ok": 0}, "c": {"ok": 300}, "idle": {"ok": 0}}
    window = {"looping": 140, "ok": 300}

    assert check(window, by_server, SETTINGS, paused=["a"]).server == "b"
    assert check(window, by_server, SETTINGS, paused=["a", "b"]) is None
    assert check(window, by_server, SETTINGS, paused=list(by_server)) is None


def test_servers_without_completions_are_not_counted():
    found = check({"looping": 60}, {"a": {"looping": 60}, "idle": {"ok": 0}}, SETTINGS)

    assert "on the only server" in found.sentence


def test_one_bad_server_of_two_is_singled_out():
    by_server = {"a": {"looping": 60}, "b": {"ok": 60}}

    assert check({"ok": 60, "looping": 60}, by_server, SETTINGS).server == "a"


@pytest.mark.parametrize(
    "by_server",
    [
        {"a": {"looping": 60}, "b": {"ok": 5}},  # too little of b to call it good
        {"a": {"ok": 40, "looping": 60}, "b": {"ok": 60, "looping": 40}},  # both bad
        {"a": {"ok": 140, "looping": 60}, "b": {"ok": 90, "looping": 10}},  # hardly apart
    ],
)
def test_no_server_is_blamed_for_all(by_server):
    window = sum((Counter(counts) for counts in by_server.values()), Counter())

    assert not isinstance(check(window, by_server, SETTINGS), PauseServer)


def test_a_server_with_few_completions_is_not_blamed():
    by_server = {server: {"ok": 70} for server in SEVEN} | {SEVEN[0]: {"ok": 10, "looping": 19}}

    assert check({"ok": 430, "looping": 19}, by_server, SETTINGS) is None


def test_a_verdict_with_its_own_limit_follows_that_alone():
    settings = QualitySettings(limits={Verdict.TRUNCATED_THINKING: 0.9, Verdict.LOOPING: 0.05})

    assert look({"ok": 200, "truncated_thinking": 300}, settings=settings) is None
    assert look({"ok": 20, "truncated_thinking": 480}, settings=settings) is not None
    assert look({"ok": 440, "looping": 60}, settings=settings).verdict is Verdict.LOOPING


def test_a_higher_limit_for_all_holds_for_truncated_too():
    assert look({"ok": 100, "truncated": 400}, settings=QualitySettings(limit=0.9)) is None
    assert look({"truncated": 500}, settings=QualitySettings(limit=1)) is None


def test_the_guard_can_be_switched_off():
    assert look({"looping": 500}, settings=QualitySettings(guard=False)) is None


def test_a_small_window_does_not_switch_the_guard_off():
    assert look({"ok": 60, "looping": 40}, settings=QualitySettings(window=100)) is not None


@pytest.mark.parametrize("variants", [1, 6])
@pytest.mark.parametrize("servers", [SEVEN, SEVEN[:1]])
def test_a_run_of_the_disaster_stops_within_its_first_500_completions(variants, servers):
    random = Random(variants)
    recent = {server: RecentAnswers() for server in servers}
    window = deque(maxlen=SETTINGS.window)
    for n in range(500):
        server = random.choice(servers)
        if random.random() < 0.87:
            said = Response(
                reasoning_content="thinking", content=f"response, OK. {random.randrange(variants)}"
            )
        else:
            said = Response(
                reasoning_content=f"About {n}: " + "a long and honest trace " * 20, content="Yes."
            )
        repeats = recent[server].see(said, [Message("user", f"question {n}")])
        judged = judge(said, "stop", Usage(completion_tokens=6), thinking=True, repeats=repeats)
        window.append((server, judged.verdict))
        by_server = {
            name: Counter(verdict for where, verdict in window if where == name)
            for name in {where for where, _ in window}
        }
        found = check(Counter(verdict for _, verdict in window), by_server, SETTINGS)
        if found is not None:
            break

    assert isinstance(found, PauseRun)
    assert found.verdict is Verdict.BOILERPLATE
    assert n < 300
