"""Fixtures that every tier shares: a real Redis-compatible server, an S3 API over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import redis
from moto.server import ThreadedMotoServer
from support.s3 import S3Server

from ops.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


# A shell starts what it puts in the background with Ctrl-C ignored, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes tells how busy the machine is.
hypothesis.settings.register_profile(
    "steady",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Before coverage files are summed up, drop those of processes that were killed while writing them."""
    result = yield
    if hasattr(session.config, "workerinput"):
        return result
    for file in Path.cwd().glob(".coverage.*"):
        try:
            with contextlib.closing(sqlite3.connect(file)) as data:
                data.execute("SELECT count(*) FROM meta, coverage_schema")
        except sqlite3.DatabaseError:
            file.unlink()
    return result


@pytest.fixture(scope="session")
def embedded_redis(tmp_path_factory) -> Iterator[EmbeddedRedis]:
    """One real server, with its append-only file, for the whole session; `redis_url` empties it."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(embedded_redis: EmbeddedRedis) -> str:
    """The URL of an empty server; it is started again if the test before killed it."""
    url = embedded_redis.start()
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.fixture(scope="session")
def _moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_server(_moto: str, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 API over HTTP with one new bucket; boto3's environment names it, for children too."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = S3Server(endpoint=_moto, bucket=f"bucket-{uuid.uuid4().hex[:12]}")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.client().create_bucket(Bucket=server.bucket)
    return server
