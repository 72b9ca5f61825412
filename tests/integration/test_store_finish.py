"""Ending jobs: four ways, any of them sent again, late, or by one who lost the claim."""

from __future__ import annotations

import pytest
from rq.job import Job
from rq.registry import FinishedJobRegistry
from rq.serializers import JSONSerializer
from support.arena import SERVER, letter_of, record_line

from common import keys
from common.records import Verdict
from common.store.claims import Again, Completed, Dead, Ended, HandedBack


def completed(unit, words="an answer"):
    return Completed(record_line("r", unit, words), Verdict.OK, 7, f"p{unit}")


WAYS = {
    "completed": (completed(0), (1, 0, 0, 0)),
    "dead": (Dead(letter_of(0)), (0, 1, 0, 0)),
    "again": (Again(0.0, 1, 0), (0, 0, 1, 0)),
    "handed_back": (HandedBack(), (0, 0, 1, 0)),
    "server_died": (HandedBack(death=True), (0, 0, 1, 0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_every_way_to_end_a_job_counts_once_however_often_it_is_sent(arena, way, times):
    outcome, expected = WAYS[way]
    arena.run(count=1)
    hand = arena.hand()
    (claim,) = hand.claim()
    for _ in range(times):
        hand.finish(Ended(claim, outcome))
        arena.check()
    counts = arena.counts()
    assert (counts.completed, counts.dead, counts.queued, counts.in_flight) == expected
    assert not arena.client.zcard(keys.STARTED)
    assert not arena.client.exists(keys.worker_executions(hand.name))


@pytest.mark.parametrize("way", WAYS)
def test_nobody_ends_a_job_that_another_holds_now_but_by_its_result(arena, way):
    outcome, _ = WAYS[way]
    arena.run(count=1)
    late, now = arena.hand(), arena.hand()
    (old,) = late.claim()
    arena.silence(late)
    assert arena.reap() == 1
    arena.check()
    (new,) = now.claim()
    assert late.finish(Ended(old, outcome)) == [way == "completed"]
    arena.check()
    assert now.complete(new) == (way != "completed")
    arena.check()
    assert arena.counts().completed == 1
    assert arena.event("second_finishes") == (way == "completed")
    assert len(arena.waiting()) == 1


def test_the_first_result_wins_and_the_second_is_counted(arena):
    arena.run(count=1)
    late, now = arena.hand(), arena.hand()
    (old,) = late.claim()
    arena.silence(late)
    arena.reap()
    (new,) = now.claim()
    assert now.complete(new, "the first")
    assert not late.complete(old, "the second")
    arena.check()
    ((_, line),) = arena.store.waiting_lines("r")
    assert b"the first" in line
    assert arena.event("second_finishes") == 1


def test_a_late_result_counts_while_the_job_waits_in_the_queue(arena):
    arena.run(count=1)
    late = arena.hand()
    (old,) = late.claim()
    arena.silence(late)
    arena.reap()
    assert late.complete(old)
    arena.check()
    assert arena.hand().claim(5) == []
    arena.check()
    assert (arena.counts().completed, arena.counts().queued) == (1, 0)


def test_a_late_result_does_not_bring_a_dead_letter_back(arena):
    arena.run(count=1)
    late, now = arena.hand(), arena.hand()
    (old,) = late.claim()
    arena.silence(late)
    arena.reap()
    now.bury(now.claim()[0])
    assert not late.complete(old)
    arena.check()
    assert (arena.counts().completed, arena.counts().dead) == (0, 1)


def test_many_ends_of_all_kinds_go_in_one_call(arena):
    arena.run(count=50)
    hand = arena.hand()
    claims = hand.claim(50)
    outcomes = [
        completed,
        lambda unit: Dead(letter_of(unit)),
        lambda _: Again(0, 1, 0),
        lambda _: HandedBack(),
    ]
    assert all(hand.finish(*(Ended(claim, outcomes[n % 4](n)) for n, claim in enumerate(claims))))
    arena.check()
    counts = arena.counts()
    assert (counts.completed, counts.dead, counts.queued) == (13, 13, 24)


def test_results_of_a_run_that_is_gone_or_of_units_never_admitted_are_dropped(arena):
    arena.run(count=1)
    hand = arena.hand()
    (claim,) = hand.claim()
    arena.client.flushall()
    assert not hand.complete(claim)
    assert not arena.client.keys("pm:*")
    arena.run()
    assert not hand.complete(claim)
    arena.check()
    assert arena.counts().completed == 0


def test_a_job_deleted_while_it_ran_completes_and_the_counters_heal(arena):
    run = arena.run(count=2)
    hand = arena.hand()
    claim, other = hand.claim(2)
    arena.client.delete("rq:job:r-0")
    assert hand.beat() == [claim]
    assert hand.complete(claim)
    arena.check(tidy=False)
    assert arena.store.recount(run) == 1
    arena.check()
    hand.complete(other)
    arena.check()
    counts = arena.counts()
    assert (counts.completed, counts.queued, counts.in_flight) == (2, 0, 0)


def test_a_completed_job_is_finished_to_rq_and_holds_its_prompt_no_more(arena):
    arena.run(count=1)
    hand = arena.hand("w")
    hand.complete(hand.claim()[0])
    job = Job.fetch("r-0", connection=arena.client, serializer=JSONSerializer)
    assert job.get_status() == "finished"
    assert job.kwargs == {}
    assert FinishedJobRegistry("completions", arena.client).get_job_ids(cleanup=False) == ["r-0"]
    assert 0 < arena.client.ttl("rq:job:r-0") <= 500


def test_finished_jobs_do_not_pile_up(arena):
    arena.run(count=1200)
    hand = arena.hand()
    claims = hand.claim(1200)
    hand.finish(*(hand.completion(claim) for claim in claims))
    arena.check()
    assert arena.client.zcard(keys.FINISHED) == 1000
    assert len(arena.client.keys("rq:job:*")) == 1000


def test_the_window_holds_the_last_verdicts_and_the_tally_their_counts(arena):
    arena.run(count=5)
    hand = arena.hand(window=3)
    windows = {}
    for claim in hand.claim(5):
        unit = int(claim.job.removeprefix("r-"))
        verdict = Verdict.OK if unit % 2 else Verdict.EMPTY
        reply, _ = hand.exchange([Ended(claim, Completed(record_line("r", unit), verdict, 7, f"p{unit}"))], 0)
        windows = reply.windows
        arena.check()
    assert arena.store.window("r") == [
        ("empty", SERVER, "p4"),
        ("ok", SERVER, "p3"),
        ("empty", SERVER, "p2"),
    ]
    assert {k: v for k, v in windows["r"].items() if v} == {
        "ok": 1,
        "empty": 2,
        f"ok {SERVER}": 1,
        f"empty {SERVER}": 2,
    }
    assert arena.counts().tally("verdict") == {"ok": 2, "empty": 3}


def test_a_judged_answer_that_is_made_again_is_in_the_window_once(arena):
    arena.run(count=1)
    hand = arena.hand()
    (claim,) = hand.claim()
    again = Ended(claim, Again(0.0, 0, 1, Verdict.LOOPING, "p0"))
    hand.finish(again)
    hand.finish(again)
    arena.check()
    assert arena.store.window("r") == [("looping", SERVER, "p0")]
    assert arena.event("retries") == 1


@pytest.mark.parametrize("way", WAYS)
def test_what_heartbeats_showed_to_rq_goes_with_the_claim(arena, way):
    outcome, _ = WAYS[way]
    arena.run(count=1)
    hand = arena.hand()
    (claim,) = hand.claim()
    assert not hand.beat()
    (shown,) = Job.fetch(claim.job, connection=arena.client, serializer=JSONSerializer).get_executions()
    assert shown.id == claim.execution
    hand.finish(Ended(claim, outcome))
    arena.check()
    assert not arena.client.keys("rq:execution*")


def test_what_a_dead_consumer_showed_to_rq_goes_with_the_job(arena):
    arena.run(count=1)
    late, now = arena.hand(), arena.hand()
    late.claim()
    late.beat()
    arena.silence(late)
    assert arena.reap() == 1
    (claim,) = now.claim()
    assert now.complete(claim)
    assert not arena.client.exists(f"rq:executions:{claim.job}")


def test_two_claims_of_one_job_that_end_at_once_count_once(arena):
    arena.run(count=3)
    hand = arena.hand()
    first = hand.claim(3)
    arena.silence(hand)
    assert arena.reap() == 3
    second = hand.claim(3)
    both = [hand.completion(claim) for claim in [*first, *second]]
    assert hand.finish(*both) == [True] * 3 + [False] * 3
    arena.check()
    counts = arena.counts()
    assert (counts.completed, counts.in_flight, counts.queued) == (3, 0, 0)
    assert arena.event("second_finishes") == 3


def test_a_completion_is_kept_whatever_stands_where_its_job_was(arena):
    arena.run(count=4)
    hand = arena.hand()
    claims = hand.claim(4)
    key = keys.job_key(claims[1].job)
    arena.client.delete(key)
    arena.client.set(key, "something else")
    assert hand.finish(*[hand.completion(claim) for claim in claims]) == [True] * 4
    counts = arena.counts()
    assert counts.completed == 4
    assert arena.client.xlen(keys.run_key("r", "results")) == 4
