"""What a consumer asks of Redis: claim jobs, end them, keep claims alive. Asyncio, few round trips.

`exchange` sends everything that ended and asks for new jobs in one round trip; it is the hot path.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
import zlib
from typing import Any, Final

import msgspec
import redis.asyncio
from redis.exceptions import NoScriptError

from common import crashpoints, keys
from common.jobs import MAX_JOB_BYTES
from common.records import DeadLetter, DeadReason, Verdict
from common.settings import RunSettings
from common.store.connection import translated
from common.store.runs import REAP_MOST, iso_now
from common.store.scripts import run_script_async, script
from common.timing import Timing, timing

CLAIM_TTL_S: Final = Timing().claim_ttl_s
"""A claim without a heartbeat for this long is abandoned, where the environment does not say otherwise."""

LOOKS_PER_CLAIM: Final = 4096

RESULTS_LIMIT: Final = 20_000
RESULTS_BYTES: Final = 256 * 1024 * 1024
"""Completions of one run that may wait for the collector, by number and bytes; then consumers pause."""

_SETTINGS = msgspec.json.Decoder(RunSettings)


def rq_failure(text: str) -> bytes:
    """An exception text as RQ's result stream holds it: zlib, then base64."""
    return base64.b64encode(zlib.compress(text.encode()))


_FOREIGN: Final = rq_failure(
    "This job was not made by promptmill's producer for a run in this Redis, so it was not run. "
    "The queue `completions` takes jobs from `producer enqueue` only."
)


class Claim(msgspec.Struct, frozen=True):
    """One job held by this consumer. `data` is empty when the job is too large to be one of ours."""

    job: str
    execution: str
    data: bytes
    attempts: int
    deaths: int
    tries: int


class Completed(msgspec.Struct, frozen=True):
    """A job ended with a completion: its record line, verdict, output tokens and prompt id."""

    line: bytes
    verdict: Verdict
    output_tokens: int
    id: str


class Dead(msgspec.Struct, frozen=True):
    """A job ended as a dead letter; `verdict` where a completion was judged and rejected."""

    letter: DeadLetter
    verdict: Verdict | None = None


class Again(msgspec.Struct, frozen=True):
    """A job is to run again after `delay_s`, with these counts of failed attempts and of quality retries.

    `verdict` and `id` where a completion was judged and is made again.
    """

    delay_s: float
    attempts: int
    tries: int
    verdict: Verdict | None = None
    id: str = ""


class HandedBack(msgspec.Struct, frozen=True):
    """A job goes back to the head of the queue; `death` when its server died under it."""

    death: bool = False


Outcome = Completed | Dead | Again | HandedBack


class Ended(msgspec.Struct, frozen=True):
    """A claim and how it ended."""

    claim: Claim
    outcome: Outcome


class ClaimReply(msgspec.Struct, frozen=True):
    """What a claim brought. `state`: ok, suspended, paused (by the guard) or full (results wait for S3)."""

    state: str
    claims: list[Claim]
    queued: int
    scheduled: int


class FinishReply(msgspec.Struct, frozen=True):
    """Per item whether it counted; the guard's window by run: counts by `verdict` and `verdict server`."""

    accepted: list[bool]
    windows: dict[str, dict[str, int]]


class ClaimStore:
    """The asyncio side of the store, for one consumer."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        worker: str,
        server: str,
        window: int = 500,
        results_limit: int = RESULTS_LIMIT,
        results_bytes: int = RESULTS_BYTES,
        times: Timing | None = None,
    ) -> None:
        """Use `client`, which must not repeat commands by itself (see `async_client`)."""
        self.client: Any = client
        self.worker = worker
        self.server = server
        self.window = window
        self.results_limit = results_limit
        self.results_bytes = results_bytes
        self.times = times or timing()
        self.round_trips = 0
        self._seen: set[str] = set()  # executions that a heartbeat may have made visible
        self._settings: dict[str, RunSettings] = {}
        self._reading = asyncio.Lock()

    async def exchange(
        self, ended: list[Ended], *, want: int, prefix: str, suspects: int
    ) -> tuple[FinishReply, ClaimReply | None]:
        """End jobs and claim up to `want` new ones in one round trip.

        `prefix` must be new for every claim that is not a repetition; it makes execution ids unique.

        Raises:
            RedisUnavailableError: no answer. Ending again is safe; `disown` gives back what was claimed.
        """
        calls: list[tuple[str, list[Any]]] = []
        if ended:
            calls.append(("finish", self._finish_args(ended)))
        if want > 0:
            ttl = self.times.claim_ttl_s
            args: list[Any] = [self.worker, self.server, want, prefix, ttl, iso_now(), suspects]
            args += (self.results_limit, self.results_bytes, MAX_JOB_BYTES, _FOREIGN, LOOKS_PER_CLAIM)
            calls.append(("claim", args))
        replies = await self._call(calls)
        self._seen.difference_update(item.claim.execution for item in ended)
        finish = _finish_reply(replies.pop(0)) if ended else FinishReply([], {})
        return finish, _claim_reply(replies.pop(0)) if want > 0 else None

    async def _call(self, calls: list[tuple[str, list[Any]]]) -> list[Any]:
        self.round_trips += 1
        with translated("end and claim jobs"):
            async with self.client.pipeline(transaction=False) as pipe:
                for name, args in calls:
                    pipe.evalsha(script(name).sha, 0, *args)
                with crashpoints.point("exchange." + "+".join(name for name, _ in calls)):
                    replies: list[Any] = await pipe.execute(raise_on_error=False)
            for at, reply in enumerate(replies):
                if isinstance(reply, NoScriptError):
                    # A fresh or restarted Redis. It may know the one script and not the other, so only what
                    # was not run is sent again: a claim sent twice would hold jobs that nobody works on.
                    replies[at] = await run_script_async(self.client, *calls[at])
                elif isinstance(reply, Exception):
                    raise reply
        return replies

    def _finish_args(self, ended: list[Ended]) -> list[Any]:
        args: list[Any] = [self.worker, self.server, iso_now(), self.window, len(ended)]
        for item in ended:
            claim, outcome = item.claim, item.outcome
            args += (claim.job, claim.execution)
            match outcome:
                case Completed():
                    args += ("ok", outcome.line, outcome.verdict.value, outcome.output_tokens, outcome.id)
                case Dead():
                    letter = outcome.letter
                    text = f"{letter.reason.value}: {letter.last_error}"
                    args += ("dead", msgspec.json.encode(letter), letter.reason.value, rq_failure(text))
                    args += (outcome.verdict or "", letter.id)
                case Again():
                    args += ("retry", f"{outcome.delay_s:.3f}", outcome.attempts, outcome.tries)
                    args += (outcome.verdict or "", outcome.id)
                case HandedBack():
                    args += ("release", int(outcome.death))
        for item in ended:
            claim = item.claim
            # The traces of a consumer that died would go by themselves, later.
            if claim.execution in self._seen or claim.deaths:
                args += (claim.job, claim.execution)
        return args

    async def heartbeat(
        self,
        claims: list[Claim],
        *,
        worker_ttl: int,
        well: int,
        badly: int,
        state: str,
        figures: dict[str, Any],
    ) -> tuple[bool, list[Claim]]:
        """Keep claims alive. Returns whether RQ still knows the worker, and claims that are lost to it."""
        args: list[Any] = [
            *(self.worker, self.times.claim_ttl_s, worker_ttl, f"{time.time():.6f}", well, badly),
            *(msgspec.json.encode(figures), math.ceil(self.times.claim_ttl_s), iso_now(), state),
        ]
        for claim in claims:
            args += (claim.job, claim.execution)
            self._seen.add(claim.execution)
        with translated("keep claims alive"):
            known, lost = await run_script_async(self.client, "heartbeat", args)
        return bool(known), [claims[int(at) - 1] for at in lost]

    async def disown(self, claims: list[Claim]) -> int:
        """Give back claims of this worker that are not among `claims`: the answer to a claim was lost."""
        args = [self.worker, *(f"{claim.job}:{claim.execution}" for claim in claims)]
        with translated("give back unknown claims"):
            return int(await run_script_async(self.client, "disown", args))

    async def reap(self, *, most: int = REAP_MOST) -> int:
        """Put jobs whose consumer went silent back at the head of the queue; returns how many."""
        with translated("look for abandoned jobs"):
            return int(await run_script_async(self.client, "reap", [self.times.claim_ttl_s, most]))

    async def settings(self, run: str) -> RunSettings:
        """The settings of a run, kept after the first time: they never change.

        Raises:
            LookupError: the run is not in this Redis any more.
        """
        if run not in self._settings:
            # The first jobs of a run ask all at once: one reads, on one connection, and the others wait.
            async with self._reading:
                if run not in self._settings:
                    await self._read_settings(run)
        return self._settings[run]

    async def _read_settings(self, run: str) -> None:
        with translated(f"read the settings of run {run}"):
            raw = await self.client.get(keys.run_key(run, "settings"))
        if raw is None:
            raise LookupError(run)
        self._settings[run] = _SETTINGS.decode(raw)

    async def pause(self, run: str, scope: str, reason: dict[str, Any]) -> bool:
        """Pause a run (`*`) or one server's part in it; true if it was not paused before."""
        with translated(f"pause run {run}"):
            return bool(
                await run_script_async(self.client, "pause", [run, scope, msgspec.json.encode(reason)])
            )

    async def guard_state(self, run: str) -> tuple[set[str], set[str]]:
        """Verdicts that somebody told the guard to accept, and what is paused: servers, or `*`."""
        with translated(f"read the guard's state of run {run}"):
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.smembers(keys.run_key(run, "accepted"))
                pipe.hkeys(keys.run_key(run, "paused"))
                accepted, paused = await pipe.execute()
        return {verdict.decode() for verdict in accepted}, {scope.decode() for scope in paused}

    async def samples(self, run: str, verdict: str, most: int = 3) -> list[str]:
        """Ids of the latest prompts that got this verdict."""
        with translated(f"read the last verdicts of run {run}"):
            raw = await self.client.lrange(keys.run_key(run, "window"), 0, -1)
        entries = [entry.decode().split(" ", 2) for entry in raw]
        return [name for found, _, name in entries if found == verdict][:most]

    async def close(self) -> None:
        """Close the connection."""
        await self.client.aclose(close_connection_pool=True)


def _finish_reply(raw: list[Any]) -> FinishReply:
    windows: dict[str, dict[str, int]] = {}
    for at in range(1, len(raw), 2):
        pairs = raw[at + 1]
        if isinstance(pairs, dict):
            counts = {k.decode(): int(v) for k, v in pairs.items()}
        else:
            counts = {pairs[n].decode(): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}
        windows[raw[at].decode()] = counts
    return FinishReply([bool(reply) for reply in raw[0]], windows)


def _claim_reply(raw: list[Any]) -> ClaimReply:
    state, flat, queued, scheduled = raw
    claims = [
        Claim(flat[n].decode(), flat[n + 1].decode(), flat[n + 2], *(int(x) for x in flat[n + 3 : n + 6]))
        for n in range(0, len(flat), 6)
    ]
    return ClaimReply(state.decode(), claims, int(queued), int(scheduled))


def forged(claim: Claim, index: int, why: str) -> Dead:
    """The dead letter of a job that is not one of ours."""
    letter = DeadLetter(
        index=index, id=claim.job, reason=DeadReason.FORGED_JOB, last_error=why, attempts=0, at=iso_now()
    )
    return Dead(letter)
