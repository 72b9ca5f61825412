"""Many deadlines on one timer, each as `asyncio.timeout_at` would keep it."""

from __future__ import annotations

import asyncio

import pytest
from support.both_loops import on_both_loops

from consumers.client.deadline import Deadlines

LONG_S = 60.0


async def wait(deadlines: Deadlines, limit_s: float, work_s: float = LONG_S) -> str:
    """Sleep under a deadline; how it ended."""
    try:
        with deadlines.at(asyncio.get_running_loop().time() + limit_s):
            await asyncio.sleep(work_s)
    except TimeoutError:
        return "late"
    return "done"


@on_both_loops
async def test_each_ends_at_its_own_time_in_whatever_order_they_began() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()
    ended: list[float] = []

    async def one(limit_s: float) -> None:
        assert await wait(deadlines, limit_s) == "late"
        ended.append(limit_s)

    begun = loop.time()
    await asyncio.gather(one(0.15), one(0.05), one(0.1), one(-1.0))
    assert ended == [-1.0, 0.05, 0.1, 0.15]
    assert loop.time() - begun >= 0.14


@on_both_loops
async def test_the_timer_of_one_that_is_done_serves_the_next() -> None:
    deadlines = Deadlines()
    assert await wait(deadlines, 0.05, work_s=0.0) == "done"
    assert await wait(deadlines, 0.1) == "late"
    assert await wait(deadlines, 0.1, work_s=0.0) == "done"
    await asyncio.sleep(0.12)
    assert await wait(deadlines, 0.01) == "late"


@on_both_loops
async def test_a_deadline_that_is_missed_leaves_the_task_as_it_was() -> None:
    deadlines = Deadlines()
    assert await wait(deadlines, 0.01) == "late"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@on_both_loops
async def test_cancelling_goes_on_with_its_own_word() -> None:
    deadlines = Deadlines()
    task = asyncio.create_task(wait(deadlines, LONG_S))
    await asyncio.sleep(0)
    task.cancel("death")
    with pytest.raises(asyncio.CancelledError, match="death"):
        await task


@on_both_loops
async def test_somebody_who_cancels_at_the_same_moment_wins() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines()

    async def work() -> None:
        with deadlines.at(loop.time() - 1):
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    loop.call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@on_both_loops
async def test_an_error_within_is_not_covered() -> None:
    deadlines = Deadlines()
    with pytest.raises(ValueError, match="mine"), deadlines.at(asyncio.get_running_loop().time() + LONG_S):
        raise ValueError("mine")
