"""Structured logs: JSON lines off a terminal, coloured lines on one. Call `configure` once per process.

`docs/logs.md` lists every event. Levels: `info` is what a healthy run does, `warning` what it got over,
`error` what a person should look at.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractContextManager, suppress
from typing import Any, TextIO, cast

import structlog


class _Unfailing:
    """A stream whose writes never fail: a full disk under the log must not stop the work that is logged."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.stream.flush()


def configure(*, level: str | None = None) -> None:
    """Set structlog up for this process; `level` defaults to `PROMPTMILL_LOG_LEVEL`, then `INFO`.

    Logs go to standard error, so that standard output stays for results.
    """
    chosen = (level or os.environ.get("PROMPTMILL_LOG_LEVEL") or "INFO").upper()
    number = logging.getLevelNamesMapping().get(chosen, logging.INFO)
    renderer: Any
    if sys.stderr.isatty():
        # Plain tracebacks: the rich ones print local variables, and with them prompts.
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        exceptions: Any = structlog.processors.StackInfoRenderer()
    else:
        renderer = structlog.processors.JSONRenderer()
        exceptions = structlog.processors.format_exc_info
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def get_logger(component: str) -> Any:
    """A logger whose every event carries `component`: producer, consumer, collector, store or ops."""
    # Not `bind`: it would fix the settings of the moment of import, before `configure`.
    return structlog.get_logger(component=component)


def every_event(**fields: str) -> AbstractContextManager[None]:
    """Put `fields` into every event of what runs within, tasks and threads that it starts included."""
    return structlog.contextvars.bound_contextvars(**fields)
