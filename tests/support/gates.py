"""A gate whose server is ready, by a clock that tests move."""

from __future__ import annotations

from consumers.client.health import HealthState
from consumers.client.http import InferenceClient
from consumers.gate import GateState, ServerGate


class Clock:
    """In place of the gate's `time`."""

    now = 100.0

    def monotonic(self) -> float:
        """Seconds, as the test has them."""
        return self.now


def ready_gate(concurrency: int = 0) -> ServerGate:
    """Before a server that is not there, and that is taken to be ready."""
    made = ServerGate(InferenceClient("http://127.0.0.1:1"), concurrency=concurrency)
    made.state = GateState(HealthState.READY)
    return made
