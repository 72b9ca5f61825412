"""Whether a server takes work."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from consumers.client.fields import decode
from consumers.client.response import read_error

HUNG_S: Final = 10.0
"""A probe that says no only after this long has waited in vain for a scheduler that is stuck."""

_LOADING: Final = "unavailable_error"
_UNAVAILABLE: Final = 503


class HealthState(StrEnum):
    """What a server is doing. Only `READY` takes jobs."""

    READY = "ready"
    STARTING = "starting"
    DRAINING = "draining"
    UNREACHABLE = "unreachable"
    UNHEALTHY = "unhealthy"


class Health(msgspec.Struct, frozen=True):
    """One probe's finding, and why where it is not ready."""

    state: HealthState
    detail: str = ""

    @property
    def ready(self) -> bool:
        """Whether jobs may be sent."""
        return self.state is HealthState.READY


def read_health(status: int, body: bytes, *, was_ready: bool, took_s: float) -> Health:
    """Say what an answer of a health endpoint means.

    SGLang says 503 with an empty body while it starts, while it drains and when its scheduler is stuck. What
    it was before tells the first two apart, the time it took to answer the last.

    Args:
        status: the HTTP status.
        body: the body; llama.cpp says in it that it is still loading.
        was_ready: whether the server was ready since it was last out of reach.
        took_s: how long the answer took, in seconds.
    """
    if status in range(200, 300):
        return Health(HealthState.READY)
    if status in (401, 403):
        return Health(HealthState.UNHEALTHY, f"HTTP {status}: it refuses the API key")
    if status != _UNAVAILABLE:
        return Health(HealthState.UNHEALTHY, f"HTTP {status} from its health endpoint")
    return _unavailable(body, was_ready=was_ready, took_s=took_s)


def _unavailable(body: bytes, *, was_ready: bool, took_s: float) -> Health:
    if read_error(decode(body)).type == _LOADING:
        return Health(HealthState.STARTING, "it is loading its model")
    if took_s >= HUNG_S:
        return Health(HealthState.UNHEALTHY, f"HTTP 503 after {took_s:.0f} s: its scheduler is stuck")
    if was_ready:
        return Health(HealthState.DRAINING, "HTTP 503 after having been ready: it is shutting down or stuck")
    return Health(HealthState.STARTING, "HTTP 503: it is warming up")
