"""What a probe does to the gate, and to the jobs in flight behind it."""

from __future__ import annotations

import pytest

from consumers.client.health import HealthState
from consumers.gate import SILENT_S, GateState, step

OPEN = GateState(HealthState.READY)


def test_a_ready_server_opens_the_gate_from_any_state():
    for health in HealthState:
        state, lost = step(GateState(health, closed_since=1.0), HealthState.READY, 5.0)
        assert state == OPEN
        assert state.open
        assert not lost


@pytest.mark.parametrize("seen", [HealthState.STARTING, HealthState.DRAINING, HealthState.UNHEALTHY])
def test_a_server_that_is_there_but_not_ready_keeps_what_it_has(seen):
    state, lost = step(OPEN, seen, 10.0)
    assert state == GateState(seen, closed_since=10.0)
    assert not state.open
    assert not lost


def test_a_server_out_of_reach_has_lost_what_it_had():
    state, lost = step(OPEN, HealthState.UNREACHABLE, 10.0)
    assert not state.open
    assert lost


def test_silence_counts_from_the_first_probe_that_failed_whatever_came_between():
    state = OPEN
    for at, seen in (
        (10.0, HealthState.DRAINING),
        (40.0, HealthState.UNHEALTHY),
        (69.0, HealthState.STARTING),
    ):
        state, lost = step(state, seen, at)
        assert not lost
    state, lost = step(state, HealthState.UNHEALTHY, 10.0 + SILENT_S)
    assert lost
    assert state.closed_since == 10.0
