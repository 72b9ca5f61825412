"""Simulated inference servers: SGLang, vLLM and llama.cpp over real HTTP, with slots, queues and faults.

They serve the demo, tests, benches and dry runs. `running_simulators` serves them in this process,
`ops simulate` in a process of its own.
"""

from __future__ import annotations

from ops.simulator.faults import Fault, FaultKind, parse_faults
from ops.simulator.fleet import SimulatorHandle, running_simulators
from ops.simulator.settings import ServerSettings, instant_settings

__all__ = [
    "Fault",
    "FaultKind",
    "ServerSettings",
    "SimulatorHandle",
    "instant_settings",
    "parse_faults",
    "running_simulators",
]
