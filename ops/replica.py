"""Binds one of many like containers to its own server: `python -m ops.replica rq worker completions`.

`docker compose --scale consumer=7` makes seven containers that differ in their number alone. The one numbered
n gets the n-th server: the first stands in `PROMPTMILL_FIRST_SERVER`, the others on the ports after it. A
container's number is in its name, `PROMPTMILL_REPLICA_NAME` with `{}` for the number; Docker's DNS knows it.
A `SGLANG_URL` that is set wins over all this.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from common.errors import PromptmillError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_REPLICAS: Final = 256


def main(argv: Sequence[str]) -> None:
    """Find the server, then become the command."""
    if not argv:
        sys.exit("which command? as in: python -m ops.replica rq worker completions")
    try:
        url = os.environ.get("SGLANG_URL") or own_server(os.environ, _addresses)
    except PromptmillError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    os.environ["SGLANG_URL"] = url
    os.execvp(argv[0], list(argv))  # noqa: S606  # no shell is what is wanted


def own_server(environment: Mapping[str, str], addresses: Callable[[str], frozenset[str]]) -> str:
    """The URL of this container's server.

    Args:
        environment: Holds `PROMPTMILL_FIRST_SERVER` and `PROMPTMILL_REPLICA_NAME`.
        addresses: Tells the IP addresses of a host's name, none for an unknown one; `""` is this host.

    Raises:
        UsageError: a variable is missing, or no replica's name has this container's address.
    """
    first, name = environment.get("PROMPTMILL_FIRST_SERVER"), environment.get("PROMPTMILL_REPLICA_NAME")
    if not first or not name or "{}" not in name:
        raise UsageError("set SGLANG_URL, or PROMPTMILL_FIRST_SERVER and PROMPTMILL_REPLICA_NAME")
    own = addresses("")
    for number in range(1, MOST_REPLICAS + 1):
        if own & addresses(name.replace("{}", str(number))):
            return server_of(first, number)
    raise UsageError(f"no container of the name {name} has this one's address: set SGLANG_URL")


def server_of(first: str, number: int) -> str:
    """The URL of the server for replica `number`, from 1.

    Raises:
        UsageError: `first` is no URL with a port.
    """
    parts = urlsplit(first)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not parts.scheme or not parts.hostname or port is None:
        raise UsageError("PROMPTMILL_FIRST_SERVER must be like http://servers:30000")
    return f"{parts.scheme}://{parts.hostname}:{port + number - 1}"


def _addresses(host: str) -> frozenset[str]:
    try:
        found = socket.getaddrinfo(host or socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(str(entry[4][0]) for entry in found)


if __name__ == "__main__":
    main(sys.argv[1:])
