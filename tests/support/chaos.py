"""Misfortunes by the dice: what the chaos driver does to a world, seeded."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from support.faulty_s3 import Fault
from support.world import CLAIM_TTL_S, LEASE_TTL_S, World

S3_FAULTS = (
    Fault(kind="status", status=403),
    Fault(kind="status", status=409, methods=("PUT",)),
    Fault(kind="status", status=412, methods=("PUT",), times=1),
    Fault(kind="status", status=429),
    Fault(kind="status", status=500),
    Fault(kind="status", status=503),
    Fault(kind="reset_before_body"),
    Fault(kind="reset_after_body", methods=("PUT",)),
    Fault(kind="lost_answer", methods=("PUT",)),
    Fault(kind="silent_success", status=500, methods=("PUT",)),
    Fault(kind="slow", delay_s=0.3),
    Fault(kind="slow_body", delay_s=0.5, methods=("PUT",)),
    Fault(kind="truncate_answer", methods=("GET",)),
    Fault(kind="garbage"),
)
SERVER_FAULTS = (
    {"kind": "refuse"},
    {"kind": "starting"},
    {"kind": "draining"},
    {"kind": "stuck"},
    {"kind": "hang", "share": 0.3, "seconds": 1.0},
    {"kind": "reset", "share": 0.3},
    {"kind": "reset_mid", "share": 0.3},
    {"kind": "truncated_body", "share": 0.3},
    {"kind": "error_500", "share": 0.3},
    {"kind": "queue_full", "share": 0.5},
    {"kind": "rate_limit", "share": 0.5, "seconds": 0.5},
    {"kind": "not_json", "share": 0.3},
    {"kind": "abort_partial", "share": 0.1},
    {"kind": "abort_empty", "share": 0.1},
)


class Chaos:
    """Draws one misfortune after the other. A kill is the SIGKILL of a process, or more."""

    def __init__(self, world: World, seed: int, *, wipes: int = 2) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.wipes = wipes
        self.kills = 0
        self.done: Counter[str] = Counter()
        self._heal_s3_at = 0.0
        self._heal_server_at: dict[int, float] = {}
        self._kinds: list[tuple[int, str, Callable[[], bool]]] = [
            (14, "kill consumer", self._kill_consumer),
            (9, "kill collector", self._kill_collector),
            (6, "kill producer", self._kill_producer),
            (5, "kill server", self._kill_server),
            (5, "kill redis", self._kill_redis),
            (2, "cut the tail of redis", self._cut_redis),
            (1, "wipe redis", self._wipe_redis),
            (6, "pause consumer", self._pause_consumer),
            (5, "pause collector", self._pause_collector),
            (2, "pause producer", self._pause_producer),
            (4, "terminate consumer", self._terminate_consumer),
            (4, "drop connections", self._drop),
            (10, "s3 fault", self._s3_fault),
            (10, "server fault", self._server_fault),
        ]

    def strike(self) -> None:
        """One misfortune."""
        weights = [weight for weight, _, _ in self._kinds]
        _, name, act = self.dice.choices(self._kinds, weights)[0]
        if act():
            self.done[name] += 1
            self.kills += name.startswith(("kill", "cut", "wipe"))

    def heal(self, *, all_of_it: bool = False) -> None:
        """End the faults whose time is over."""
        now = time.monotonic()
        if self._heal_s3_at and (all_of_it or now >= self._heal_s3_at):
            self._heal_s3_at = 0.0
            self.world.storage_fault()
        for number, until in list(self._heal_server_at.items()):
            if all_of_it or now >= until:
                del self._heal_server_at[number]
                self.world.server_fault(number)

    def _kill(self, processes: list) -> bool:
        return self.dice.choice(processes).signal(signal.SIGKILL)

    def _kill_consumer(self) -> bool:
        return self._kill(self.world.consumers)

    def _kill_collector(self) -> bool:
        return self._kill(self.world.collectors)

    def _kill_producer(self) -> bool:
        return self._kill([self.world.producer])

    def _kill_server(self) -> bool:
        return self._kill(self.world.simulators)

    def _kill_redis(self) -> bool:
        self.world.kill_redis()
        return True

    def _cut_redis(self) -> bool:
        self.world.kill_redis(cut=self.dice.choice([1, 100, 5_000, 100_000]))
        return True

    def _wipe_redis(self) -> bool:
        if not self.wipes:
            return False
        self.wipes -= 1
        self.world.kill_redis(wipe=True)
        return True

    def _pause_consumer(self) -> bool:
        return self.dice.choice(self.world.consumers).stop_for(CLAIM_TTL_S * self.dice.uniform(0.5, 2.5))

    def _pause_collector(self) -> bool:
        return self.dice.choice(self.world.collectors).stop_for(LEASE_TTL_S * self.dice.uniform(0.5, 2.5))

    def _pause_producer(self) -> bool:
        return self.world.producer.stop_for(self.dice.uniform(0.5, 3.0))

    def _terminate_consumer(self) -> bool:
        consumer = self.dice.choice(self.world.consumers)
        if self.dice.random() < 0.5:
            consumer.signal(signal.SIGTERM)
        return consumer.signal(signal.SIGTERM)

    def _drop(self) -> bool:
        self.world.drop_connections()
        return True

    def _s3_fault(self) -> bool:
        self.world.storage_fault(self.dice.choice(S3_FAULTS))
        self._heal_s3_at = time.monotonic() + self.dice.uniform(0.3, 2.5)
        return self.world.proxy is not None

    def _server_fault(self) -> bool:
        number = self.dice.randrange(len(self.world.servers))
        self.world.server_fault(number, self.dice.choice(SERVER_FAULTS))
        self._heal_server_at[number] = time.monotonic() + self.dice.uniform(0.3, 2.5)
        return True
