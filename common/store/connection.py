"""Connections to Redis, and what a Redis must be to be safe to use.

redis-py repeats commands by itself after a connection error, so a script that is not idempotent could run
twice unseen. Our clients have that switched off; callers repeat what is safe to repeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import hiredis
import msgspec
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from common.errors import QueueError, UnsafeRedisError
from common.settings import redact_url

SOCKET_TIMEOUT: Final = 20.0
CONNECT_TIMEOUT: Final = 5.0
LEAST_VERSION: Final = (7, 0)


class RedisUnavailableError(QueueError):
    """Redis cannot be reached or does not answer now; the same call may succeed later."""


class RedisFullError(QueueError):
    """Redis has reached its `maxmemory` and takes no more data for now."""


class RedisFacts(msgspec.Struct, frozen=True):
    """What one Redis says of itself. Memory in bytes; `max_memory` 0 is no limit.

    `system_memory` is that of its machine, 0 where it is not told.
    """

    version: str
    server: str
    run_id: str
    policy: str | None
    aof: bool
    used_memory: int
    max_memory: int
    listpack_value: int | None
    system_memory: int = 0


def version_tuple(version: str) -> tuple[int, ...]:
    """`7.2.4` as numbers; parts that are not numbers count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn redis-py's errors into ours, naming what was asked for.

    Raises:
        RedisUnavailableError: no connection, no answer in time, still loading, or the log-in was refused.
        RedisFullError: `maxmemory` is reached.
        QueueError: anything else Redis refused.
    """
    try:
        yield
    except OutOfMemoryError as error:
        raise RedisFullError(f"Redis is full (maxmemory), while asked to {what}") from error
    except (AuthenticationError, AuthorizationError) as error:
        # Not for good: passwords are rotated, and a consumer that waits loses nothing.
        raise RedisUnavailableError(
            f"Redis refused the log-in, while asked to {what}: {str(error)[:200]} "
            "Correct the user and the password in RQ_REDIS_URL or --redis"
        ) from error
    except (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError, OSError) as error:
        raise RedisUnavailableError(
            f"Redis did not answer, while asked to {what}: {_brief(error)}"
        ) from error
    except RedisError as error:
        raise QueueError(f"Redis refused to {what}: {_brief(error)}") from error


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def client_from_url(url: str) -> redis.Redis:
    """A synchronous client that never repeats a command by itself.

    Raises:
        QueueError: the URL is not one of Redis.
    """
    try:
        return redis.Redis.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            health_check_interval=0,
        )
    except ValueError as error:
        raise QueueError(f"{redact_url(url)} is not a Redis URL: {error}") from error


class _Packing:
    """Packs commands in C, as redis-py's synchronous connections do: a quarter of a consumer's time else."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """One command in Redis's protocol; the first word may be two, as in `CONFIG GET`."""
        name, *rest = args
        return [hiredis.pack_command((*name.encode().split(), *rest))]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Many commands, as one piece."""
        return [b"".join(piece for command in commands for piece in self.pack_command(*command))]


class _Connection(_Packing, redis.asyncio.Connection):
    """Over TCP."""


class _SSLConnection(_Packing, redis.asyncio.SSLConnection):
    """Over TLS."""


class _SocketConnection(_Packing, redis.asyncio.UnixDomainSocketConnection):
    """Over a socket file."""


def async_client(like: redis.Redis) -> redis.asyncio.Redis:
    """An asyncio client to the same Redis as `like`, with the same credentials and TLS settings."""
    pool = like.connection_pool
    kwargs: dict[str, Any] = dict(pool.connection_kwargs)
    for name in list(kwargs):
        if name not in _ASYNC_KWARGS:
            del kwargs[name]
    kwargs.update(
        retry=AsyncRetry(NoBackoff(), 0),
        socket_timeout=SOCKET_TIMEOUT,
        socket_connect_timeout=CONNECT_TIMEOUT,
    )
    cls: Any = _Connection
    if issubclass(pool.connection_class, redis.SSLConnection):
        cls = _SSLConnection
    elif issubclass(pool.connection_class, redis.UnixDomainSocketConnection):
        cls = _SocketConnection
    return redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(connection_class=cls, **kwargs))


_ASYNC_KWARGS: Final = frozenset(
    {
        "host",
        "port",
        "db",
        "username",
        "password",
        "path",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_cert_reqs",
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_check_hostname",
    }
)


def redis_facts(client: redis.Redis) -> RedisFacts:
    """Ask Redis for its version, memory and persistence.

    Managed Redis services may forbid `CONFIG GET`; what only it knows is then `None`.
    """
    with translated("describe itself"):
        info: dict[str, Any] = client.info()
        listpack: int | None = None
        policy: str | None = info.get("maxmemory_policy")
        with contextlib.suppress(redis.exceptions.ResponseError):
            config: Any = client.config_get("hash-max-listpack-value")
            value = config.get("hash-max-listpack-value")
            listpack = int(value) if value is not None else None
    valkey = info.get("valkey_version")
    return RedisFacts(
        version=str(info.get("redis_version", "0")) if not valkey else str(valkey),
        server="Valkey" if valkey else "Redis",
        run_id=str(info.get("run_id", "")),
        policy=policy,
        aof=bool(int(info.get("aof_enabled", 0))),
        used_memory=int(info.get("used_memory", 0)),
        max_memory=int(info.get("maxmemory", 0)),
        listpack_value=listpack,
        system_memory=int(info.get("total_system_memory", 0)),
    )


def check_safe(facts: RedisFacts) -> None:
    """Refuse a Redis that would lose jobs.

    Raises:
        UnsafeRedisError: it evicts keys when full, or is too old for our scripts.
    """
    if version_tuple(facts.version) < LEAST_VERSION:
        raise UnsafeRedisError(
            f"Redis {facts.version} is too old: promptmill needs 7.0 or newer, best 7.2 or newer"
        )
    if facts.policy not in (None, "noeviction"):
        raise UnsafeRedisError(
            f"this Redis evicts keys when full (maxmemory-policy {facts.policy}), which loses jobs: "
            "run `redis-cli CONFIG SET maxmemory-policy noeviction`, and set it in redis.conf too"
        )
