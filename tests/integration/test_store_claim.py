"""Claiming: who gets what, and what never runs."""

from __future__ import annotations

import pickle
import time

import pytest
from rq import Queue, cancel_job
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend
from support.arena import TTL_S
from support.wait import patient

from common import keys
from common.jobs import ForgedJobError, decode_job
from common.records import DeadReason
from consumers.perform import forged


def test_a_claim_is_whole_at_once(arena):
    run = arena.run(count=2)
    hand = arena.hand("w")
    (claim,) = hand.claim()
    arena.check()
    assert claim.job == "r-0"
    assert decode_job(claim.data).id == "p0"
    job = Job.fetch("r-0", connection=arena.client, serializer=JSONSerializer)
    assert job.get_status() == "started"
    assert job.worker_name == "w"
    score = arena.client.zscore(keys.STARTED, f"r-0:{claim.execution}")
    assert arena.now() + TTL_S - 2 < score <= arena.now() + TTL_S
    assert arena.counts(run).in_flight == 1


def test_two_consumers_never_share_a_job(arena):
    arena.run(count=40)
    hands = [arena.hand(), arena.hand()]
    seen = [claim.job for _ in range(5) for hand in hands for claim in hand.claim(4)]
    arena.check()
    assert sorted(seen) == sorted({f"r-{unit}" for unit in range(40)})


def test_a_suspended_queue_gives_nothing(arena):
    arena.run(count=1)
    suspend(arena.client)
    reply = arena.hand().look()
    assert (reply.state, reply.claims) == ("suspended", [])
    arena.check()
    resume(arena.client)
    assert len(arena.hand().claim()) == 1
    arena.check()


def test_a_paused_run_gives_nothing_and_goes_on_when_resumed(arena):
    run = arena.run(count=2)
    arena.store.pause(run, "*", {"sentence": "bad"})
    assert arena.hand().look(5).state == "paused"
    arena.check()
    arena.store.resume(run)
    assert len(arena.hand().claim(5)) == 2
    arena.check()


def test_a_paused_server_gets_nothing_while_others_work(arena):
    run = arena.run(count=4)
    bad, good = arena.hand(server="http://bad"), arena.hand(server="http://good")
    arena.store.pause(run, "http://bad", {"sentence": "bad"})
    assert bad.look(2).state == "paused"
    assert len(good.claim(2)) == 2
    arena.check()


def test_a_paused_run_does_not_hold_up_another(arena):
    arena.run("one", 3)
    arena.run("two", 3)
    arena.store.pause("one", "*", {"sentence": "bad"})
    hand = arena.hand()
    assert {claim.job for claim in hand.claim(10)} == {"two-0", "two-1", "two-2"}
    arena.check()
    assert arena.client.lrange("pm:run:one:held", 0, -1) == [b"one-0", b"one-1", b"one-2"]
    assert arena.store.balance()[0] == -1
    arena.store.resume("one")
    assert [claim.job for claim in hand.claim(10)] == ["one-0", "one-1", "one-2"]
    arena.check()


@pytest.mark.parametrize("limit", [{"results_limit": 2}, {"results_bytes": 100}])
def test_completions_that_wait_for_a_part_stop_new_claims(arena, limit):
    run = arena.run(count=5)
    hand = arena.hand(**limit)
    for claim in hand.claim(2):
        hand.complete(claim)
    assert hand.look(2).state == "full"
    arena.check()
    assert arena.commit(run, arena.seal(run))
    assert len(hand.claim(2)) == 2
    arena.check()


def _system_job(arena, job_id):
    queue = Queue("completions", connection=arena.client, serializer=JSONSerializer)
    return queue.enqueue_call("os.system", args=("touch /tmp/owned",), job_id=job_id)


class _Bomb:
    def __reduce__(self):
        return (print, ("boom",))


@pytest.mark.parametrize("name", ["not-ours", "r-99", "r-007", "x", "r-", "other-1", "r-1e3", "r--1"])
def test_a_foreign_job_is_failed_and_never_run(arena, name):
    arena.run(count=1)
    _system_job(arena, name)
    claims = arena.hand().claim(10)
    arena.check()
    assert [claim.job for claim in claims] == ["r-0"]
    job = Job.fetch(name, connection=arena.client, serializer=JSONSerializer)
    assert job.get_status() == "failed"
    assert "was not made by promptmill" in job.latest_result().exc_string
    assert name in FailedJobRegistry("completions", arena.client).get_job_ids(cleanup=False)
    assert arena.counts().accepted == 1


@pytest.mark.parametrize(
    "data",
    [
        b'["os.system",null,["id"],{}]',
        pickle.dumps(_Bomb()),
        b'["consumers.generate",null,[],{"index":0,"id":"p0","messages":[],"v":99}]',
        b"x" * (50 * 1024 * 1024),
        b"\xff\xfe",
        b"[]",
    ],
    ids=["os.system", "pickle", "version", "50MB", "not-utf8", "empty"],
)
def test_a_forged_job_under_a_true_name_is_a_dead_letter(arena, data, capsys):
    arena.run(count=2)
    arena.client.hset("rq:job:r-0", "data", data)
    hand = arena.hand()
    claim, neighbour = hand.claim(2)
    with pytest.raises(ForgedJobError) as error:
        decode_job(claim.data)
    assert len(str(error.value)) < 500
    outcome = forged(claim, 0, str(error.value))
    assert outcome.letter.reason is DeadReason.FORGED_JOB
    assert hand.bury(claim, DeadReason.FORGED_JOB)
    arena.check()
    assert hand.complete(neighbour)
    arena.check()
    assert "boom" not in capsys.readouterr().out


def test_a_key_of_another_type_under_a_jobs_name_stops_nobody(arena):
    arena.run(count=2)
    arena.client.delete("rq:job:r-0")
    arena.client.set("rq:job:r-0", "what")
    arena.client.lpush(keys.QUEUE, "stranger")
    arena.client.set("rq:job:stranger", "what")
    claims = arena.hand().claim(5)
    assert [claim.job for claim in claims] == ["r-1"]
    assert arena.counts().in_flight == 1


def test_a_job_that_stands_in_the_list_twice_runs_once(arena):
    arena.run(count=2)
    arena.client.rpush(keys.QUEUE, "r-0", "r-0")
    hand, other = arena.hand(), arena.hand()
    assert [claim.job for claim in hand.claim(1)] == ["r-0"]
    assert [claim.job for claim in other.claim(5)] == ["r-1"]
    arena.check()
    hand.complete(hand.held[0])
    arena.client.rpush(keys.QUEUE, "r-0")
    assert other.claim(5) == []
    arena.check()
    assert arena.counts().completed == 1


def test_two_entries_of_a_job_taken_in_one_call_are_one_claim(arena):
    arena.run(count=2)
    arena.client.rpush(keys.QUEUE, "r-0", "r-1", "r-0")
    claims = arena.hand().claim(10)
    arena.check()
    assert [(claim.job, claim.deaths) for claim in claims] == [("r-0", 0), ("r-1", 0)]


def test_an_entry_whose_claim_has_died_counts_one_death(arena):
    arena.run(count=1)
    dead, alive = arena.hand(), arena.hand()
    dead.claim()
    arena.silence(dead)
    arena.client.rpush(keys.QUEUE, "r-0")
    (claim,) = alive.claim(5)
    arena.check()
    assert claim.deaths == 1
    assert arena.event("redeliveries") == 1
    assert alive.complete(claim)
    assert not dead.complete(dead.held[0])
    arena.check()
    assert arena.event("second_finishes") == 1


def test_suspects_run_one_at_a_time(arena):
    arena.run(count=4)
    for unit in range(3):
        arena.client.hset(f"rq:job:r-{unit}", "deaths", 2)
    hand = arena.hand()
    first = hand.claim(10, suspects=1)
    arena.check()
    assert [(claim.job, claim.deaths) for claim in first] == [("r-0", 2), ("r-3", 0)]
    arena.due()
    assert hand.claim(10, suspects=0) == []
    arena.check()
    assert arena.client.zcard(keys.SCHEDULED) == 2
    arena.due()
    assert len(hand.claim(10, suspects=1)) == 1
    arena.check()


def test_a_retry_is_claimed_when_due_and_not_before(arena):
    arena.run(count=1)
    hand = arena.hand()
    assert hand.again(hand.claim()[0], delay_s=60)
    arena.check()
    assert hand.claim() == []
    arena.due()
    (claim,) = hand.claim()
    arena.check()
    assert claim.attempts == 1


@pytest.mark.parametrize("serializer", [JSONSerializer, None], ids=["json", "pickle"])
@pytest.mark.parametrize("active", [True, False], ids=["active", "finished"])
def test_a_dead_letter_requeued_by_rq_lives_again(arena, serializer, active):
    run = arena.run(count=2)
    hand = arena.hand()
    for claim in hand.claim(2):
        hand.bury(claim)
    arena.check()
    if not active:
        arena.client.srem(keys.ACTIVE, run)
    FailedJobRegistry("completions", arena.client, serializer=serializer).requeue("r-0")
    (claim,) = hand.claim(5)
    arena.check()
    assert decode_job(claim.data).id == "p0"
    assert (claim.attempts, claim.deaths, claim.tries) == (0, 0, 0)
    assert arena.client.sismember(keys.ACTIVE, run)
    assert hand.complete(claim)
    arena.check()
    assert (arena.counts().completed, arena.counts().dead, arena.event("revived")) == (1, 1, 1)


def test_a_completed_job_that_somebody_requeues_stays_completed(arena):
    arena.run(count=1)
    hand = arena.hand()
    hand.complete(hand.claim()[0])
    job = Job.fetch("r-0", connection=arena.client, serializer=JSONSerializer)
    Queue("completions", connection=arena.client, serializer=JSONSerializer).enqueue_job(job)
    assert hand.claim(5) == []
    arena.check()
    assert arena.counts().completed == 1


def test_a_job_that_somebody_cancelled_or_deleted_is_missing_until_it_is_made_again(arena):
    run = arena.run(count=2)
    cancel_job("r-1", connection=arena.client, serializer=JSONSerializer)
    arena.client.delete("rq:job:r-0")
    hand = arena.hand()
    assert hand.claim(5) == []
    arena.check(tidy=False)
    assert arena.store.missing(run) == [0]
    assert arena.store.find_lost(run) == [1]


def test_claiming_4096_at_once_takes_little_time(arena):
    arena.run(count=4096)
    begun = time.monotonic()
    claims = arena.hand().claim(4096)
    assert len(claims) == 4096
    assert time.monotonic() - begun < patient(5)
    arena.check()
