"""What became silent, fell out of a list, or was deleted by others: back in the queue, once."""

from __future__ import annotations

import random

import pytest
from support.arena import TTL_S, prompt_of

from common import keys
from common.jobs import encode_job


def all_done(arena, run="r"):
    """Work off everything that can be claimed."""
    hand = arena.hand()
    while True:
        arena.due()
        claims = hand.claim(100)
        if not claims:
            return
        for claim in claims:
            hand.complete(claim)


def reconcile(arena, run="r"):
    """What the collector does when counters and lists have disagreed for long."""
    lost = arena.store.find_lost(run)
    arena.store.restore(run, lost)
    arena.store.recount(run)


# Heartbeats


def test_a_heartbeat_keeps_claims_and_mends_a_deleted_registry_member(arena):
    arena.run(count=2)
    hand = arena.hand()
    claims = hand.claim(2)
    arena.client.delete(keys.STARTED)
    assert hand.beat() == []
    arena.check()
    assert arena.client.zcard(keys.STARTED) == 2
    arena.silence(hand)
    assert hand.beat() == []
    assert arena.reap() == 0
    assert all(arena.client.zscore(keys.STARTED, f"{c.job}:{c.execution}") > arena.now() for c in claims)


def test_a_heartbeat_tells_which_claims_are_lost(arena):
    arena.run(count=3)
    hand, other = arena.hand(), arena.hand()
    claims = hand.claim(3)
    arena.client.zadd(keys.STARTED, {f"{claims[1].job}:{claims[1].execution}": 1})
    assert arena.reap() == 1
    other.claim(1)
    assert hand.beat() == [claims[1]]
    arena.check()
    assert arena.client.zcard(keys.STARTED) == 3


# Claims whose answer was lost


def test_claims_whose_answer_was_lost_go_back_to_the_head(arena):
    arena.run(count=5)
    hand = arena.hand()
    known = hand.claim(2)
    lost = hand.look(2).claims
    assert hand.disown() == 2
    arena.check()
    assert set(arena.queue()[:2]) == {claim.job for claim in lost}
    assert arena.job("r", 2).get("deaths") is None
    assert hand.disown() == 0
    arena.check()
    assert hand.beat() == []
    assert hand.held == known


def test_disowning_leaves_the_claims_of_others_alone(arena):
    arena.run(count=2)
    one, two = arena.hand(), arena.hand()
    one.look(1)
    two.claim(1)
    assert one.disown() == 1
    arena.check()
    assert two.beat() == []


# Abandoned jobs


def test_the_dead_are_reaped_and_the_living_are_not(arena):
    arena.run(count=4)
    dead, alive = arena.hand(), arena.hand()
    dead.claim(2)
    alive.claim(2)
    arena.silence(dead)
    assert arena.reap() == 2
    arena.check()
    assert arena.reap() == 0
    assert set(arena.queue()) == {"r-0", "r-1"}
    assert arena.event("redeliveries") == 2
    assert [claim.deaths for claim in alive.claim(5)] == [1, 1]
    arena.check()


def test_a_prompt_whose_consumers_die_is_counted_up_and_comes_back_alone(arena):
    arena.run(count=3)
    for death in range(4):
        arena.due()
        hand = arena.hand()
        claims = hand.claim(1)
        assert [(claim.job, claim.deaths) for claim in claims] == [("r-0", death)]
        arena.silence(hand)
        arena.reap()
        arena.check()


def test_silence_proves_nothing_after_a_gap(arena):
    arena.run(count=2)
    hand = arena.hand()
    hand.claim(2)
    arena.silence(hand)
    arena.client.set("pm:reaped", arena.now() - TTL_S)
    assert arena.store.reap(TTL_S) == 0
    arena.check()
    assert hand.beat() == []
    arena.client.delete("pm:reaped")
    arena.silence(hand)
    assert arena.store.reap(TTL_S) == 0
    arena.silence(hand)
    assert arena.store.reap(TTL_S) == 2
    arena.check()


@pytest.mark.parametrize("jump", [3600, -3600], ids=["an hour on", "an hour back"])
def test_a_jump_of_the_clock_abandons_nothing_and_holds_nothing_up(arena, jump):
    arena.run(count=4)
    dead, alive = arena.hand(), arena.hand()
    dead.claim(1)
    alive.claim(1)
    alive.again(alive.claim(1)[0], delay_s=30)
    # As if all this had happened by a clock that stood elsewhere.
    for key in (keys.STARTED, keys.SCHEDULED):
        for member, score in arena.client.zrange(key, 0, -1, withscores=True):
            arena.client.zadd(key, {member: score - jump})
    arena.client.set("pm:reaped", arena.now() - jump)
    assert arena.store.reap(TTL_S) == 0
    arena.check()
    assert alive.beat() == []
    scores = [score for _, score in arena.client.zrange(keys.STARTED, 0, -1, withscores=True)]
    assert all(score <= arena.now() + TTL_S + 1 for score in scores)
    if jump < 0:
        (retry,) = [score for _, score in arena.client.zrange(keys.SCHEDULED, 0, -1, withscores=True)]
        assert arena.now() + 20 < retry < arena.now() + 31
    arena.silence(dead)
    assert arena.store.reap(TTL_S) == 1
    arena.check()


def test_a_dead_consumers_4000_jobs_come_back_at_once(arena):
    arena.run(count=4000)
    hand = arena.hand()
    hand.claim(4000)
    arena.silence(hand)
    assert arena.reap() == 4000
    arena.check()


def test_a_lease_left_by_a_clock_that_went_back_does_not_last_an_hour(arena):
    assert arena.store.take_lease("dead", 15)
    assert not arena.store.take_lease("alive", 15)
    arena.client.pexpire(keys.LEASE, 3_600_000)
    assert arena.store.take_lease("alive", 15)
    assert not arena.store.take_lease("third", 15)


# Lost jobs


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_deleted_from_lists_at_random_ends_all_the_same(arena, seed):
    chance = random.Random(seed)
    run = arena.run(count=60)
    hand = arena.hand()
    hand.claim(15)
    for claim in list(hand.held[:5]):
        hand.again(claim, delay_s=100)
    victims = [(keys.QUEUE, job) for job in arena.client.lrange(keys.QUEUE, 0, -1)]
    victims += [(keys.SCHEDULED, job) for job in arena.client.zrange(keys.SCHEDULED, 0, -1)]
    victims += [(keys.STARTED, job) for job in arena.client.zrange(keys.STARTED, 0, -1)]
    for key, member in chance.sample(victims, 30):
        if key == keys.QUEUE:
            arena.client.lrem(key, 0, member)
        else:
            arena.client.zrem(key, member)
    arena.check(tidy=False)
    hand.beat()
    assert arena.store.balance()[0] >= 0
    reconcile(arena)
    arena.check()
    assert arena.store.balance()[0] == -1
    for claim in list(hand.held):
        hand.complete(claim)
        arena.check()
    all_done(arena)
    arena.check()
    assert arena.counts(run).completed == 60
    assert arena.event("second_finishes") == 0


def test_deleted_jobs_are_made_again_by_the_producer(arena):
    run = arena.run(count=6)
    hand = arena.hand()
    hand.claim(2)
    for unit in (0, 2, 4):
        arena.client.delete(f"rq:job:r-{unit}")
    hand.beat()
    for claim in list(hand.held):
        if claim.job == "r-0":
            hand.held.remove(claim)  # its holder has died too
    reconcile(arena)
    reconcile(arena)
    arena.check(tidy=False)
    other = arena.hand()
    other.claim(10)
    assert set(arena.store.missing(run)) == {0, 2, 4}
    jobs = [(unit, "r/p", encode_job(prompt_of(unit))) for unit in (0, 2, 4)]
    assert arena.store.readmit(run, jobs, job_timeout=60) == 3
    arena.check()
    assert arena.store.readmit(run, jobs, job_timeout=60) == 0
    arena.check()
    for claim in [*hand.held, *other.held]:
        (hand if claim in hand.held else other).complete(claim)
    all_done(arena)
    arena.check()
    assert (arena.counts().completed, arena.counts().queued, arena.counts().in_flight) == (6, 0, 0)


def test_restoring_what_has_moved_meanwhile_does_nothing(arena):
    run = arena.run(count=3)
    hand = arena.hand()
    claims = hand.claim(2)
    hand.complete(claims[0])
    assert arena.store.restore(run, [0, 1]) == 0
    arena.check()
    assert arena.store.restore(run, [2]) == 1
    assert len(arena.hand().claim(5)) == 1
    arena.check()


def test_balance_notes_since_when_it_is_off(arena):
    arena.run(count=3)
    assert arena.store.balance() == (-1, 3, 3, 0, 0)
    arena.client.lrem(keys.QUEUE, 0, "r-1")
    assert arena.store.balance() == (0, 3, 2, 0, 0)
    arena.client.set("pm:unbalanced", arena.now() - 17)
    assert arena.store.balance()[0] in {17, 18}
    reconcile(arena)
    assert arena.store.balance()[0] == -1
    assert not arena.client.exists("pm:unbalanced")


def test_wrong_counters_are_set_right(arena):
    run = arena.run(count=5)
    hand = arena.hand()
    hand.claim(2)
    arena.client.hset(keys.run_key(run, "counts"), mapping={"queued": 5, "in_flight": 0})
    assert arena.store.recount(run) == 2
    arena.check()
    assert arena.store.recount(run) == 0


# Dead letters


def test_revived_dead_letters_start_anew_and_bad_lines_stay_dead(arena):
    run = arena.run()
    arena.admit(run, 4, dead=[3])
    hand = arena.hand()
    for claim in hand.claim(3):
        hand.bury(claim)
    arena.client.delete("rq:job:r-1")
    assert arena.store.revive(run, [0, 1, 2, 3]) == 3
    arena.check()
    assert arena.store.revive(run, [0, 1, 2, 3]) == 0
    assert arena.store.missing(run) == [1]
    assert [claim.attempts for claim in hand.claim(5)] == [0, 0]
    arena.check()
