"""A queue as producer and consumers leave it, for tests of what people look at."""

import json
from datetime import UTC, datetime

from redis import Redis
from rq import Queue, Worker
from rq.executions import Execution
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry
from rq.results import Result
from rq.serializers import JSONSerializer

PROMPT = "the secret prompt text"
REASON = "too_long: input (9000 tokens) is longer than the model's context length (8192 tokens)"


def queued(connection: Redis, first: int, count: int) -> list[str]:
    """Jobs `demo-<first>` and on, written as the producer writes them; returns their ids."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    ids = [f"demo-{unit}" for unit in range(first, first + count)]
    with connection.pipeline(transaction=False) as pipeline:
        pipeline.sadd("rq:queues", "rq:queue:completions")
        for unit, name in enumerate(ids, first):
            job = {"index": unit, "id": f"p{unit}", "messages": [{"role": "user", "content": PROMPT}], "v": 1}
            fields = {
                "status": "queued",
                "origin": "completions",
                "description": f"demo/p{unit}",
                "created_at": now,
                "enqueued_at": now,
                "timeout": "-1",
                "data": json.dumps(["consumers.generate", None, [], job]),
            }
            pipeline.hset(f"rq:job:{name}", mapping=fields)
        pipeline.rpush("rq:queue:completions", *ids)
        pipeline.execute()
    return ids


def fetch(connection: Redis, name: str) -> Job:
    connection.lrem("rq:queue:completions", 1, name)
    return Job.fetch(name, connection=connection, serializer=JSONSerializer)


def busy_worker(connection: Redis, names: list[str], worker_name: str = "consumer-1") -> Worker:
    """A registered worker with these jobs in flight at once."""
    queue = Queue("completions", connection=connection, serializer=JSONSerializer)
    worker = Worker([queue], connection=connection, name=worker_name, serializer=JSONSerializer)
    worker.register_birth()
    worker.set_state("busy")
    with connection.pipeline() as pipeline:
        for name in names:
            job = fetch(connection, name)
            job.set_status("started", pipeline=pipeline)
            Execution.create(job, 60, pipeline, worker_name=worker_name)
        pipeline.execute()
    return worker


def failed(connection: Redis, names: list[str]) -> None:
    """Dead letters: failed jobs with a reason."""
    registry = FailedJobRegistry("completions", connection=connection)
    for name in names:
        job = fetch(connection, name)
        with connection.pipeline() as pipeline:
            registry.add(job, ttl=1000, pipeline=pipeline)
            Result.create_failure(job, 1000, REASON, pipeline=pipeline)
            job.set_status("failed", pipeline=pipeline)
            pipeline.execute()


def finished(connection: Redis, names: list[str]) -> None:
    registry = FinishedJobRegistry("completions", connection=connection)
    for name in names:
        job = fetch(connection, name)
        job.set_status("finished")
        registry.add(job, ttl=1000)
