"""What an answer of a health endpoint means."""

from __future__ import annotations

import pytest

from consumers.client.health import Health, HealthState, read_health

LOADING = b'{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}'


@pytest.mark.parametrize(
    ("status", "body", "was_ready", "took_s", "state"),
    [
        pytest.param(200, b"", False, 0.0, HealthState.READY, id="SGLang and vLLM"),
        pytest.param(200, b'{"status": "ok"}', False, 0.0, HealthState.READY, id="llama.cpp"),
        pytest.param(503, b"", False, 0.0, HealthState.STARTING, id="warming up"),
        pytest.param(503, b"", True, 0.0, HealthState.DRAINING, id="shutting down"),
        pytest.param(503, b"", True, 20.0, HealthState.UNHEALTHY, id="stuck"),
        pytest.param(503, b"", False, 20.0, HealthState.UNHEALTHY, id="stuck at the start"),
        pytest.param(503, LOADING, True, 0.0, HealthState.STARTING, id="llama.cpp loads"),
        pytest.param(500, b"", True, 0.0, HealthState.UNHEALTHY, id="broken"),
        pytest.param(401, b'{"error": "Unauthorized"}', False, 0.0, HealthState.UNHEALTHY, id="wrong key"),
        pytest.param(404, b"", False, 0.0, HealthState.UNHEALTHY, id="something else"),
    ],
)
def test_health(status, body, was_ready, took_s, state):
    found = read_health(status, body, was_ready=was_ready, took_s=took_s)
    assert found.state is state
    assert found.ready is (state is HealthState.READY)
    assert bool(found.detail) is not found.ready


def test_only_ready_takes_jobs():
    assert [state for state in HealthState if Health(state).ready] == [HealthState.READY]
