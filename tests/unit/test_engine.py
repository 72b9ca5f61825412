"""The engine with Redis and the server taken out: what is claimed, started ahead, and given back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from common.records import Verdict
from common.store.claims import Claim, ClaimReply, Completed, FinishReply, HandedBack
from consumers.engine import Engine, Limits

DONE = Completed(b"{}", Verdict.OK, 1, "p")


class Store:
    """A queue of `jobs`; remembers what came back."""

    def __init__(self, jobs: int, *, state: str = "ok") -> None:
        self.left = [f"r-{n}" for n in range(jobs)]
        self.state = state
        self.ended: list[tuple[str, object]] = []
        self.wants: list[int] = []
        self.most_held = 0
        self.held = 0

    async def exchange(self, ended, *, want, prefix, suspects):
        await asyncio.sleep(0.002)
        for item in ended:
            self.ended.append((item.claim.job, item.outcome))
            if isinstance(item.outcome, HandedBack):
                self.left.insert(0, item.claim.job)
        taken, self.left = self.left[: max(want, 0)], self.left[max(want, 0) :]
        self.wants.append(want)
        self.held += len(taken) - len(ended)
        self.most_held = max(self.most_held, self.held)
        claims = [Claim(job, prefix + job, b"{}", 0, 0, 0) for job in taken]
        reply = ClaimReply(self.state, claims, len(self.left), 0) if want > 0 else None
        return FinishReply([True] * len(ended), {}), reply


class Server:
    """Jobs that take `for_s`; knows how many ran at once."""

    def __init__(self, for_s: float = 0.0) -> None:
        self.for_s = for_s
        self.running = self.most = 0
        self.asked: list[str] = []

    async def __call__(self, claim: Claim) -> Completed:
        self.running += 1
        self.asked.append(claim.job)
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.for_s)
        finally:
            self.running -= 1
        return DONE


async def until(true) -> None:
    while not true():  # noqa: ASYNC110  # the engine has no event for every state
        await asyncio.sleep(0)


def engine_of(store: Store, server: Server, limit: int, **limits) -> tuple[Engine, SimpleNamespace]:
    gate = SimpleNamespace(limit=limit)
    return Engine(store, gate, server, limits=Limits(**limits)), gate


async def test_every_job_ends_once_and_never_more_run_than_the_limit():
    store, server = Store(500), Server(0.001)
    engine, _ = engine_of(store, server, 8, burst=True)
    await engine.run()
    assert sorted(job for job, _ in store.ended) == sorted(f"r-{n}" for n in range(500))
    assert all(outcome is DONE for _, outcome in store.ended)
    assert server.most == 8
    assert not engine.held


async def test_jobs_are_claimed_ahead_of_need_while_the_queue_is_deep():
    store, server = Store(500), Server(0.001)
    engine, _ = engine_of(store, server, 8, burst=True)
    await engine.run()
    assert 8 < store.most_held <= 3 * 8


async def test_the_last_jobs_are_not_claimed_ahead():
    store, server = Store(30), Server(0.001)
    engine, _ = engine_of(store, server, 8, burst=True)
    await engine.run()
    assert store.most_held <= 2 * 8
    assert len(server.asked) == 30


async def test_a_drain_gives_back_what_was_only_claimed_ahead():
    store, server = Store(500), Server(0.01)
    engine, _ = engine_of(store, server, 8)
    working = asyncio.create_task(engine.run())
    await until(lambda: engine._spare)
    running = engine.in_flight
    engine.drain()
    asked = len(server.asked)
    await working
    assert len(server.asked) <= asked + running
    back = [job for job, outcome in store.ended if isinstance(outcome, HandedBack)]
    assert back
    assert not set(back) & set(server.asked)
    assert len(store.left) + len(store.ended) - len(back) == 500


async def test_a_closed_gate_gives_back_what_was_only_claimed_ahead():
    store, server = Store(500), Server(0.01)
    engine, gate = engine_of(store, server, 8)
    working = asyncio.create_task(engine.run())
    await until(lambda: engine._spare)
    gate.limit = 0
    engine.wake()
    await until(lambda: not engine.held)
    assert len(store.left) + sum(outcome is DONE for _, outcome in store.ended) == 500
    engine.drain()
    await working


async def test_a_job_claimed_ahead_can_be_stopped_by_name():
    store, server = Store(500), Server(0.01)
    engine, _ = engine_of(store, server, 8)
    working = asyncio.create_task(engine.run())
    await until(lambda: engine._spare)
    name = engine._spare[-1].job
    assert engine.cancel(name)
    assert not engine.cancel("r-none")
    engine.drain()
    await working
    assert (name, HandedBack()) in store.ended


async def test_jobs_handed_back_before_their_first_step_are_not_lost():
    store, server = Store(40), Server(0.01)
    engine, _ = engine_of(store, server, 8)
    start = engine._start
    engine._start = lambda reply, want: (start(reply, want), engine.drain(), engine.hand_back())
    await asyncio.wait_for(engine.run(), 5)
    assert not server.asked
    assert len(store.left) == 40


async def test_jobs_handed_back_are_no_reason_to_claim_ahead():
    store, gone = Store(500), asyncio.Event()

    async def perform(claim: Claim) -> Completed:
        await (gone if claim.job == "r-3" else asyncio.Event()).wait()
        return DONE

    engine = Engine(store, SimpleNamespace(limit=8), perform)
    working = asyncio.create_task(engine.run())
    await until(lambda: engine.in_flight == 8)
    assert engine.hand_back() == 8
    await until(lambda: len(store.ended) == 8 and engine.in_flight == 8)
    gone.set()
    await until(lambda: ("r-3", DONE) in store.ended and engine.in_flight == 8)
    assert store.wants == [8, 8, 1]
    engine.drain()
    engine.hand_back()
    await working


async def test_what_ended_is_sent_while_the_next_jobs_are_worked_on():
    store, server = Store(2000), Server()
    engine, _ = engine_of(store, server, 64, burst=True)
    beside: list[int] = []
    exchange = store.exchange

    async def watched(ended, **more):
        asked = len(server.asked)
        reply = await exchange(ended, **more)
        beside.append(len(server.asked) - asked)
        return reply

    store.exchange = watched
    await engine.run()
    # All but the first jobs and the last ones, which are not claimed ahead.
    assert sum(beside) > len(server.asked) / 2


async def test_an_idle_server_is_given_no_more_than_asked_by_max_jobs():
    store, server = Store(500), Server()
    engine, _ = engine_of(store, server, 8, max_jobs=20)
    await engine.run()
    assert len(server.asked) == 20
    assert len(store.ended) == 20
