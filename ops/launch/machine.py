"""What `ops launch` asks of the machine: its GPUs, the SGLang installed, free ports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VERSION_TIMEOUT: Final = 60.0
_ASK_VERSION: Final = "from importlib.metadata import version; print(version('sglang'))"


def gpus_of(text: str) -> tuple[str, ...]:
    """The GPUs that `--gpus` names: `0,2,5`, `0-6`, or `all` that this process may use.

    Raises:
        UsageError: a part of the text is neither a number, a range nor a GPU's own id.
    """
    if text == "all":
        return _all_gpus()
    gpus: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if part.isdigit() or part.startswith(("GPU-", "MIG-")):
            gpus.append(part)
        elif dash and first.isdigit() and last.isdigit() and int(first) <= int(last):
            gpus.extend(str(number) for number in range(int(first), int(last) + 1))
        else:
            raise UsageError(f"{part!r} names no GPU: give numbers as in --gpus 0,1,2 or --gpus 0-6")
    return tuple(gpus)


def _all_gpus() -> tuple[str, ...]:
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return tuple(filter(None, (part.strip() for part in allowed.split(","))))
    count = sum(1 for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit())
    return tuple(str(number) for number in range(count))


def installed_version(python: str) -> str:
    """The version of SGLang that `python` would start.

    Raises:
        UsageError: that interpreter cannot be run or has no SGLang.
    """
    try:
        asked = subprocess.run(
            [python, "-c", _ASK_VERSION],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"{python} cannot be run ({error}): name SGLang's interpreter with --python"
        ) from error
    if asked.returncode != 0:
        raise UsageError(
            f"{python} has no SGLang: name its interpreter with --python or its version with --sglang-version"
        )
    return asked.stdout.strip()


def check_ports(host: str, ports: Sequence[int]) -> None:
    """Refuse ports that something listens on.

    Raises:
        UsageError: a port is taken; the message names the process where that can be seen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, port))
            except OSError as error:
                owner = _listener(port)
                by = f" by process {owner}" if owner else ""
                raise UsageError(
                    f"port {port} on {host} is taken{by} ({error.strerror}): end it or choose another port"
                ) from error


def _listener(port: int) -> int | None:
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                owner: int | None = connection.pid
                return owner
    return None


@contextlib.contextmanager
def key_file(folder: Path, key: str | None) -> Iterator[str | None]:
    """A file that gives the servers their API key, readable by its owner only; gone afterwards.

    SGLang takes the key from no environment variable, and on its command line everybody could read it.
    """
    if not key:
        yield None
        return
    path = folder / f".server-key-{os.getpid()}.yaml"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"api-key: " + msgspec.json.encode(key) + b"\n")
        yield str(path)
    finally:
        path.unlink(missing_ok=True)
