"""Any order of events, on a real Redis and a real folder: one end for each prompt, and the counts add up.

The machine plays producers, consumers that die, pause and come back, collectors that lose their lease at any
step, people who delete things, and a Redis that is emptied or falls back to an older state.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import Counter

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rq.registry import FailedJobRegistry
from support.arena import Arena, prompt_of, settings_of

from common import keys
from common.adopt import adopt_part, adopt_parts
from common.errors import QueueError, StorageConflictError
from common.jobs import encode_job
from common.parts import decode_record, iter_lines, part_name, read_manifest
from common.records import PartRow
from common.storage import open_storage
from common.store import client_from_url
from consumers.collector.collect import RunCollector
from consumers.collector.decide import next_seal

RUN = "r"
HANDS = st.integers(0, 2)
PICK = st.integers(0, 10**6)
FEW = st.integers(1, 4)
MOST_PROMPTS = 40


class Events(RuleBasedStateMachine):
    """Everything that can happen to one run."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(self.url)
        self.client = self.arena.client
        self.client.flushall()
        self.store = self.arena.store
        self.folder = tempfile.mkdtemp(prefix="promptmill-model-")
        self.storage = open_storage(f"{self.folder}/{RUN}")
        self.hands = [self.arena.hand(f"w{n}") for n in range(3)]
        self.claims: list = []
        self.looks: list = []
        self.seals: list = []
        self.built: list = []
        self.objects: dict[str, bytes] = {}
        self.chunks: list[tuple[str, int, int]] = []
        self.saved: dict[bytes, bytes] | None = None
        self.promised = 0
        self.tidy = True
        self.arena.adopted = range(10**9)

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            shutil.rmtree(self.folder)
            self.arena.__exit__()

    @initialize()
    def create(self) -> None:
        self.arena.run(RUN)

    # Producers

    @rule(count=FEW)
    def admit(self, count: int) -> None:
        at = self.store.position(RUN).index
        if at + count > MOST_PROMPTS:
            return
        token = uuid.uuid4().hex
        assert self.arena.admit(RUN, count, token=token) == 1
        self.chunks.append((token, at, count))
        self.promised = max(self.promised, at + count)

    @precondition(lambda self: self.chunks)
    @rule(pick=PICK)
    def admit_again(self, pick: int) -> None:
        """An answer was lost, or another producer is behind."""
        token, at, count = self.chunks[pick % len(self.chunks)]
        before = self.store.position(RUN).index
        assert self.arena.admit(RUN, count, token=token, at=at) in ((0, 2) if before > at else (0, 1, 2))

    # Consumers

    @rule(hand=HANDS, want=FEW, suspects=st.integers(0, 1))
    def claim(self, hand: int, want: int, suspects: int) -> None:
        self.claims += self.hands[hand].claim(want, suspects=suspects)

    @rule(hand=HANDS, want=FEW)
    def claim_and_lose_the_answer(self, hand: int, want: int) -> None:
        self.claims += self.hands[hand].look(want).claims

    @rule(hand=HANDS)
    def disown(self, hand: int) -> None:
        self.hands[hand].disown()

    @rule(hand=HANDS)
    def beat(self, hand: int) -> None:
        mine = self.hands[hand]
        lost = mine.beat()
        mine.held = [claim for claim in mine.held if claim not in lost]

    @precondition(lambda self: self.claims)
    @rule(
        pick=PICK,
        hand=HANDS,
        way=st.sampled_from(["complete", "bury", "again", "hand_back"]),
        times=st.integers(1, 2),
    )
    def finish(self, pick: int, hand: int, way: str, times: int) -> None:
        """End a claim that was made some time, whoever has the job now."""
        claim = self.claims[pick % len(self.claims)]
        for _ in range(times):
            getattr(self.hands[hand], way)(claim)

    @rule(hand=HANDS)
    def fall_silent(self, hand: int) -> None:
        mine = self.hands[hand]
        self.arena.silence(mine)
        mine.held = []

    @rule()
    def reap(self) -> None:
        self.arena.reap()

    @rule()
    def due(self) -> None:
        self.arena.due()

    # People

    @rule(pick=PICK, how=st.sampled_from(["rq", "ops"]))
    def retry_a_dead_letter(self, pick: int, how: str) -> None:
        dead = list(self.store.dead_letters(RUN))
        if not dead:
            return
        unit = dead[pick % len(dead)]
        registry = FailedJobRegistry("completions", self.client)
        name = keys.job_id(RUN, unit)
        if how == "rq" and self.client.zscore(registry.key, name) and self.client.exists(keys.job_key(name)):
            registry.requeue(name)
        else:
            self.store.revive(RUN, [unit])

    @rule(pick=PICK, what=st.sampled_from(["entry", "twice", "started", "scheduled", "job"]))
    def damage(self, pick: int, what: str) -> None:
        key = {"started": keys.STARTED, "scheduled": keys.SCHEDULED}.get(what)
        if what in {"entry", "twice"}:
            members = self.client.lrange(keys.QUEUE, 0, -1)
        elif key:
            members = self.client.zrange(key, 0, -1)
        else:
            members = [keys.job_key(keys.job_id(RUN, unit)).encode() for unit in self.arena.open(RUN)]
        if not members:
            return
        victim = members[pick % len(members)]
        self.tidy = False
        if what == "entry":
            self.client.lrem(keys.QUEUE, 0, victim)
        elif what == "twice":
            self.client.rpush(keys.QUEUE, victim)
        elif key:
            self.client.zrem(key, victim)
        else:
            self.client.delete(victim)

    @rule()
    def reconcile(self) -> None:
        """What collector and producer do when counters and lists have disagreed for long."""
        for number in range(3):
            self.beat(number)
        for _ in range(2):
            self.store.restore(RUN, self.store.find_lost(RUN))
        missing = self.store.missing(RUN)
        jobs = [(unit, f"r/p{unit}", encode_job(prompt_of(unit))) for unit in missing]
        assert self.store.readmit(RUN, jobs, job_timeout=60) <= len(missing)
        self.store.recount(RUN)
        self.tidy = True
        assert self.store.find_lost(RUN) == []
        self.arena.check()

    # Collectors

    @rule(token=st.sampled_from(["one", "two"]))
    def lease_passes(self, token: str) -> None:
        self.client.delete(keys.LEASE)
        assert self.store.take_lease(token, 600)

    @rule(token=st.sampled_from(["one", "two"]), records=st.integers(1, 5))
    def seal(self, token: str, records: int) -> None:
        """What any collector does with what it sees; it may then be held up for as long as it likes."""
        waiting = self.store.results_waiting(RUN)
        if waiting.count:
            self.looks.append((token, waiting, next_seal(waiting, records)))

    @precondition(lambda self: self.looks)
    @rule(pick=PICK)
    def promise(self, pick: int) -> None:
        token, waiting, seal = self.looks[pick % len(self.looks)]
        try:
            self.store.seal(RUN, token, waiting.number, waiting.seal, seal, wait_ms=1)
        except QueueError:
            return
        self.seals.append((seal, waiting.number))

    @precondition(lambda self: self.seals)
    @rule(pick=PICK)
    def build(self, pick: int) -> None:
        seal, _ = self.seals[pick % len(self.seals)]
        if sealed := self.arena.sealed(RUN, seal):
            self.built.append(sealed)

    @precondition(lambda self: self.built)
    @rule(pick=PICK, then=st.sampled_from(["commit", "die"]))
    def upload(self, pick: int, then: str) -> None:
        """Any collector that ever built a part goes on with it now."""
        seal, part, data = self.built[pick % len(self.built)]
        name = part_name(part.number)
        try:
            self.storage.create(name, data)
        except StorageConflictError:
            adopt_part(self.store, self.storage, RUN, part.number, 1)
            return
        if then == "commit":
            self.store.commit(RUN, seal, part, PartRow(name, part.records, "0" * 64))

    @precondition(lambda self: self.objects)
    @rule()
    def adopt(self) -> None:
        adopt_parts(self.store, self.storage, RUN, 1)

    # Redis

    @rule()
    def remember(self) -> None:
        self.saved = {key: self.client.dump(key) for key in self.client.keys("*")}

    @precondition(lambda self: self.saved is not None)
    @rule()
    def fall_back(self) -> None:
        """Redis comes back without its last writes; the collector then looks at the output first."""
        self.client.flushall()
        for key, value in self.saved.items():
            self.client.restore(key, 0, value)
        adopt_parts(self.store, self.storage, RUN, 1)
        self.promised = max(self.promised, self.store.position(RUN).index)
        self.tidy = False

    @rule()
    def wipe(self) -> None:
        self.client.flushall()
        self.arena.run(RUN)
        adopt_parts(self.store, self.storage, RUN, 1)
        self.tidy = True

    # What must be true

    @invariant()
    def counts_add_up(self) -> None:
        if self.store.position(RUN) is not None:
            self.arena.check(tidy=self.tidy, rq=False)

    @invariant()
    def objects_never_change_and_hold_each_prompt_once(self) -> None:
        found: Counter[int] = Counter()
        for info in self.storage.list("part-"):
            data = self.storage.read(info.name)
            assert self.objects.setdefault(info.name, data) == data
            found.update(units_of(data))
        assert all(times == 1 for times in found.values()), found
        committed = {row.key for row in self.store.parts(RUN)}
        stored = [unit for name in committed for unit in units_of(self.objects[name])]
        assert not set(stored) & set(self.arena.waiting(RUN))

    def end(self) -> None:
        """Let everything come to its end, and look at what came of each prompt."""
        self.reconcile()
        at = self.store.position(RUN).index
        self.arena.admit(RUN, max(0, self.promised - at), ended=True)
        self.reconcile()
        hand = self.hands[0]
        for _ in range(100):
            self.arena.silence(*self.hands)
            self.arena.reap()
            self.arena.due()
            # What a consumer took and forgot is abandoned, too.
            for member, _ in self.client.zrange(keys.STARTED, 0, -1, withscores=True):
                self.client.zadd(keys.STARTED, {member: 1})
            self.arena.reap()
            for claim in hand.claim(100):
                hand.complete(claim)
            self.reconcile()
            if not self.arena.open(RUN):
                break
        self.lease_passes("end")
        settings = settings_of(RUN, output=self.folder)
        collector = RunCollector(self.store, settings, "end", flush_s=0.0)
        while collector.step("id"):
            pass
        self.objects_never_change_and_hold_each_prompt_once()
        manifest = read_manifest(self.storage)
        stored = [unit for row in manifest.parts for unit in units_of(self.storage.read(row.key))]
        dead = list(self.store.dead_letters(RUN))
        assert sorted(stored + dead) == list(range(self.promised)), (stored, dead)
        assert {row.key for row in manifest.parts} == {info.name for info in self.storage.list("part-")}
        assert self.store.runs(active=True) == []


def units_of(data: bytes) -> list[int]:
    return [decode_record(line).index for block in iter_lines(data, name="part") for line in block]


@pytest.fixture
def quick_disk(embedded_redis):
    """A server that a collector's wait for the disk costs nothing."""
    url = embedded_redis.start()
    with client_from_url(url) as client:
        client.config_set("appendfsync", "always")
        yield url
        client.config_set("appendfsync", "everysec")


@pytest.mark.parametrize(
    "examples", [15, pytest.param(1500, marks=[pytest.mark.long, pytest.mark.timeout(0)])]
)
def test_any_order_of_events_leaves_one_end_for_each_prompt(quick_disk, examples):
    Events.url = quick_disk
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        run_state_machine_as_test(
            Events,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.reuse, Phase.generate),  # shrinking takes minutes
            ),
        )
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("records", [1, 7])
def test_the_same_range_gives_the_same_bytes_in_another_process(embedded_redis, records):
    url = embedded_redis.start()
    with Arena(url) as arena:
        arena.client.flushall()
        arena.run(RUN, 7)
        hand = arena.hand()
        for claim in hand.claim(7):
            hand.complete(claim, "words \u2028 ünïcode 🙂 " * 50)
        sealed = arena.seal(RUN, records=records)
        assert sealed
    program = (
        "import os, sys\n"
        "from common.store import RunStore, Seal\n"
        "from consumers.collector.decide import next_part, part_bytes\n"
        "store, seal = RunStore.from_url(os.environ['RQ_REDIS_URL']), Seal.parse(sys.argv[1])\n"
        "_, lines = next_part(store.results('r', '', seal.last, seal.records), seal, 0)\n"
        "sys.stdout.buffer.write(part_bytes(lines))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", program, str(sealed.seal)],
        env={"RQ_REDIS_URL": url},
        capture_output=True,
        check=True,
    )
    assert there.stdout == sealed.data
