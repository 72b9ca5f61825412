"""Ports on loopback for processes that are told where to listen, and that must still be free when they do."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from typing import Final

# Below those that the kernel gives to outgoing connections and those that an embedded Redis chooses from;
# each process of the test run has a share of its own.
FIRST: Final = 10_000
SHARE: Final = 1_000
SHARES: Final = 10


def free_ports(count: int, *, in_a_row: bool = False) -> list[int]:
    """So many ports that nobody has now."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = FIRST + worker % SHARES * SHARE
    step = count if in_a_row else 1
    found: list[int] = []
    for port in random.sample(range(mine, mine + SHARE - step), 200):
        ports = range(port, port + step)
        if all(map(_free, ports)) and not set(ports) & set(found):
            found += ports
        if len(found) >= count:
            return found
    raise AssertionError("no free ports")


def _free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
