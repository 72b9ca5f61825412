"""Death at every step that changes something outside a process: before it, after it, and its answer lost.

Consumers, the collector and producers die at one point after the other while runs come and go; at the end
every prompt of every run has exactly one end. A step without a case here fails the first test.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from support.oracle import read_ends, write_input
from support.runs import enqueue
from support.wait import wait_for
from support.world import World

from common import keys
from common.crashpoints import KILLED, VARIABLE
from common.errors import PromptmillError
from common.storage import open_storage
from common.store import RunStore
from common.store.scripts import NAMES

HOW = ("before", "after", "lost")
SHORT = HOW[1:]  # before a step, the outside is as it was after the one before
CONSUMER = (
    "exchange.claim",
    "exchange.finish",
    "exchange.finish+claim",
    "server.generate",
    "script.heartbeat",
    "script.reap",
    "script.disown",
)
COLLECTOR = (
    "script.lease",
    "script.seal",
    "storage.create",
    "script.commit",
    "storage.replace.progress",
    "storage.replace.dead",
    "storage.replace.manifest",
    "script.retire",
    "script.balance",
    "script.restore",
    "script.recount",
    "script.adopt",
    "script.release_lease",
)
PRODUCER = ("script.create_run", "storage.create", "script.admit", "script.adopt", "script.readmit")
ELSEWHERE = {
    "script.claim": "goes with exchange.claim",
    "script.finish": "goes with exchange.finish",
    "script.pause": "one step of the guard, harmless to repeat",
    "script.resume": "one step of a command that a person repeats",
    "script.revive": "one step of a command that a person repeats",
}
EXCHANGES = {"exchange.claim", "exchange.finish", "exchange.finish+claim"}
WRITES = {"storage.create", "storage.replace.progress", "storage.replace.dead", "storage.replace.manifest"}


def test_every_step_has_its_case():
    steps = {f"script.{name}" for name in NAMES} | EXCHANGES | WRITES | {"server.generate"}
    assert steps == {*CONSUMER, *COLLECTOR, *PRODUCER, *ELSEWHERE}


class Feeder(threading.Thread):
    """Keeps small runs coming, so that there is always something to do."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__()
        self.world = world
        self.prompts = write_input(folder / "few.jsonl", 24, hopeless=2)
        self.runs: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        store = RunStore.from_url(self.world.redis.url)
        numbers = itertools.count()
        while not self.over.wait(0.2):
            with contextlib.suppress(PromptmillError):
                if store.backlog() < 24:
                    name = f"run-{next(numbers)}"
                    enqueue(
                        store, self.prompts, self.world.output, run=name, batch_size=5, max_output_tokens=128
                    )
                    self.runs.append(name)
        store.client.close()


def damage(world: World, dice: random.Random, point: str) -> None:
    """What makes a process come to this point, where daily work does not."""
    client = world.store.client
    if point == "script.disown":
        world.drop_connections()
    elif point in {"script.restore", "script.recount"}:
        for job in dice.sample(entries := client.lrange(keys.QUEUE, 0, -1), min(3, len(entries))):
            client.lrem(keys.QUEUE, 1, job)


def crash(process, point: str, how: str, number: int, provoke) -> None:
    """Start a process again that dies at this point; wait until it has, and start it whole again."""
    process.end()
    sane = process.env
    process.env = {**sane, VARIABLE: f"{point}:{number}:{how}"}
    before = process.log.stat().st_size if process.log.exists() else 0
    process.start()

    def struck() -> bool:
        with process.log.open("rb") as log:
            log.seek(before)
            said = log.read()
        provoke(said)
        return not process.alive or (how == "lost" and b"a crash point" in said)

    try:
        wait_for(struck, f"{process.name} at {point} {how}", timeout=30)
        if how != "lost":
            assert process.popen.returncode == KILLED, process.log.read_text()[-2000:]
    finally:
        process.env = sane
    if process.wanted:
        process.end()
        process.start()


def nothing(_: bytes) -> None:
    """It comes to the point by itself."""


def once_up(provoke):
    """Wait until a consumer is up: RQ's command ends by itself if its connection is lost while it starts."""
    return lambda said: b"consumer_started" in said and provoke(said)


def every(seconds: float, act):
    """Call `act` at most once in so many seconds."""
    last = [0.0]

    def call(_: bytes) -> None:
        if time.monotonic() - last[0] >= seconds:
            last[0] = time.monotonic()
            act()

    return call


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_death_at_every_step_leaves_one_end_for_each_prompt(tmp_path, seed):
    ways = SHORT if seed == 1 else HOW
    simulate = ("--slots", "32", "--context", "1024", "--median-tokens", "12", "--tokens-per-s", "60")
    world = World(
        tmp_path,
        None,
        servers=2,
        consumers=2,
        collectors=1,
        simulate=simulate,
        env={"PROMPTMILL_CONCURRENCY": "8", "PROMPTMILL_CLAIM_TTL": "1.2", "PROMPTMILL_LEASE_TTL": "1"},
    )
    with world:
        feeder, errors = Feeder(world, tmp_path), []
        world.start()
        feeder.start()
        try:
            threads = [
                threading.Thread(target=guard, args=(errors, work, world, random.Random(seed + n), ways))
                for n, work in enumerate((crash_consumer, crash_collector))
            ]
            for thread in threads:
                thread.start()
            crash_producers(world, tmp_path, feeder, ways)
            for thread in threads:
                thread.join()
        finally:
            feeder.over.set()
            feeder.join()
        assert not errors, errors
        wait_for(lambda: (world.look_after(), world.store.runs(active=True) == [])[1], "the end", timeout=60)
        for run in feeder.runs:
            ends = read_ends(open_storage(f"{world.output}/{run}"), 24, run)
            assert ends.fine, (run, ends)
            assert set(ends.dead.values()) == {"too_long"}, (run, ends.dead)
            counts = world.store.counts(run)
            assert counts.balanced, counts
        assert len(feeder.runs) > 10


def guard(errors: list, work, *args) -> None:
    try:
        work(*args)
    except Exception as error:  # noqa: BLE001  # told by the thread that waits
        errors.append(repr(error))


def crash_consumer(world: World, dice: random.Random, ways: tuple[str, ...]) -> None:
    for point, how in itertools.product(CONSUMER, ways):
        provoke = every(1.0, lambda point=point: damage(world, dice, point))
        crash(world.consumers[0], point, how, dice.randint(1, 2), once_up(provoke))


def crash_collector(world: World, dice: random.Random, ways: tuple[str, ...]) -> None:
    collector = world.collectors[0]
    for point, how in itertools.product(COLLECTOR, ways):
        if point == "script.adopt":
            continue  # in a world of its own, where its data is lost
        if point == "script.release_lease":
            crash(
                collector,
                point,
                how,
                1,
                lambda said: b"lease_taken" in said and collector.signal(signal.SIGTERM),
            )
            continue
        first = {"script.retire", "script.restore", "script.recount", "storage.replace.dead"}
        number = 1 if point in first else dice.randint(1, 3)
        crash(collector, point, how, number, every(1.5, lambda point=point: damage(world, dice, point)))


def crash_producers(world: World, folder: Path, feeder: Feeder, ways: tuple[str, ...]) -> None:
    prompts = write_input(folder / "producer.jsonl", 24, hopeless=2)
    numbers = itertools.count()
    for point, how in itertools.product(PRODUCER, ways):
        if point in {"script.adopt", "script.readmit"}:
            continue
        run = f"made-{next(numbers)}"
        argv = ("enqueue", str(prompts), "--run", run, "--output", world.output)
        flags = ("--batch-size", "5", "--max-output-tokens", "128")
        producer = world.process(f"producer-{run}", "producer.cli", *argv, *flags)
        world.others.append(producer)
        crash(producer, point, how, 1, nothing)
        wait_for(lambda producer=producer: not producer.alive, "the producer's end", timeout=30)
        if producer.popen.returncode:
            producer.start()
            wait_for(lambda producer=producer: not producer.alive, "the producer's end", timeout=30)
        assert producer.popen.returncode == 0, producer.log.read_text()[-1000:]
        feeder.runs.append(run)


@pytest.mark.parametrize("how", [pytest.param(HOW[0], marks=pytest.mark.long), *SHORT])
@pytest.mark.parametrize("who", ["collector", "producer"])
def test_death_while_a_lost_part_is_taken_over(tmp_path, who, how):
    """Redis lost everything; who rebuilds the run dies at that, and at making deleted jobs again."""
    prompts = write_input(tmp_path / "prompts.jsonl", 24, hopeless=2)
    simulate = ("--slots", "32", "--context", "1024", "--median-tokens", "12", "--tokens-per-s", "600")
    enqueue_flags = ("--batch-size", "5", "--max-output-tokens", "128")
    env = {"PROMPTMILL_CONCURRENCY": "8", "PROMPTMILL_CLAIM_TTL": "1.2", "PROMPTMILL_LEASE_TTL": "1"}
    world = World(
        tmp_path,
        prompts,
        servers=1,
        consumers=1,
        collectors=1,
        simulate=simulate,
        enqueue=enqueue_flags,
        env=env,
    )
    with world:
        world.start()
        storage = open_storage(f"{world.output}/chaos")
        wait_for(
            lambda: (world.look_after(), len(list(storage.list("part-"))) >= 2)[1], "two parts", timeout=30
        )
        for process in (world.producer, world.collectors[0], world.consumers[0]):
            process.end()
        world.redis.start()
        world.store.client.flushall()
        if who == "producer":
            crash(world.producer, "script.adopt", how, 1, nothing)
            wait_for(lambda: not world.producer.alive, "the producer's end", timeout=30)
        else:
            world.producer.start()
            wait_for(lambda: not world.producer.alive, "the producer's end", timeout=30)
            # As if the producer had not looked: the parts are unknown to Redis.
            world.store.client.delete("pm:run:chaos:parts")
            world.store.client.hset("pm:run:chaos:counts", "stored", 0)
            crash(world.collectors[0], "script.adopt", how, 1, nothing)
        for process in (world.collectors[0], world.consumers[0]):
            if not process.alive:
                process.start()
        wait_for(lambda: (world.look_after(), world.done())[1], "the end", timeout=60)
        ends = read_ends(storage, 24)
        assert ends.fine, ends
