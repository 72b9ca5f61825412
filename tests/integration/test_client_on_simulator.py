"""The client against simulated servers of every dialect and of the SGLang versions that differ."""

from __future__ import annotations

import pytest

from consumers.client.conformance import CheckStatus, run_conformance
from ops.simulator import ServerSettings, running_simulators

KEY = "canary-key"


@pytest.mark.parametrize(
    ("dialect", "version", "parser", "short_of"),
    [
        ("sglang", "0.5.11", True, {"speculation": "skip"}),
        ("sglang", "0.5.13", True, {}),
        ("sglang", "0.5.18", True, {}),
        ("sglang", "0.5.20", True, {}),
        ("sglang", "0.5.23", True, {}),
        ("sglang", "0.5.23", False, {"reasoning_parser": "warn", "thinking": "warn"}),
        (
            "vllm",
            "0.32.0",
            True,
            {"effective_running": "warn", "speculation": "skip", "abort": "skip"},
        ),
        ("llamacpp", "", True, {"speculation": "skip", "request_id": "skip", "abort": "skip"}),
    ],
)
async def test_every_dialect_and_version_conforms(dialect, version, parser, short_of):
    settings = ServerSettings(
        dialect=dialect,
        version=version,
        reasoning_parser=parser,
        slots=16,
        context=4096,
        median_tokens=60,
        time_scale=50.0,
        health_delay_s=0.01,
        api_key=KEY,
    )
    async with running_simulators(settings) as servers:
        results = await run_conformance(servers[0].url, api_key=KEY)
    found = {result.name: result.status for result in results if result.status is not CheckStatus.PASS}
    assert found == {name: CheckStatus(status) for name, status in short_of.items()}, results
