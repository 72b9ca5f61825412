import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support import queue_page
from support.browser import PROGRAM, Page
from support.need import require
from support.ports import free_ports
from support.wait import wait_for

SHOTS = Path(__file__).parents[2] / "out" / "screenshots"


def answers(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def connection(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def dashboard(redis_url):
    """The real command, as people start it; where it is."""
    require(PROGRAM, "chromium: apt-get install chromium")
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.dashboard", "--port", str(port), "--interval", "500"],
        env={**os.environ, "RQ_REDIS_URL": redis_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: answers(port), "the dashboard answers", 30)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def cell(text):
    return f"document.body.innerText.includes({text!r})"


async def test_people_see_the_queue_of_a_run_going_on(dashboard, connection):
    queue_page.queued(connection, 0, 60)
    queue_page.busy_worker(connection, [f"demo-{unit}" for unit in range(8)])
    queue_page.failed(connection, ["demo-8", "demo-9"])
    queue_page.finished(connection, ["demo-10", "demo-11"])
    async with Page() as page:
        await page.goto(f"{dashboard}/0/view/jobs/completions/queued/8/asc/1")
        await page.until(cell("demo/p12"), "queued jobs by run and id")
        shown = await page.run("document.body.innerText")
        assert "demo-12" in shown
        assert queue_page.PROMPT not in shown
        assert "Loading..." not in shown
        assert len(await page.screenshot(SHOTS / "dashboard-queued.png")) > 10_000

        await page.goto(f"{dashboard}/0/view/jobs/completions/started/8/asc/1")
        await page.until(cell("demo/p3"), "jobs in flight")
        await page.goto(f"{dashboard}/0/view/jobs/completions/finished/8/asc/1")
        await page.until(cell("demo/p11"), "finished jobs")

        await page.goto(f"{dashboard}/0/view/workers")
        await page.until(cell("demo/p0"), "the busy worker with its job")
        shown = await page.run("document.body.innerText")
        assert "consumer-1" in shown
        assert queue_page.PROMPT not in shown
        await page.screenshot(SHOTS / "dashboard-workers.png")

        await page.goto(f"{dashboard}/0/view/queues")
        await page.until(cell("completions"), "the overview")
        assert page.errors == []


async def test_a_failed_job_is_read_and_requeued_with_a_click(dashboard, connection):
    queue_page.queued(connection, 0, 4)
    queue_page.failed(connection, ["demo-2", "demo-3"])
    async with Page() as page:
        await page.goto(f"{dashboard}/0/view/jobs/completions/failed/8/asc/1")
        await page.until(cell("too_long: input (9000 tokens) is longer"), "the reason")
        await page.screenshot(SHOTS / "dashboard-failed.png")
        await page.run(
            "document.querySelector('tr[data-job-id=\"demo-2\"] [data-role=requeue-job-btn]').click()"
        )
        await page.until("!document.body.innerText.includes('demo/p2')", "the row leaves")
    assert connection.hget("rq:job:demo-2", "status") == b"queued"
    assert connection.lrange("rq:queue:completions", 0, -1) == [b"demo-0", b"demo-1", b"demo-2"]
    assert connection.zrange("rq:failed:completions", 0, -1) == [b"demo-3"]


async def test_the_last_page_of_a_long_queue_comes_up(dashboard, connection):
    queue_page.queued(connection, 0, 6000)
    async with Page(width=390, height=844) as page:
        await page.goto(f"{dashboard}/0/view/jobs/completions/queued/8/asc/750")
        await page.until(cell("demo/p5999"), "the last job", 10)
        await page.screenshot(SHOTS / "dashboard-far-page-phone.png")
