"""Several simulated servers in one process, for tests, benches and the command line."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ops.simulator.server import SimulatedServer
from ops.simulator.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from ops.simulator.faults import Fault


class SimulatorHandle:
    """A running simulated server, held in the process that serves it."""

    def __init__(self, server: SimulatedServer) -> None:
        """Wrap a started server."""
        self._server = server
        self.url = server.url
        self.settings = server.state.settings

    def stats(
        self, *, since: float | None = None, until: float | None = None, timeline: bool = False
    ) -> dict[str, Any]:
        """What `GET /sim/stats` answers: counts, load and slot occupancy between two unix times."""
        return self._server.state.stats(since=since, until=until, timeline=timeline)

    @property
    def faults(self) -> list[Fault]:
        """The faults that are set."""
        return self._server.state.faults_set

    def set_faults(self, *faults: Fault) -> None:
        """Replace all faults; without any, the server is whole again."""
        self._server.state.set_faults(faults)

    def resize(self, slots: int) -> None:
        """Change how many requests run at once."""
        self._server.state.slots.resize(slots)

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self._server.state.reset_stats()


@asynccontextmanager
async def running_simulators(
    settings: ServerSettings | Sequence[ServerSettings] = ServerSettings(),  # noqa: B008 - frozen
    *,
    count: int = 1,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: Sequence[Fault] = (),
) -> AsyncIterator[list[SimulatorHandle]]:
    """Serve simulated servers while the context lasts.

    Args:
        settings: one for all of `count` servers, or one for each server.
        count: how many servers, where `settings` is a single one.
        host: the address to listen on.
        port: the first of consecutive ports; 0 takes free ones.
        faults: what goes wrong from the start.

    Raises:
        OSError: a port is taken.
    """
    each = [settings] * count if isinstance(settings, ServerSettings) else list(settings)
    async with AsyncExitStack() as stack:
        handles = []
        for index, one in enumerate(each):
            chosen = port + index if port else 0
            server = SimulatedServer(one, index=index, host=host, port=chosen, faults=faults)
            stack.push_async_callback(server.stop)
            await server.start()
            handles.append(SimulatorHandle(server))
        yield handles
