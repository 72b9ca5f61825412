"""One `ops run`, from start to summary: starts the parts, watches them, and says how it ended."""

from __future__ import annotations

import fcntl
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

from common.errors import PromptmillError, QueueError, RunNotFoundError, UsageError
from common.log import get_logger
from common.store.runs import RunStore
from ops.embedded import EmbeddedRedis
from ops.run import plan as plans
from ops.run.children import Child
from ops.run.display import Display, Snapshot
from ops.run.plan import RunPlan
from ops.screen.words import Counted
from ops.status.snapshot import Watch
from ops.status.values import State

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
DEAD_LETTERS: Final = 3
GUARDED: Final = 4
INTERRUPTED: Final = 130

TICK_S: Final = 0.25
LOOK_S: Final = 0.5
COLLECTOR_STOP_S: Final = 30.0
AGAIN_S: Final = 0.2

log = get_logger("ops")


class StateLock:
    """One `ops run` per run and machine."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            UsageError: another `ops run` has it, or the folder cannot be made or written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "lock").open("w")
        except OSError as error:
            raise UsageError(
                f"cannot keep working files in {folder}: {error.strerror}. Name another place with --output, "
                "or with --state for these files alone"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                f"another `ops run` is at work on this run (it holds {folder}/lock): wait for it, or stop it"
            ) from None

    def release(self) -> None:
        """Let go."""
        self._file.close()


class Session:
    """The parts of one run and their supervision. Not reusable."""

    def __init__(self, plan: RunPlan, redis_url: str | None, display: Display) -> None:
        """Use the Redis at `redis_url`, or an embedded one in the plan's state folder."""
        self.plan = plan
        self.display = display
        self.logs = plan.state / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.embedded = None if redis_url else EmbeddedRedis(plan.state / "redis")
        self.url = redis_url or ""
        self.store: RunStore
        self.watch: Watch
        self.producer: Child | None = None
        self.collector: Child
        self.consumers: list[Child] = []
        self.restarts: Counter[str] = Counter()
        self._stops: list[float] = []
        self._looked = float("-inf")
        self._snapshot: Snapshot | None = None

    # Start

    def run(self) -> int:
        """Do the run; returns the exit code."""
        previous = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._connect()
            self._start_producer()
            code = self._until_run_is_ready()
            if code is not None:
                return code
            self._start_workers()
            return self._watch()
        finally:
            self._stop_all()
            for number, handler in previous.items():
                # Pressed once more on the way out, Ctrl-C is to change neither exit code nor last words.
                signal.signal(number, signal.SIG_IGN if self._stops else handler)

    def _connect(self) -> None:
        if self.embedded:
            self.url = self.embedded.start()
        self.store = RunStore.from_url(self.url)
        self.store.check()
        self.watch = Watch(self.store)

    def _start_producer(self) -> None:
        self.plan.ready_file.unlink(missing_ok=True)
        self.producer = Child(plans.producer(self.plan, self.url), self.logs)
        self.producer.start()

    def _start_workers(self) -> None:
        self.collector = Child(plans.collector(self.plan, self.url), self.logs)
        self.consumers = [Child(plan, self.logs) for plan in plans.consumers(self.plan, self.url)]
        for child in (self.collector, *self.consumers):
            child.start()

    def _until_run_is_ready(self) -> int | None:
        """Wait until the producer has checked the input and made the run; an exit code if it failed."""
        producer = self.producer
        if producer is None:
            return None
        self.display.phase("checking the input")
        while not self._stops:
            self._keep_redis()
            code = self._keep(producer)
            if code in (BAD_INPUT, FAILED):
                self.display.failed(last_words(producer))
                return code
            if code == DONE:
                self.producer = None
            if code == DONE or self.plan.ready_file.exists():
                return None
            time.sleep(TICK_S / 5)
        self.display.interrupted(None, self.plan)
        return INTERRUPTED

    # Watch

    def _watch(self) -> int:
        while True:
            if self._stops:
                return self._drain()
            self._keep_redis()
            code = self._keep_children()
            if code is not None:
                return code
            snapshot = self._look()
            if snapshot is not None:
                self.display.show(snapshot)
                if self._finished(snapshot):
                    return self._summary(snapshot)
                if snapshot.stopped:
                    return self._guarded(snapshot)
            time.sleep(TICK_S)

    def _keep_redis(self) -> None:
        if self.embedded and not self.embedded.alive:
            self.restarts["redis"] += 1
            log.warning("part_died", run=self.plan.run, part="redis")
            self.embedded.start()

    def _keep_children(self) -> int | None:
        """Start again what died; an exit code if that cannot help."""
        for child in (self.collector, *self.consumers):
            self._keep(child)
        if self.producer:
            code = self._keep(self.producer)
            if code == BAD_INPUT:
                self.display.failed(last_words(self.producer))
                return BAD_INPUT
            if code == DONE:
                self.producer = None
        return None

    def _keep(self, child: Child) -> int | None:
        """Start a part again when it is time; its exit code if it has ended just now."""
        code = child.ended()
        # The producer alone has an end, and it alone is right in saying that the input is of no use.
        over = child is self.producer and code in (DONE, BAD_INPUT)
        if code is not None and not over:
            log.warning(
                "part_died", run=self.plan.run, part=child.plan.name, exit_code=code, log=str(child.path)
            )
        if not over and child.restart_if_due():
            self.restarts[child.plan.name] += 1
        return code

    def _look(self) -> Snapshot | None:
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        try:
            self._snapshot = self._take_snapshot()
        except RunNotFoundError:
            # Redis lost the run: the producer makes it again from the output and the input.
            if self.producer is None:
                log.warning("run_gone_from_redis", run=self.plan.run, note="rebuilding it from the output")
                self._start_producer()
            return None
        except QueueError as error:
            log.warning("redis_unavailable", run=self.plan.run, error=str(error))
            return None
        return self._snapshot

    def _take_snapshot(self) -> Snapshot:
        status = self.watch.take([self.plan.run])
        if self.producer is None and (status.runs[0].missing or not self._all_admitted()):
            self._start_producer()
        return Snapshot(
            status=status,
            restarts=dict(self.restarts),
            phase=self._phase(status.runs[0].state),
        )

    def _all_admitted(self) -> bool:
        """Whether the whole input is in: a Redis that came back without its last second may say no again."""
        position = self.store.position(self.plan.run)
        return position is None or position.ended

    def _phase(self, state: State) -> str:
        """What is being done to the run that its state does not say."""
        if state is State.NO_CONSUMER:
            return "starting consumers"
        return "enqueueing" if self.producer and state is State.RUNNING else ""

    def _finished(self, snapshot: Snapshot) -> bool:
        return self.producer is None and not snapshot.run.active and not snapshot.run.waiting

    # End

    def _on_signal(self, *_: object) -> None:
        now = time.monotonic()
        if self._stops and now - self._stops[-1] < AGAIN_S:
            return
        self._stops.append(now)

    def _drain(self) -> int:
        """Let what is in flight end, within the drain time or until the second signal; then stop."""
        if self.producer:
            self.producer.signal(signal.SIGTERM)
        for child in self.consumers:
            child.signal(signal.SIGTERM)
        self.display.phase(f"draining for {self.plan.drain_timeout:.0f} s at most; Ctrl-C again hands back")
        deadline = time.monotonic() + self.plan.drain_timeout + 10
        pushed = 1
        while any(child.alive for child in self.consumers) and time.monotonic() < deadline:
            self._keep_redis()
            if len(self._stops) > pushed:
                pushed = len(self._stops)
                for child in self.consumers:
                    child.signal(signal.SIGTERM)
            snapshot = self._look()
            if snapshot:
                self.display.show(snapshot)
            time.sleep(TICK_S)
        self.display.interrupted(self._last_counts(), self.plan)
        return INTERRUPTED

    def _guarded(self, snapshot: Snapshot) -> int:
        self.display.guarded(snapshot, self.plan)
        return GUARDED

    def _summary(self, snapshot: Snapshot) -> int:
        self.display.finished(snapshot, self.plan)
        return DEAD_LETTERS if snapshot.run.dead else DONE

    def _last_counts(self) -> Counted | None:
        try:
            return self.store.counts(self.plan.run)
        except PromptmillError:
            return self._snapshot.run if self._snapshot else None

    def _stop_all(self) -> None:
        self.display.close()
        children = [*self.consumers, *([self.producer] if self.producer else [])]
        collector = getattr(self, "collector", None)
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            if not child.wait(2.0):
                child.kill()
            child.close()
        if collector:
            collector.signal(signal.SIGTERM)
            if not collector.wait(COLLECTOR_STOP_S):
                collector.kill()
            collector.close()
        if self.embedded:
            self.embedded.stop()


def last_words(child: Child) -> str:
    """What a command line tool said at its end: its lines that are not log events."""
    lines = [line for line in child.tail().splitlines() if line and not line.startswith("{")]
    return "\n".join(lines[-40:]) or f"{child.plan.name} ended with code {child.last_code}; see {child.path}"
