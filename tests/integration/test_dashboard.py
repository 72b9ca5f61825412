import importlib
import json
import pickle
import time

import pytest
import redis
import rq.serializers
from flask import Flask
from rq import Worker
from rq.exceptions import DeserializationError
from rq.job import Job
from support import queue_page
from support.queue_page import PROMPT, REASON
from support.wait import patient

from ops import dashboard

PAGES = (
    "/",
    "/0/view/queues",
    "/0/view/workers",
    "/0/view/jobs",
    "/0/data/queues.json",
    "/0/data/workers.json",
)
REPLACED = ("Worker", "get_queue_registry_jobs_count", "serialize_current_job")
FAR = 60_000


class Bomb:
    """What would be called if anything unpickled it."""

    def __reduce__(self):
        return (pytest.fail, ("something was unpickled",))


@pytest.fixture
def connection(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def pages(redis_url, monkeypatch):
    """The pages as `python -m ops.dashboard` serves them; what was replaced is put back after the test."""
    monkeypatch.setattr(rq.serializers, "PickleSerializer", rq.serializers.PickleSerializer)
    web = importlib.import_module("rq_dashboard.web")
    for name in REPLACED:
        monkeypatch.setattr(web, name, getattr(web, name))
    dashboard.repair()
    app = Flask("pages")
    app.config["RQ_DASHBOARD_REDIS_URL"] = redis_url
    web.setup_rq_connection(app)
    app.register_blueprint(web.blueprint)
    yield app.test_client()
    app.redis_conn.close()


def rows(pages, registry, page=1, per_page=8, order="asc"):
    answer = pages.get(f"/0/data/jobs/completions/{registry}/{per_page}/{order}/{page}.json")
    assert answer.status_code == 200
    return answer.json


def names(data):
    return [job["id"] for job in data["jobs"]]


def test_every_page_works_while_a_run_goes_on(pages, connection):
    queue_page.queued(connection, 0, 40)
    queue_page.busy_worker(connection, [f"demo-{unit}" for unit in range(4)])
    queue_page.failed(connection, ["demo-4", "demo-5"])
    queue_page.finished(connection, ["demo-6"])
    for path in PAGES:
        assert pages.get(path, follow_redirects=True).status_code == 200, path
    for registry in ("queued", "started", "finished", "failed", "deferred", "scheduled", "canceled"):
        for order in ("asc", "dsc"):
            data = rows(pages, registry, order=order)
            assert PROMPT not in json.dumps(data)
    for job in ("demo-0", "demo-4", "demo-6", "demo-20"):
        assert pages.get(f"/0/view/job/{job}").status_code == 200
        detail = pages.get(f"/0/data/job/{job}.json")
        assert detail.status_code == 200
        assert PROMPT not in detail.text
    (queue,) = pages.get("/0/data/queues.json").json["queues"]
    assert (queue["count"], queue["started_job_registry_count"], queue["failed_job_registry_count"]) == (
        33,
        4,
        2,
    )


def test_a_busy_worker_shows_its_job_and_not_the_prompt(pages, connection):
    queue_page.queued(connection, 0, 3)
    queue_page.busy_worker(connection, ["demo-1", "demo-2"])
    answer = pages.get("/0/data/workers.json")
    (worker,) = answer.json["workers"]
    assert worker["current_job"]["description"] == worker["current_job"]["call_string"] == "demo/p1"
    assert PROMPT not in answer.text


def test_a_worker_whose_job_has_just_gone_is_idle(pages, connection):
    queue_page.queued(connection, 0, 1)
    queue_page.busy_worker(connection, ["demo-0"])
    connection.delete("rq:job:demo-0")
    assert pages.get("/0/data/workers.json").json["workers"][0]["current_job"] == "idle"


def test_reasons_and_descriptions_can_be_read(pages, connection):
    queue_page.queued(connection, 0, 2)
    queue_page.failed(connection, ["demo-1"])
    (job,) = rows(pages, "failed")["jobs"]
    assert job["description"] == "demo/p1"
    assert job["exc_info"] == REASON


def test_a_failed_job_is_requeued_from_the_page(pages, connection):
    queue_page.queued(connection, 0, 3)
    queue_page.failed(connection, ["demo-1", "demo-2"])
    assert pages.post("/job/demo-1/requeue").json == {"status": "OK"}
    assert names(rows(pages, "queued")) == ["demo-0", "demo-1"]
    assert names(rows(pages, "failed")) == ["demo-2"]
    assert pages.post("/requeue/completions").json == {"status": "OK", "count": 1}
    assert Job.fetch("demo-2", connection=connection).get_status() == "queued"


def test_pages_follow_on_each_other_in_both_orders(pages, connection):
    ids = queue_page.queued(connection, 0, 20)
    shown = [name for page in (1, 2, 3) for name in names(rows(pages, "queued", page))]
    assert shown == ids
    shown = [name for page in (1, 2, 3) for name in names(rows(pages, "queued", page, order="dsc"))]
    assert shown == ids[::-1]
    queue_page.failed(connection, ids)
    shown = [name for page in (1, 2, 3) for name in names(rows(pages, "failed", page))]
    assert sorted(shown) == sorted(ids)


def test_a_far_page_costs_what_the_first_one_does(pages, connection):
    for first in range(0, FAR, 20_000):
        queue_page.queued(connection, first, 20_000)

    def calls(page):
        connection.config_resetstat()
        data = rows(pages, "queued", page)
        stats = connection.info("commandstats")
        return names(data), stats["cmdstat_hgetall"]["calls"], sum(stat["calls"] for stat in stats.values())

    near, near_jobs, near_calls = calls(1)
    far, far_jobs, far_calls = calls(FAR // 8)
    assert near == [f"demo-{unit}" for unit in range(8)]
    assert far == [f"demo-{unit}" for unit in range(FAR - 8, FAR)]
    assert (near_jobs, far_jobs) == (8, 8)
    assert abs(near_calls - far_calls) <= 4
    started = time.perf_counter()
    rows(pages, "queued", FAR // 8)
    assert time.perf_counter() - started < patient(1.0)


def test_looking_changes_nothing(pages, connection):
    queue_page.queued(connection, 0, 5)
    connection.delete("rq:job:demo-2")  # its job ended while somebody looks
    assert names(rows(pages, "queued")) == ["demo-0", "demo-1", "demo-3", "demo-4"]
    assert connection.llen("rq:queue:completions") == 5


def test_what_others_pickled_is_shown_and_never_unpickled(pages, connection):
    queue_page.queued(connection, 0, 1)
    bomb = pickle.dumps(Bomb())
    connection.hset("rq:job:demo-0", mapping={"data": bomb, "meta": bomb})
    connection.xadd("rq:results:demo-0", {"type": 1, "created_at": 0, "return_value": "gAVOLg=="})
    queue_page.busy_worker(connection, ["demo-0"])
    assert rows(pages, "started")["jobs"][0]["description"] == "demo/p0"
    assert pages.get("/0/data/job/demo-0.json").status_code == 200
    assert pages.get("/0/data/workers.json").status_code == 200


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("get", {}, 405),
        ("post", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("post", {"Origin": "http://elsewhere.example"}, 403),
        ("post", {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, 200),
        ("post", {"Origin": "http://localhost"}, 200),
        ("post", {}, 200),
    ],
)
def test_only_the_page_itself_may_change_anything(pages, connection, method, headers, status):
    queue_page.queued(connection, 0, 1)
    queue_page.failed(connection, ["demo-0"])
    assert getattr(pages, method)("/requeue/completions", headers=headers).status_code == status
    assert connection.llen("rq:queue:completions") == (status == 200)


def test_without_the_remedy_these_pages_break(redis_url, connection):
    """The day this fails, rq-dashboard or RQ has changed and the remedy can shrink."""
    queue_page.queued(connection, 0, 3)
    queue_page.busy_worker(connection, ["demo-0"])
    (worker,) = Worker.all(connection=connection)
    with pytest.raises(DeserializationError):
        worker.get_current_job().get_call_string()
