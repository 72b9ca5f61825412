"""The Lua scripts of `common/lua`, loaded from the package and named by file.

A script's file may begin with `#!lua flags=...`; `lib.lua` is put between that line and the body.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from common import crashpoints

NAMES: Final = (
    "adopt",
    "admit",
    "balance",
    "claim",
    "commit",
    "create_run",
    "disown",
    "finish",
    "heartbeat",
    "lease",
    "pause",
    "readmit",
    "reap",
    "recount",
    "release_lease",
    "restore",
    "resume",
    "retire",
    "revive",
    "seal",
)


class Script(NamedTuple):
    """One script: its text as Redis gets it, and the SHA-1 Redis knows it by."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of that name."""
    folder = files("common") / "lua"
    body = (folder / f"{name}.lua").read_text(encoding="utf-8")
    library = (folder / "lib.lua").read_text(encoding="utf-8")
    shebang, _, rest = body.partition("\n")
    text = f"{shebang}\n{library}\n{rest}"
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def run_script(client: redis.Redis, name: str, args: list[Any]) -> Any:
    """Run a script, loading it first if this Redis does not know it yet."""
    wanted = script(name)
    with crashpoints.point(f"script.{name}"):
        try:
            return client.evalsha(wanted.sha, 0, *args)
        except NoScriptError:
            return client.eval(wanted.text, 0, *args)


def run_script_to_disk(client: redis.Redis, name: str, args: list[Any], wait_ms: int) -> tuple[Any, bool]:
    """Run a script, and wait for this Redis's disk to have what it wrote (`WAITAOF`).

    Returns its reply, and whether the disk had it within the time: true where Redis has no such word, for
    there is nothing to wait for. Both go to Redis as one, since a wait covers the writes of its connection.
    """
    wanted = script(name)
    reply: Any = None
    with crashpoints.point(f"script.{name}"):
        for call, what in (("EVALSHA", wanted.sha), ("EVAL", wanted.text)):
            pipe: Any
            with client.pipeline(transaction=False) as pipe:
                pipe.execute_command(call, what, 0, *args)
                pipe.execute_command("WAITAOF", 1, 0, wait_ms)
                reply, synced = pipe.execute(raise_on_error=False)
            if not isinstance(reply, NoScriptError):
                break
    if isinstance(reply, Exception):
        raise reply
    if isinstance(synced, ResponseError):  # no append-only file, or a Redis before 7.2
        return reply, True
    if isinstance(synced, Exception):
        raise synced
    return reply, int(synced[0]) >= 1


async def run_script_async(client: redis.asyncio.Redis, name: str, args: list[Any]) -> Any:
    """Run a script on an asyncio client, loading it first if this Redis does not know it yet."""
    wanted = script(name)
    anyhow: Any = client  # redis-py types the replies of both its clients as one
    with crashpoints.point(f"script.{name}"):
        try:
            return await anyhow.evalsha(wanted.sha, 0, *args)
        except NoScriptError:
            return await anyhow.eval(wanted.text, 0, *args)
