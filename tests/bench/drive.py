"""Runs one worker over a full queue, in a process of its own, and prints what that took as JSON.

`drive.py KIND`: `noop` is the whole consumer with nothing but the HTTP request taken out; `http` the whole
consumer; `simple` RQ's SimpleWorker on jobs that return nothing; `bare` an aiohttp loop without any queue.
The clock runs from the first job taken to the last one ended, so that no start-up is in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from random import Random
from typing import Any

import aiohttp
import msgspec
import redis
import uvloop
from harness import prompts, words
from rq import Queue, SimpleWorker

from common.records import Response, Usage
from consumers.client.health import Health, HealthState
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.outcome import Success
from consumers.worker import GenerationWorker


class NoRequest(InferenceClient):
    """The client with its requests taken out: every answer is there at once."""

    async def generate(self, request: Any, timeout_s: float) -> Success:
        self.asked = getattr(self, "asked", 0) + 1
        return ANSWERS[self.asked % len(ANSWERS)]

    async def probe(self, timeout_s: float = 10.0) -> Health:
        return Health(HealthState.READY)

    async def info(self, timeout_s: float = 10.0) -> ServerInfo:
        return ServerInfo(model="m")

    async def load(self, timeout_s: float = 10.0) -> None:
        return None


class NoopWorker(GenerationWorker):
    """The whole consumer but for the request."""

    client_class = NoRequest


def _answers(count: int) -> list[Success]:
    """Short answers, no two alike: equal ones are what the quality gate is there to stop."""
    random = Random(2)
    usage = Usage(prompt_tokens=300, completion_tokens=40)
    return [
        Success(
            response=Response(reasoning_content="", content=words(random, 300)),
            finish_reason="stop",
            usage=usage,
            model="m",
        )
        for _ in range(count)
    ]


ANSWERS: list[Success] = []


def noop(number: int) -> None:
    """What the peers' jobs do."""


def worker(kind: str, url: str, most: int | None) -> dict[str, float]:
    """Our consumer, until the queue is empty or it has done `most` jobs."""
    connection = redis.Redis.from_url(url)
    queue = Queue("completions", connection=connection)
    made = (NoopWorker if kind == "noop" else GenerationWorker)([queue], connection=connection)
    if kind == "noop":
        ANSWERS.extend(_answers(20_000))
    begun, cpu = time.perf_counter(), time.process_time()
    made.work(burst=True, max_jobs=most)
    took, spent = time.perf_counter() - begun, time.process_time() - cpu
    engine = made._engine
    assert engine is not None
    return {"jobs": engine.started, "s": took, "cpu_s": spent, "round_trips": engine.store.round_trips}


def simple(url: str) -> dict[str, float]:
    """RQ's own SimpleWorker, until the queue is empty."""
    connection = redis.Redis.from_url(url)
    queue = Queue("plain", connection=connection, serializer="json")
    jobs = queue.count
    made = SimpleWorker([queue], connection=connection, serializer="json")
    begun, cpu = time.perf_counter(), time.process_time()
    made.work(burst=True, logging_level="ERROR")
    return {"jobs": jobs, "s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}


async def bare(server: str, count: int, at_once: int) -> dict[str, float]:
    """The same requests and the parsing of their answers in one loop: a semaphore, no queue, nothing kept."""
    free = asyncio.Semaphore(at_once)
    url = f"{server}/v1/chat/completions"
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers={"Content-Type": "application/json"}
    ) as session:

        async def one(number: int, text: str) -> None:
            try:
                body = {
                    "rid": f"{number:032x}",
                    "model": "qwen3.6-27b",
                    "max_tokens": 4096,
                    "max_completion_tokens": 4096,
                    "separate_reasoning": True,
                    "return_spec_tokens_details": True,
                    "temperature": 0.6,
                    "top_p": 0.95,
                    "top_k": 20,
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "presence_penalty": 0.0,
                    "frequency_penalty": 0.0,
                    "chat_template_kwargs": {"enable_thinking": True},
                    "messages": [{"role": "user", "content": text}],
                }
                async with session.post(url, data=msgspec.json.encode(body)) as reply:
                    answer = msgspec.json.decode(await reply.read())
                assert answer["choices"][0]["message"]["content"] is not None
            finally:
                free.release()

        begun, cpu = time.perf_counter(), time.process_time()
        tasks = set()
        for number, text in enumerate(prompts(count)):
            await free.acquire()
            task = asyncio.create_task(one(number, text))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return {"jobs": count, "s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}


async def script(count: int, at_once: int, servers: list[str]) -> dict[str, float]:
    """What many write for themselves: one task a request, a semaphore a server, answers parsed."""
    todo = iter(prompts(count))
    figures = {"dry": 0.0, "longest": 0.0}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    json_type = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=json_type) as session:

        async def one(server: str, text: str, free: asyncio.Semaphore) -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4096}
            sent = time.monotonic()
            url = f"{server}/v1/chat/completions"
            async with session.post(url, data=msgspec.json.encode(body)) as reply:
                answer = msgspec.json.decode(await reply.read())
            assert answer["choices"][0]["message"]["content"] is not None
            figures["longest"] = max(figures["longest"], time.monotonic() - sent)
            free.release()

        async def serve(server: str) -> None:
            free = asyncio.Semaphore(at_once)
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await free.acquire()
                    text = next(todo, None)
                    if text is None:
                        break
                    figures["dry"] = time.time()
                    tasks.create_task(one(server, text, free))

        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(serve(server) for server in servers))
    took = time.perf_counter() - begun
    return {**figures, "ended": time.time(), "s": took, "cpu_s": time.process_time() - cpu}


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind in ("noop", "http"):
        print(json.dumps(worker(kind, rest[0], int(rest[1]) if rest[1:] else None)))
    elif kind == "simple":
        print(json.dumps(simple(rest[0])))
    elif kind == "script":
        print(json.dumps(uvloop.run(script(int(rest[0]), int(rest[1]), rest[2:]))))
    else:
        print(json.dumps(uvloop.run(bare(rest[0], int(rest[1]), int(rest[2])))))


if __name__ == "__main__":
    main()
