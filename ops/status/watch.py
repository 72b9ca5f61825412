"""The live screen of `ops status --watch`: renewed every second, ended by `q` or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from common.errors import PromptmillError
from ops.screen.layout import screen
from ops.status.notices import Level, Notice, notices
from ops.status.snapshot import Watch
from ops.status.values import Status

EVERY_S: Final = 1.0
END_KEYS: Final = frozenset(b"qQ\x03\x04")


class Watching:
    """Shows one status after the other."""

    def __init__(self, watch: Watch, runs: list[str] | None, console: Console) -> None:
        """Show these runs of `watch` on `console`, a terminal."""
        self.watch = watch
        self.runs = runs
        self.console = console
        self._last: Status | None = None

    def loop(self) -> None:
        """Show until a key or Ctrl-C ends it."""
        with (
            contextlib.suppress(KeyboardInterrupt),
            keys_one_by_one(),
            Live(console=self.console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                live.update(self.frame(), refresh=True)
                if ended(EVERY_S):
                    return

    def frame(self) -> RenderableType:
        """One frame; a Redis that does not answer keeps the last one on the screen."""
        trouble: list[Notice] = []
        try:
            self._last = self.watch.take(self.runs)
        except PromptmillError as error:
            trouble.append(Notice(Level.BAD, f"{error}; what is shown is from before"))
        if self._last is None:
            return Text("\n".join(notice.text for notice in trouble), "bold red")
        at = self._last.at[11:19]
        return screen(
            self._last,
            width=self.console.width,
            height=self.console.height,
            said=notices(self._last, trouble),
            footer=f"{at} UTC   q ends this screen, not the run",
        )


@contextlib.contextmanager
def keys_one_by_one() -> Iterator[None]:
    """Let single keys through, unseen, while inside."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def ended(timeout_s: float) -> bool:
    """Whether a key that ends the screen came within the time."""
    if not sys.stdin.isatty():
        select.select([], [], [], timeout_s)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    if not ready:
        return False
    keys = os.read(sys.stdin.fileno(), 64)
    return not keys or bool(END_KEYS.intersection(keys))
