"""Admission: every chunk once, whoever sends it how often."""

from __future__ import annotations

import pytest
from support.arena import settings_of

from common import keys
from common.store import RedisFullError


def test_a_chunk_sent_again_is_admitted_once(arena):
    run = arena.run()
    assert arena.admit(run, 3, token="t") == 1
    arena.check()
    assert arena.admit(run, 3, token="t", at=0) == 2
    arena.check()
    assert arena.counts().accepted == 3
    assert arena.queue() == ["r-0", "r-1", "r-2"]


def test_a_second_producer_at_an_old_position_admits_nothing(arena):
    run = arena.run(count=3)
    assert arena.admit(run, 2, token="other", at=0) == 0
    arena.check()
    assert arena.counts().accepted == 3
    assert arena.admit(run, 2) == 1
    arena.check()
    assert arena.counts().accepted == 5


def test_a_run_that_is_not_there_admits_nothing(arena):
    arena.samples["gone"] = 1
    assert arena.admit("gone", 1) == -1
    assert not arena.queue()


def test_dead_letters_of_bad_lines_come_with_their_chunk(arena):
    run = arena.run()
    assert arena.admit(run, 4, dead=[1, 3], ended=True) == 1
    arena.check()
    counts = arena.counts()
    assert (counts.accepted, counts.dead, counts.queued) == (4, 2, 2)
    assert counts.tally("dead") == {"invalid_line": 2}
    assert arena.store.position(run).ended


def test_a_unit_that_a_part_holds_already_is_not_queued(arena):
    run = arena.run()
    arena.client.setbit(keys.run_key(run, "done"), 1, 1)
    arena.admit(run, 3)
    assert arena.queue() == ["r-0", "r-2"]
    assert arena.counts().accepted == 2


def test_every_sample_is_a_job_of_its_own(arena):
    arena.run(count=2, samples=3)
    arena.check()
    assert arena.queue() == [f"r-{unit}" for unit in range(6)]


def test_a_hash_that_somebody_left_under_a_jobs_name_does_not_become_part_of_it(arena):
    run = arena.run()
    arena.client.hset("rq:job:r-0", mapping={"owner": "ghost", "deaths": "9", "status": "failed"})
    arena.client.expire("rq:job:r-0", 100)
    arena.admit(run, 1)
    arena.check()
    assert "owner" not in arena.job(run, 0)
    assert arena.client.ttl("rq:job:r-0") == -1


def test_creating_a_run_again_returns_what_stands(arena):
    arena.run(count=2)
    other = settings_of("r", output="/elsewhere")
    assert arena.store.create_run(other) == settings_of("r")
    arena.check()
    assert arena.counts().accepted == 2


def test_a_full_redis_admits_nothing_of_a_chunk_and_still_lets_consumers_end_jobs(arena):
    run = arena.run(count=5)
    hand = arena.hand()
    used = arena.client.info("memory")["used_memory"]
    arena.client.config_set("maxmemory", used)
    try:
        with pytest.raises(RedisFullError, match="admit prompts to run r"):
            arena.admit(run, 500)
        arena.check()
        assert arena.counts().accepted == 5
        for claim in hand.claim(5):
            assert hand.complete(claim)
            arena.check()
        seal = arena.seal(run)
        assert arena.commit(run, seal)
    finally:
        arena.client.config_set("maxmemory", 0)
    arena.check()
    assert arena.admit(run, 2) == 1
    arena.check()
    assert arena.counts().stored == 5
