"""Where `ops run` keeps a run's working files, and how the other commands find its Redis.

A run's state folder holds the embedded Redis, logs and a lock. For a folder output it is beside the output;
for S3 it is below the folder that `ops run` was started in. A pointer by run name in the user's state folder
lets `ops status demo` find it from anywhere.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from common.errors import RunNotFoundError
from common.settings import DEFAULT_REDIS_URL
from common.store.connection import RedisUnavailableError
from common.store.runs import RunStore
from ops.embedded import EmbeddedRedis, running_url

STATE: Final = ".promptmill"


def state_folder(output: str, run: str) -> Path:
    """The state folder of a run with that output."""
    base = Path.cwd() if "://" in output else Path(output).absolute()
    return base / STATE / run


def _pointers() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "promptmill" / "runs"


def remember(run: str, folder: Path) -> None:
    """Let other commands find this run's state folder by its name."""
    pointers = _pointers()
    # A home that cannot be written, as in a container, costs this convenience alone: --redis does the same.
    with suppress(OSError):
        pointers.mkdir(parents=True, exist_ok=True)
        temporary = pointers / f".{run}.{os.getpid()}"
        temporary.write_text(f"{folder}\n")
        temporary.replace(pointers / run)


def recall(run: str | None) -> list[Path]:
    """State folders by name, or all that are known, the latest first."""
    pointers = _pointers()
    if run is not None:
        found = [pointers / run]
    else:
        found = sorted(pointers.glob("[!.]*"), key=lambda p: p.stat().st_mtime, reverse=True)
    return [Path(p.read_text().strip()) for p in found if p.is_file()]


class Reached:
    """A store, and the embedded Redis started to reach it if there was need; a context manager."""

    def __init__(self, store: RunStore, embedded: EmbeddedRedis | None = None) -> None:
        """Hold both."""
        self.store = store
        self.embedded = embedded

    def __enter__(self) -> RunStore:
        """The store."""
        return self.store

    def __exit__(self, *_: object) -> None:
        """Stop what was started."""
        if self.embedded:
            self.embedded.stop()


def reach(url: str | None, run: str | None, *, wake: bool = False) -> Reached:
    """The store that has the run: `url`, else `RQ_REDIS_URL`, else the run's embedded Redis, else localhost.

    With `wake` an embedded Redis that is not running is started for the time being.

    Raises:
        RunNotFoundError: there is no Redis to be found.
    """
    given = url or os.environ.get("RQ_REDIS_URL")
    if given:
        return Reached(RunStore.from_url(given))
    for folder in recall(run):
        redis = folder / "redis"
        running = running_url(redis)
        if running:
            return Reached(RunStore.from_url(running))
        if wake and redis.is_dir():
            embedded = EmbeddedRedis(redis)
            return Reached(RunStore.from_url(embedded.start()), embedded)
    store = RunStore.from_url(DEFAULT_REDIS_URL)
    try:
        store.runs()
    except RedisUnavailableError:
        what = f"run {run} is not going on" if run else "no run is going on"
        raise RunNotFoundError(
            f"{what} here: no `ops run` is at work on it, and there is no Redis at "
            f"{DEFAULT_REDIS_URL}. Name the Redis with --redis or RQ_REDIS_URL, or run `ops run` again"
        ) from None
    return Reached(store)
