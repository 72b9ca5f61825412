"""The gate's number in flight where it is `auto`: by the server's load, or by its answers."""

from __future__ import annotations

import pytest
from support.gates import Clock, ready_gate

from consumers import gate as gates
from consumers.client.load import Load
from consumers.concurrency import DEFAULT_CONCURRENCY


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(gates, "time", made)
    return made


@pytest.fixture
def gate(clock):
    made = ready_gate()
    made.in_flight = lambda: made.target
    return made


SLOTS = 16


def answers(gate, clock, *, seconds):
    """Looks every 2 s at a server of 16 slots that ends 40 requests/s: the others wait for a slot."""
    for _ in range(seconds // 2):
        for number in range(80):
            clock.now += 1 / 40
            tokens = 10 + 5 * (number % 20)
            waited = max(0, gate.target - SLOTS) / 40
            gate.answered(tokens, waited + 0.4 * tokens / 57.5)
        gate._adjust(None)


def test_a_server_that_tells_nothing_is_followed_by_its_answers(gate, clock):
    answers(gate, clock, seconds=30)
    assert SLOTS < gate.target <= 1.2 * SLOTS


def test_a_look_at_the_load_that_fails_is_no_reason_to_guess(gate, clock):
    gate._adjust(Load(source="/metrics", running=44, waiting=4))
    answers(gate, clock, seconds=60)
    assert gate.target == DEFAULT_CONCURRENCY
