"""The simulated scheduler: slots, the queue before them, and the count of busy slot-seconds."""

from __future__ import annotations

import asyncio

import pytest

from ops.simulator.occupancy import Occupancy
from ops.simulator.slots import Job, Outcome, Slots


def slots_of(limit: int, *, slowdown: float = 0.0) -> Slots:
    return Slots(limit, slowdown=slowdown, loop=asyncio.get_running_loop())


def job_of(rid: str, *, duration: float | None = None, gone: bool = False, poll: float = 0.0) -> Job:
    loop = asyncio.get_running_loop()
    return Job(
        rid,
        duration=duration,
        prompt_tokens=10,
        gone=lambda: gone,
        next_poll=loop.time() + poll,
        loop=loop,
    )


async def test_jobs_beyond_the_limit_wait_their_turn():
    slots = slots_of(2)
    jobs = [job_of(f"r{number}") for number in range(3)]
    for job in jobs:
        slots.submit(job)
    assert (slots.running, slots.waiting) == (2, 1)
    slots.abort(lambda rid: rid == "r0")
    assert (slots.running, slots.waiting) == (2, 0)
    assert jobs[2].begun.done()
    assert (slots.max_running, slots.max_waiting) == (2, 1)


async def test_jobs_end_after_their_duration():
    slots = slots_of(1)
    jobs = [job_of(f"r{number}", duration=0.0) for number in range(5)]
    for job in jobs:
        slots.submit(job)
    ended = await asyncio.gather(*(job.ended for job in jobs))
    assert ended == [Outcome.DONE] * 5
    assert slots.running == 0


async def test_abort_tells_running_from_waiting():
    slots = slots_of(1)
    running, waiting = job_of("a1"), job_of("a10")
    slots.submit(running)
    slots.submit(waiting)
    assert slots.abort(lambda rid: rid.startswith("a1")) == ["a10"]
    assert running.ended.result() is Outcome.ABORTED_RUNNING
    assert waiting.ended.result() is Outcome.ABORTED_WAITING
    assert (slots.running, slots.waiting) == (0, 0)


async def test_clients_that_left_are_seen_when_it_is_their_turn():
    slots = slots_of(2)
    early, late, there = job_of("a", gone=True), job_of("b", gone=True, poll=60), job_of("c")
    for job in (early, late, there):
        slots.submit(job)
    assert slots.drop_disconnected(4.0) == 1
    assert early.ended.result() is Outcome.DISCONNECTED
    assert (slots.running, slots.waiting) == (2, 0)
    assert slots.drop_disconnected(4.0) == 0


async def test_a_stuck_scheduler_ends_nothing_until_it_is_freed():
    slots = slots_of(2)
    slots.freeze(stuck=True)
    jobs = [job_of("a", duration=0.0), job_of("b", duration=0.0)]
    for job in jobs:
        slots.submit(job)
    await asyncio.sleep(0.02)
    assert slots.running == 2
    slots.freeze(stuck=False)
    assert [await job.ended for job in jobs] == [Outcome.DONE] * 2


async def test_dying_loses_every_job():
    slots = slots_of(1)
    jobs = [job_of("a"), job_of("b")]
    for job in jobs:
        slots.submit(job)
    slots.drop_all()
    assert [job.ended.result() for job in jobs] == [Outcome.LOST] * 2
    assert (slots.running, slots.waiting) == (0, 0)


async def test_resizing_lets_more_in_at_once():
    slots = slots_of(1)
    for number in range(4):
        slots.submit(job_of(f"r{number}"))
    slots.resize(3)
    assert (slots.running, slots.waiting, slots.limit) == (3, 1, 3)
    slots.resize(1)
    assert slots.running == 3


async def test_company_slows_a_slot():
    slots = slots_of(3, slowdown=0.5)
    jobs = [job_of(f"r{number}", duration=10.0) for number in range(3)]
    for job in jobs:
        slots.submit(job)
    assert [job.duration for job in jobs] == [10.0, 15.0, 20.0]
    slots.drop_all()


def test_occupancy_is_spread_over_the_seconds_it_covers():
    occupancy = Occupancy(2, 10.5)
    occupancy.change(1, 11.25)
    occupancy.change(2, 12.5)
    occupancy.change(0, 14.0)
    assert occupancy.timeline(15.5) == [0.0, 0.75, 1.5, 2.0, 0.0, 0.0]
    assert occupancy.full_at == 12.5


def test_occupancy_counts_whole_seconds_from_the_first_full_moment():
    occupancy = Occupancy(2, 0.0)
    occupancy.change(2, 0.5)
    occupancy.change(1, 2.5)
    report = occupancy.report(4.9)
    assert (report.seconds, report.busy_slot_seconds, report.slot_seconds) == (3, 4.5, 6.0)
    assert report.share == 0.75


def test_occupancy_between_two_moments():
    occupancy = Occupancy(4, 0.0)
    occupancy.change(4, 0.0)
    assert occupancy.report(9.5, since=2.0, until=6.0).share == 1.0
    assert occupancy.report(9.5, since=2.0, until=6.0).seconds == 4
    assert occupancy.report(9.5, since=6.2, until=6.9).share is None


def test_occupancy_knows_nothing_before_the_slots_were_full():
    occupancy = Occupancy(4, 0.0)
    occupancy.change(3, 1.0)
    assert occupancy.report(5.0).share is None


@pytest.mark.parametrize("slots", [1, 8])
def test_occupancy_follows_a_changed_limit(slots):
    occupancy = Occupancy(4, 0.0)
    occupancy.change(4, 0.0)
    occupancy.change(4, 2.0, slots=slots)
    assert occupancy.report(4.0, since=0.0).slot_seconds == 8 + 2 * slots
