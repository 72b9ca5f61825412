"""Running an asynchronous test on both loops, asyncio's and uvloop: a broken connection differs on each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as two, one for each loop."""

    def run_on(run: Callable[[Coroutine[Any, Any, None]], None], **fixtures: Any) -> None:
        run(test(**fixtures))

    signature = inspect.signature(test)
    run = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run_on.__signature__ = signature.replace(parameters=[run, *signature.parameters.values()])
    run_on.__name__, run_on.__doc__, run_on.__module__ = test.__name__, test.__doc__, test.__module__
    return pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])(run_on)
