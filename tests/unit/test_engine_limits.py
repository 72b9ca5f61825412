"""When the engine ends, and what it does about faults: of Redis, of its own, of others."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from common.errors import QueueError
from common.records import Verdict
from common.store.claims import Again, Claim, ClaimReply, Completed, FinishReply, HandedBack
from consumers import engine as engine_module
from consumers.engine import Engine, Limits

DONE = Completed(b"{}", Verdict.OK, 1, "p")


class Store:
    """A queue; `answers` lost, refused or given by the script."""

    def __init__(self, jobs: int, *, state: str = "ok", deaths: int = 0) -> None:
        self.left = [f"r-{n}" for n in range(jobs)]
        self.state = state
        self.deaths = deaths
        self.ended: list[tuple[str, object]] = []
        self.calls: list[str] = []
        self.fail = 0
        self.lose = 0
        self.accept = True
        self.windows: dict[str, dict[str, int]] = {}
        self.suspects: list[int] = []
        self.lost: list[str] = []

    async def exchange(self, ended, *, want, prefix, suspects):
        await asyncio.sleep(0)
        self.calls.append("exchange")
        self.suspects.append(suspects)
        if self.fail:
            self.fail -= 1
            raise QueueError("Redis is away")
        taken, self.left = self.left[: max(want, 0)], self.left[max(want, 0) :]
        if self.lose:
            self.lose -= 1
            self.lost = taken
            raise QueueError("the answer was lost")
        self.ended += [(item.claim.job, item.outcome) for item in ended]
        claims = [Claim(job, prefix + job, b"{}", 0, self.deaths, 0) for job in taken]
        reply = ClaimReply(self.state, claims, len(self.left), 0) if want > 0 else None
        return FinishReply([self.accept] * len(ended), self.windows), reply

    async def disown(self, claims):
        self.calls.append("disown")
        known = {claim.job for claim in claims}
        self.left = [job for job in self.lost if job not in known] + self.left
        self.lost = []
        return 0


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The waits are not what is tested."""
    for name in ("POLL_LEAST_S", "POLL_MOST_S", "REDIS_BACKOFF_S", "REDIS_BACKOFF_MOST_S"):
        monkeypatch.setattr(engine_module, name, 0.001)


async def done(claim):
    await asyncio.sleep(0)
    return DONE


async def until(true):
    while not true():  # noqa: ASYNC110  # the engine has no event for every state
        await asyncio.sleep(0)


def made(store, perform=done, *, limit=4, windows=None, **limits):
    return Engine(store, SimpleNamespace(limit=limit), perform, limits=Limits(**limits), on_windows=windows)


async def test_burst_ends_with_an_empty_queue_and_all_is_told():
    store = Store(10)
    await asyncio.wait_for(made(store, burst=True).run(), 5)
    assert sorted(job for job, _ in store.ended) == sorted(f"r-{n}" for n in range(10))


@pytest.mark.parametrize("state", ["paused", "suspended"])
async def test_burst_ends_where_nothing_will_come(state):
    await asyncio.wait_for(made(Store(0, state=state), burst=True).run(), 5)


@pytest.mark.parametrize("queued", [0, 1])
async def test_burst_that_waits_for_the_collector_ends_if_nothing_is_queued(queued):
    class Full(Store):
        async def exchange(self, ended, *, want, prefix, suspects):
            await asyncio.sleep(0)
            self.calls.append("exchange")
            return FinishReply([], {}), ClaimReply("full", [], queued, 0)

    store = Full(0)
    running = asyncio.create_task(made(store, burst=True).run())
    await until(lambda: running.done() or len(store.calls) > 3)
    assert running.done() is (queued == 0)
    running.cancel()


async def test_max_jobs_is_exact():
    store = Store(10)
    await asyncio.wait_for(made(store, max_jobs=7).run(), 5)
    assert (len(store.ended), len(store.left)) == (7, 3)


async def test_idle_time_counts_from_the_last_job():
    begun = time.monotonic()
    store = Store(1)
    await asyncio.wait_for(made(store, max_idle_s=0.2).run(), 5)
    assert time.monotonic() - begun >= 0.2
    assert len(store.ended) == 1


async def test_ends_of_one_moment_share_a_round_trip():
    store = Store(40)
    await asyncio.wait_for(made(store, limit=40, burst=True).run(), 5)
    assert len(store.calls) < 12


async def test_an_error_of_redis_loses_no_result_and_tells_none_twice():
    store = Store(8)
    store.fail = 3
    await asyncio.wait_for(made(store, burst=True).run(), 5)
    assert sorted(job for job, _ in store.ended) == sorted(f"r-{n}" for n in range(8))
    # After each error, what the lost answer may have given is given back first.
    assert store.calls.count("disown") >= 1
    assert store.calls[0] == "exchange"


async def test_claims_whose_answer_was_lost_are_given_back_and_done():
    store = Store(8)
    store.lose = 1
    await asyncio.wait_for(made(store, burst=True).run(), 5)
    assert sorted(job for job, _ in store.ended) == sorted(f"r-{n}" for n in range(8))


async def test_a_fault_of_our_own_costs_an_attempt_and_not_the_job():
    async def broken(claim):
        raise ZeroDivisionError

    store = Store(1)
    await asyncio.wait_for(made(store, broken, burst=True).run(), 5)
    assert store.ended == [("r-0", Again(5.0, 1, 0))]


async def test_a_drain_ends_what_runs_and_takes_nothing_more():
    release = asyncio.Event()
    running = asyncio.Event()

    async def slow(claim):
        running.set()
        await release.wait()
        return DONE

    store = Store(10)
    engine = made(store, slow, limit=2)
    task = asyncio.create_task(engine.run())
    await asyncio.wait_for(running.wait(), 5)
    engine.drain()
    release.set()
    await asyncio.wait_for(task, 5)
    completed = [job for job, outcome in store.ended if outcome == DONE]
    assert len(completed) == 2
    assert engine.state == "draining"


@pytest.mark.parametrize("death", [False, True])
async def test_what_is_handed_back_says_whether_the_server_died_under_it(death):
    running = asyncio.Event()

    async def slow(claim):
        running.set()
        await asyncio.sleep(60)

    store = Store(1)
    engine = made(store, slow, limit=1)
    task = asyncio.create_task(engine.run())
    await asyncio.wait_for(running.wait(), 5)
    engine.drain()
    assert engine.hand_back(death=death) == 1
    await asyncio.wait_for(task, 5)
    assert store.ended == [("r-0", HandedBack(death))]


async def test_one_job_is_cancelled_by_its_name_alone():
    async def slow(claim):
        await asyncio.sleep(60)

    store = Store(2)
    engine = made(store, slow, limit=2)
    task = asyncio.create_task(engine.run())
    await until(lambda: engine.in_flight == 2)
    assert not engine.cancel("r-9")
    assert engine.cancel("r-1")
    await until(lambda: store.ended)
    assert store.ended == [("r-1", HandedBack())]
    assert engine.in_flight == 1
    engine.drain()
    engine.hand_back()
    await asyncio.wait_for(task, 5)


async def test_beside_a_suspect_no_other_is_asked_for():
    store = Store(3, deaths=2)
    await asyncio.wait_for(made(store, limit=1, burst=True).run(), 5)
    assert store.suspects[0] == 1

    async def slow(claim):
        await asyncio.sleep(0.02)
        return DONE

    store = Store(1, deaths=2)
    await asyncio.wait_for(made(store, slow, limit=2, burst=True).run(), 5)
    assert 0 in store.suspects


async def test_windows_go_to_whoever_judges_them():
    seen = []

    async def look(windows):
        seen.append(windows)

    store = Store(1)
    store.windows = {"r": {"ok": 1}}
    await asyncio.wait_for(made(store, windows=look, burst=True).run(), 5)
    assert {"r": {"ok": 1}} in seen


async def test_a_result_that_comes_too_late_is_dropped_without_ado():
    store = Store(2)
    store.accept = False
    engine = made(store, burst=True)
    await asyncio.wait_for(engine.run(), 5)
    assert engine.held == {}
