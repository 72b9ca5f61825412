"""Finding things out: servers, Redis and the output, each within a time limit."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from common.errors import PromptmillError, ServerError, StorageError
from common.settings import GenerationSettings
from common.storage import StorageReport, open_storage, probe
from common.storage.base import CreateOnce
from common.store.connection import RedisFacts, client_from_url, redis_facts
from consumers.client.http import MODELS_PATH, InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.transport import Reply
from ops.preflight.ask import CANARY, ask, limited
from ops.preflight.values import Answer, ServerFacts

T = TypeVar("T")

REDIS_S: Final = 10.0
OUTPUT_S: Final = 45.0

_REFUSED: Final = (401, 403)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much time each thing gets, in seconds, and the canary's tokens."""

    probe_s: float
    info_s: float
    canary_s: float
    canary_tokens: int
    survey_s: float


FULL: Final = Limits(probe_s=25.0, info_s=20.0, canary_s=90.0, canary_tokens=2048, survey_s=2.0)
QUICK: Final = Limits(probe_s=5.0, info_s=8.0, canary_s=20.0, canary_tokens=256, survey_s=0.5)


async def look(client: InferenceClient, generation: GenerationSettings, limits: Limits) -> ServerFacts:
    """Find out about one server; whatever fails is in the facts."""
    health = await client.probe(timeout_s=limits.probe_s)
    if not health.ready:
        return ServerFacts(url=client.url, health=health)
    reply = await client.fetch("GET", MODELS_PATH, timeout_s=limits.probe_s)
    if isinstance(reply, Reply) and reply.status in _REFUSED:
        words = f"it refuses the API key (HTTP {reply.status})"
        return ServerFacts(url=client.url, health=health, fault=words, refused_key=True)
    try:
        async with asyncio.timeout(limits.info_s):
            info = await client.info(timeout_s=limits.info_s / 2)
    except ServerError as error:
        return ServerFacts(url=client.url, health=health, fault=str(error))
    except TimeoutError:
        words = f"it did not tell about itself within {limits.info_s:.0f} s: its scheduler may be stuck"
        return ServerFacts(url=client.url, health=health, fault=words)
    canary = None if limits is QUICK and is_full(info) else await _canary(client, info, generation, limits)
    return ServerFacts(url=client.url, health=health, info=info, canary=canary)


def is_full(info: ServerInfo) -> bool:
    """Whether all that it can run is running, so that one more request would only wait."""
    running = info.load.running if info.load else None
    return bool(info.effective_running and running and running >= info.effective_running)


async def _canary(
    client: InferenceClient, info: ServerInfo, generation: GenerationSettings, limits: Limits
) -> Answer:
    room = (info.context_length or 2 * limits.canary_tokens) // 2
    settings = limited(generation, max(1, min(limits.canary_tokens, room)))
    return await ask(client, info, CANARY, settings, timeout_s=limits.canary_s)


async def redis_of(url: str) -> RedisFacts | str:
    """What a Redis says of itself, or why it says nothing."""

    def find_out() -> RedisFacts:
        with client_from_url(url) as client:
            return redis_facts(client)

    try:
        return await in_thread(find_out, REDIS_S)
    except PromptmillError as error:
        return str(error)
    except TimeoutError:
        return f"Redis did not answer within {REDIS_S:.0f} s"


async def output_of(url: str) -> StorageReport:
    """What trying the output out showed."""
    try:
        return await in_thread(lambda: probe(open_storage(url)), OUTPUT_S)
    except (StorageError, TimeoutError) as error:
        words = str(error) or f"{url} did not answer within {OUTPUT_S:.0f} s"
        return StorageReport(
            url=url,
            writable=False,
            readable=False,
            listable=False,
            create_once=CreateOnce.UNKNOWN,
            problems=(words,),
        )


def free_bytes(folder: Path) -> int:
    """The room left on the disk of a folder, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    return shutil.disk_usage(there).free


async def in_thread(work: Callable[[], T], timeout_s: float) -> T:
    """Do blocking work in a thread of its own, which is left behind when the time is over.

    Raises:
        TimeoutError: the time was over.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # without an error it is a T

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:  # noqa: BLE001  # raised again where it is awaited
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="preflight", daemon=True).start()
    return await asyncio.wait_for(done, timeout_s)
