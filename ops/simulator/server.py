"""One simulated server on one port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from ops.simulator.listener import Listener, reset
from ops.simulator.routes import dispatch, routes_for
from ops.simulator.state import ServerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http import RawRequestMessage
    from aiohttp.streams import StreamReader
    from aiohttp.web_protocol import RequestHandler

    from ops.simulator.faults import Fault
    from ops.simulator.settings import ServerSettings

_MAX_BODY: Final = 256 * 1024**2
_SHUTDOWN_S: Final = 0.2
_LEAST_SWEEP_S: Final = 0.02
_MOST_SWEEP_S: Final = 0.25


class SimulatedServer:
    """A server that looks like an inference engine over real HTTP.

    Attributes:
        state: slots, faults and counts.
        url: where it listens.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        index: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Sequence[Fault] = (),
    ) -> None:
        """Bind the port (0: any free one); must be called with an event loop running.

        Raises:
            OSError: the port is taken.
        """
        self._loop = asyncio.get_running_loop()
        self.state = ServerState(
            settings, index=index, loop=self._loop, on_down=self._go_down, on_up=self._come_up
        )
        self._manager = web.Server(
            partial(dispatch, self.state, routes_for(self.state)),
            request_factory=self._request,
            keepalive_timeout=settings.keepalive_s,
            access_log=None,
            logger=logging.getLogger("promptmill.simulator"),
        )
        self._listener = Listener(host, port, self._manager)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.port}"
        self._faults = list(faults)
        self._tasks: set[asyncio.Task[None]] = set()
        self._down = False

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, self._loop, client_max_size=_MAX_BODY
        )

    async def start(self) -> None:
        """Set the faults and listen, unless one of them says that connections are refused."""
        self.state.set_faults(self._faults)
        if not self._down:
            await self._listener.up()
        self._keep(self._sweep())

    async def stop(self) -> None:
        """Close the port and every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.state.stop()
        self._listener.close()
        await self._manager.shutdown(_SHUTDOWN_S)

    def _go_down(self) -> None:
        self._down = True
        self._listener.down()
        for connection in self._manager.connections:
            reset(connection.transport)

    def _come_up(self) -> None:
        self._down = False
        self._keep(self._listen_again())

    async def _listen_again(self) -> None:
        if not self._down:
            await self._listener.up()

    def _keep(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        """Look for clients that left, as often as the settings ask."""
        poll = self.state.settings.disconnect_poll_s
        pause = min(_MOST_SWEEP_S, max(_LEAST_SWEEP_S, poll / 4))
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(pause)
                self.state.slots.drop_disconnected(poll)
