"""rq-dashboard over a long queue of JSON jobs: `python -m ops.dashboard`, with rq-dashboard's own options.

rq-dashboard 0.9 reads jobs as pickle wherever it names no serializer, fetches every row up to the page it
shows, drops a list entry whose job ended while it looked, fails while a worker's job ends, and prints
arguments, which are prompts here. A few of its names are replaced in this process; the package stays as it
is. It listens on loopback unless told otherwise, and uses `RQ_REDIS_URL` unless given a Redis.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import rq.serializers
from rq import Queue, Worker
from rq.job import Job
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)
from rq.serializers import JSONSerializer
from rq.utils import as_text

from common.settings import redis_url

if TYPE_CHECKING:
    from redis import Redis
    from rq.registry import BaseRegistry

MOST_ROWS: Final = 200
"""Jobs on one page at most: what the page itself offers."""

_REGISTRIES: Final[dict[str, type[BaseRegistry]]] = {
    "failed": FailedJobRegistry,
    "deferred": DeferredJobRegistry,
    "started": StartedJobRegistry,
    "finished": FinishedJobRegistry,
    "scheduled": ScheduledJobRegistry,
    "canceled": CanceledJobRegistry,
}


class ReadableJSON(JSONSerializer):
    """RQ's JSON, with a placeholder for what other programs have pickled: it is never unpickled."""

    @staticmethod
    def loads(s: bytes, *args: Any, **kwargs: Any) -> Any:
        """Decode JSON, or say that it is none."""
        try:
            return JSONSerializer.loads(s, *args, **kwargs)  # type: ignore[no-untyped-call]  # RQ has no types here
        except ValueError:
            return "(not JSON)"


class _Worker(Worker):
    """A worker to look at: of its many jobs at once it shows one, the same as long as that runs."""

    def get_current_job(self) -> Job | None:
        """The job it shows, if that is still there."""
        running = sorted(as_text(member) for member in self.connection.smembers(self.executions_key))
        ids = [member.rpartition(":")[0] for member in running[:1]]
        return next(iter(Job.fetch_many(ids, connection=self.connection, serializer=ReadableJSON)), None)


def main() -> None:
    """Start rq-dashboard, repaired."""
    try:
        repair()
        cli = import_module("rq_dashboard.cli")
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install 'promptmill[dashboard]'")
    defaults = {"bind": "127.0.0.1", "redis_url": [redis_url()]}
    cli.run(auto_envvar_prefix="RQ_DASHBOARD", default_map=defaults)


def repair() -> Any:
    """Replace in this process what fails; returns rq-dashboard's module of pages."""
    rq.serializers.PickleSerializer = ReadableJSON  # type: ignore[assignment]  # the default of all of RQ
    web: Any = import_module("rq_dashboard.web")
    web.config.serializer = ReadableJSON
    web.Worker = _Worker
    web.get_queue_registry_jobs_count = _page
    web.serialize_current_job = _current_job
    if _refuse_forged not in web.blueprint.before_request_funcs.get(None, []):
        web.blueprint.before_request(_refuse_forged)
    return web


def window(total: int, offset: int, rows: int, order: str) -> tuple[int, int]:
    """First and last position, inclusive, of the rows to show; last is before first when there are none.

    `offset` counts from the end when `order` is `dsc`.
    """
    rows = min(max(rows, 0), MOST_ROWS)
    if order == "dsc":
        last = total - 1 - offset
        return max(0, last - rows + 1), last
    return offset, min(offset + rows, total) - 1


def _page(  # noqa: PLR0917  # the shape of what it replaces
    queue_name: str, registry_name: str, offset: int, per_page: int, order: str, connection: Redis
) -> tuple[int, list[dict[str, Any]]]:
    """One page of jobs and how many there are, at a cost that does not depend on how far the page is."""
    web = import_module("rq_dashboard.web")
    queue = Queue(queue_name, serializer=ReadableJSON, connection=connection)
    registry = None
    if registry_name in _REGISTRIES:
        registry = _REGISTRIES[registry_name](queue_name, connection=connection, serializer=ReadableJSON)
    total = queue.count if registry is None else registry.get_job_count(cleanup=False)
    first, last = window(total, offset, per_page, order)
    if last < first or first < 0:
        return total, []
    if registry is None:
        ids = queue.get_job_ids(first, last - first + 1)
    else:
        ids = registry.get_job_ids(first, last, cleanup=False)
    if order == "dsc":
        ids.reverse()
    jobs = Job.fetch_many(ids, connection=connection, serializer=ReadableJSON)
    return total, [web.serialize_job(job) for job in jobs if job is not None]


def _current_job(job: Job | None) -> Any:
    """What a worker does now, by the job's description: its arguments hold the prompt."""
    if job is None:
        return "idle"
    created = job.created_at.isoformat() if job.created_at else None
    return {
        "job_id": job.id,
        "description": job.description,
        "created_at": created,
        "call_string": job.description,
    }


def _refuse_forged() -> tuple[str, int] | None:
    """Let nothing change on a mere link, nor by a page of another site that the browser has open."""
    from flask import request  # noqa: PLC0415  # comes with the optional extra

    if request.method in {"GET", "HEAD", "OPTIONS"}:
        if request.endpoint == "rq_dashboard.requeue_all":
            return "Use the page's button: a link may not requeue jobs.", 405
        return None
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    foreign = urlsplit(origin).netloc != request.host if site is None and origin else False
    if foreign or site not in {None, "same-origin", "none"}:
        return "This request comes from another site.", 403
    return None


if __name__ == "__main__":
    main()
