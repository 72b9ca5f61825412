"""Whether a process of this container answers: `python -m ops.healthcheck [HOST:PORT [PATH]]`.

Without arguments it asks for the metrics at `PROMPTMILL_METRICS_ADDRESS`. Exit code 0 means it answers well.
"""

from __future__ import annotations

import http.client
import os
import sys
from typing import TYPE_CHECKING, Final

from common.errors import UsageError
from common.metrics import ADDRESS_VARIABLE, DEFAULT_ADDRESS, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

_TIMEOUT: Final = 10.0
_ANYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, not bound


def main(arguments: Sequence[str]) -> int:
    """Ask once; returns the exit code."""
    address = arguments[0] if arguments else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    path = arguments[1] if len(arguments) > 1 else "/metrics"
    try:
        host, port = parse_address(address)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in _ANYWHERE else host, port, timeout=_TIMEOUT
    )
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"nothing answers at {address}: {error}\n")
        return 1
    finally:
        connection.close()
    if status != http.client.OK:
        sys.stderr.write(f"{address}{path} answers HTTP {status}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
