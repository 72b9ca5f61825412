"""The gate before a server that fails everybody, whatever its health endpoint says."""

from __future__ import annotations

import pytest
from support.gates import Clock, ready_gate

from consumers import gate as gates
from consumers.client.breaker import FIRST_PAUSE_S, PROMPTS


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(gates, "time", made)
    return made


@pytest.fixture
def gate(clock):
    made = ready_gate(16)
    made.ask_for(16)
    made._retarget(16)
    return made


def test_it_closes_for_a_while_and_then_risks_one_job_at_a_time(gate, clock):
    assert [gate.faulted(f"r-{number}") for number in range(PROMPTS)] == [False] * (PROMPTS - 1) + [True]
    assert gate.limit == 0
    assert gate.word == "fails every request"
    clock.now += FIRST_PAUSE_S
    assert gate.limit == 1
    assert gate.faulted("r-0")
    assert gate.limit == 0
    clock.now += FIRST_PAUSE_S
    assert gate.limit == 0
    clock.now += FIRST_PAUSE_S
    assert gate.limit == 1


def test_a_completion_opens_it_at_once(gate, clock):
    for number in range(PROMPTS):
        gate.faulted(f"r-{number}")
    woken = []
    gate.on_change = lambda: woken.append(gate.limit)
    gate.answered(100, 1.0)
    assert woken == [16]
    assert gate.word == "ready"
    gate.answered(100, 1.0)
    assert len(woken) == 1


def test_faults_between_completions_close_nothing(gate):
    for number in range(10 * PROMPTS):
        assert not gate.faulted(f"r-{number}")
        gate.answered(100, 1.0)
    assert gate.limit == 16
