"""`consumers.GenerationWorker`: an RQ 3 worker that keeps many generations in flight on one asyncio loop.

RQ's command line starts it, RQ's registries show its jobs, and RQ's commands (suspend, shutdown, stop-job)
reach it. Jobs are claimed and ended by our own scripts, so that neither a kill nor a pause can lose one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from typing import Any, Final

import redis.exceptions
import uvloop
from rq.worker import BaseWorker, WorkerStatus

from common import __version__
from common.errors import QueueError
from common.log import configure, every_event, get_logger
from common.metrics import serve as serve_metrics
from common.options import parse_concurrency
from common.settings import QUEUE_NAME, redact_url
from common.store import RunStore, async_client
from common.store.claims import ClaimStore
from consumers.client.http import InferenceClient
from consumers.engine import Engine, Limits
from consumers.figures import Figures
from consumers.garbage import collected_seldom
from consumers.gate import ServerGate
from consumers.guarding import Guarding
from consumers.perform import Performer

DRAIN_TIMEOUT_S: Final = 120.0
LEAST_PAUSE_S: Final = 0.2
AGAIN_S: Final = 0.2
"""A second signal this soon after the first is taken as the same: worker pools and shells both send one."""

CANCEL_AGAIN_S: Final = 0.2

log = get_logger("consumer")


class GenerationWorker(BaseWorker):
    """One consumer: bound to the server that `SGLANG_URL` names, many jobs in flight."""

    client_class: type[InferenceClient] = InferenceClient
    """What makes the requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take RQ's arguments. Jobs are JSON whatever serializer is asked for."""
        kwargs["serializer"] = "json"
        super().__init__(*args, **kwargs)
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._round_trips_told = 0

    def serialize(self) -> dict[str, Any]:
        """What RQ stores of a worker, and our mark: workers without it are strangers to this queue."""
        return {**super().serialize(), "promptmill": __version__}

    def work(  # noqa: PLR0917  # RQ's own signature
        self,
        burst: bool = False,  # noqa: FBT001, FBT002  # as above
        logging_level: str | None = None,
        date_format: str = "%H:%M:%S",
        log_format: str = "%(asctime)s %(message)s",
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,  # noqa: FBT001, FBT002  # as above
        dequeue_strategy: Any = None,
    ) -> bool:
        """Work until told to stop; true if any job was done. Arguments are RQ's.

        RQ's scheduler is not needed: due retries are claimed straight from its registry.
        """
        del with_scheduler, dequeue_strategy, date_format, log_format
        configure(level=logging_level)
        _quiet_rq()
        url = self._server_url()
        self.bootstrap(logging_level or "WARNING")
        limits = Limits(burst=burst, max_jobs=max_jobs, max_idle_s=max_idle_time)
        with every_event(worker=self.name, server=redact_url(url)):
            try:
                with collected_seldom(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    return runner.run(self._main(url, limits))
            finally:
                self._say_goodbye()

    def _server_url(self) -> str:
        url = os.environ.get("SGLANG_URL", "").rstrip("/")
        if not url:
            sys.exit("SGLANG_URL is not set: name this consumer's server, for example http://127.0.0.1:30000")
        if self.queue_names() != [QUEUE_NAME]:
            sys.exit(
                f"a consumer serves the queue {QUEUE_NAME!r} alone: start it as `rq worker {QUEUE_NAME}`"
            )
        return url

    async def _main(self, url: str, limits: Limits) -> bool:
        self._loop = asyncio.get_running_loop()
        async with self.client_class(url, api_key=os.environ.get("SGLANG_API_KEY")) as client:
            store = ClaimStore(async_client(self.connection), worker=self.name, server=client.url)
            figures = Figures()
            self._serve_metrics(figures)
            gate = ServerGate(client, concurrency=asked_concurrency())
            engine = Engine(
                store,
                gate,
                Performer(store, client, gate, figures),
                limits=limits,
                on_windows=Guarding(store).look,
            )
            self._engine = engine
            soon = asyncio.Event()

            def changed() -> None:
                engine.wake()
                soon.set()

            gate.on_change = changed
            gate.on_lost = lambda: engine.hand_back(death=True)
            gate.in_flight = lambda: engine.in_flight
            stopper = Stopper(engine, self._loop, drain_timeout())
            helpers = [
                asyncio.create_task(gate.run(), name="gate"),
                asyncio.create_task(gate.watch_load(), name="load"),
                asyncio.create_task(self._beat(store, engine, gate, figures, soon), name="heartbeat"),
            ]
            log.info("consumer_started", pid=os.getpid())
            try:
                await watch(asyncio.create_task(engine.run(), name="engine"), helpers)
            finally:
                stopper.done()
                await end(helpers)
                await store.close()
            log.info("consumer_stopped", completed=figures.completions)
            return engine.started > 0

    def _serve_metrics(self, figures: Figures) -> None:
        served = serve_metrics(figures.registry)
        if served:
            log.info("metrics_served", address=served[0])

    async def _beat(
        self, store: ClaimStore, engine: Engine, gate: ServerGate, figures: Figures, soon: asyncio.Event
    ) -> None:
        """Keep claims alive, look for abandoned jobs, and show live figures: every few seconds, or `soon`."""
        runs = RunStore(self.connection)
        told: set[str] = set()
        while True:
            begun = time.monotonic()
            figures.gauge(
                server=store.server,
                state=engine.state,
                ready=gate.state.open,
                in_flight=engine.in_flight,
                limit=gate.target,
            )
            figures.metrics.redis_round_trips.inc(store.round_trips - self._round_trips_told)
            self._round_trips_told = store.round_trips
            try:
                well, engine.ended_well = engine.ended_well, 0
                badly, engine.ended_badly = engine.ended_badly, 0
                known, lost = await store.heartbeat(
                    list(engine.held.values()),
                    worker_ttl=self.worker_ttl + 60,
                    well=well,
                    badly=badly,
                    state=rq_state(engine),
                    figures=self._figures(engine, gate, figures, store),
                )
                # Those that ended while the heartbeat was under way are nobody's loss.
                gone = {claim.execution for claim in lost if claim.execution in engine.tasks}
                fresh, told = gone - told, gone
                if fresh:
                    log.warning("claims_lost", jobs=len(fresh), note="redelivered while it was silent")
                if back := await store.reap():
                    log.warning("abandoned_jobs_requeued", jobs=back)
                if not known:
                    await asyncio.to_thread(self._register_again)
                gate.ask_for(await asyncio.to_thread(run_concurrency, runs))
                await asyncio.to_thread(self._send_strangers_away, runs)
            except (QueueError, redis.exceptions.RedisError) as error:
                log.warning("heartbeat_failed", error=str(error)[:300])
            await asyncio.sleep(LEAST_PAUSE_S)
            left = store.times.heartbeat_s - (time.monotonic() - begun)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left)):
                    await soon.wait()
            soon.clear()

    def _figures(
        self, engine: Engine, gate: ServerGate, figures: Figures, store: ClaimStore
    ) -> dict[str, Any]:
        state = engine.state
        if state in ("starting", "working") and not gate.state.open:
            state = "waiting for server"
        return {
            "worker": self.name,
            "server": store.server,
            "server_state": gate.word,
            "model": gate.info.model,
            "state": state,
            "in_flight": engine.in_flight,
            "limit": gate.target,
            "cap": gate.limit,
            "queue": gate.load.waiting if gate.load else None,
            "completions": figures.completions,
            "output_tokens": figures.output_tokens,
            "accept_length": figures.accept_length,
            "verdicts": dict(figures.verdicts),
            "errors_by_kind": dict(figures.errors),
            "last_minute": figures.last_minute(),
            "round_trips": store.round_trips,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": figures.started,
            "at": time.time(),
        }

    def register_birth(self) -> None:
        """As RQ does; a full Redis has no room for it, and needs consumers most of all."""
        try:
            super().register_birth()  # type: ignore[no-untyped-call]  # RQ has no types here
        except redis.exceptions.OutOfMemoryError:
            log.warning(
                "redis_full", note="at work all the same; RQ's tools see this worker once there is room"
            )

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """As RQ does, where there is room for it."""
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            super().set_state(state, pipeline)

    def _register_again(self) -> None:
        """Make this worker known to a Redis that lost it."""
        log.warning("worker_unknown_to_redis", note="registering again")
        self.register_birth()

    def _send_strangers_away(self, runs: RunStore) -> None:
        """Shut down stock workers on our queue: they cannot run its jobs, and would only turn them over."""
        for name in runs.foreign_workers():
            log.error(
                "stock_worker_on_queue",
                stranger=name,
                note=f"told to shut down; `{QUEUE_NAME}` needs RQ_WORKER_CLASS=consumers.GenerationWorker",
            )
            runs.shut_down_worker(name)

    def handle_payload(self, message: Any) -> None:
        """Obey RQ's commands: `stop-job` and `stop-execution` hand the job back, the rest is RQ's."""
        from rq.command import parse_payload  # noqa: PLC0415  # RQ imports this module's base first

        payload = parse_payload(message)
        if payload.get("command") in ("stop-job", "stop-execution") and self._loop and self._engine:
            self._loop.call_soon_threadsafe(self._engine.cancel, payload.get("job_id", ""))
            return
        super().handle_payload(message)  # type: ignore[no-untyped-call]  # RQ has no types here

    def _say_goodbye(self) -> None:
        try:
            self.register_death()  # type: ignore[no-untyped-call]  # RQ has no types here
            self.unsubscribe()  # type: ignore[no-untyped-call]  # RQ has no types here
        except redis.exceptions.RedisError as error:
            log.warning("farewell_failed", error=str(error)[:200])


class Stopper:
    """Signals: the first drains, the second or the end of the drain time hands back and ends."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        """Install handlers for SIGTERM and SIGINT."""
        self.engine = engine
        self.loop = loop
        self.timeout_s = timeout_s
        self.first: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """Handle one signal."""
        now = time.monotonic()
        if self.first is None:
            self.first = now
            log.info("draining", in_flight=self.engine.in_flight, timeout_s=self.timeout_s)
            self.engine.drain()
            self.timer = self.loop.call_later(self.timeout_s, self.give_back)
        elif now - self.first >= AGAIN_S:
            self.give_back()

    def give_back(self) -> None:
        """Stop waiting: what is in flight goes back to the head of the queue."""
        log.info("handing_back", jobs=self.engine.hand_back())

    def done(self) -> None:
        """Forget the signals."""
        if self.timer:
            self.timer.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.remove_signal_handler(number)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks until they are done: `asyncio.wait_for`, which redis-py uses, can lose a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()


async def watch(main: asyncio.Task[None], helpers: list[asyncio.Task[None]]) -> None:
    """Wait for `main`; a helper that fails takes it down, for a consumer without heartbeats is no use."""
    done, _ = await asyncio.wait({main, *helpers}, return_when=asyncio.FIRST_COMPLETED)
    if main not in done:
        main.cancel()
    for task in done:
        task.result()


def rq_state(engine: Engine) -> WorkerStatus:
    """What RQ's tools are to show of the worker."""
    if engine.state == "suspended":
        return WorkerStatus.SUSPENDED
    return WorkerStatus.BUSY if engine.tasks else WorkerStatus.IDLE


def asked_concurrency() -> int:
    """`PROMPTMILL_CONCURRENCY`: a number, or `auto` (0).

    Raises:
        UsageError: it is neither.
    """
    return parse_concurrency(os.environ.get("PROMPTMILL_CONCURRENCY") or "auto")


def run_concurrency(runs: RunStore) -> int:
    """What to ask for: the environment's word, else the most that an active run asks for, else auto."""
    if os.environ.get("PROMPTMILL_CONCURRENCY"):
        return asked_concurrency()
    return max((runs.settings(run).consumer.concurrency for run in runs.runs(active=True)), default=0)


def drain_timeout() -> float:
    """`PROMPTMILL_DRAIN_TIMEOUT` in seconds."""
    return float(os.environ.get("PROMPTMILL_DRAIN_TIMEOUT") or DRAIN_TIMEOUT_S)


def _quiet_rq() -> None:
    """Let RQ's own lines through our one log: as events, from warnings up."""
    for name in ("rq.worker", "rq.job", "rq.registry"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
