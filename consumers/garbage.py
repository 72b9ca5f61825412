"""The cycle collector, kept from looking again and again at what lives as long as the process."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

NEW_OBJECTS: Final = 10_000
"""New objects after which the young ones are looked at. Jobs in flight are that many at once, so Python's 700
means a look every few jobs at what is all in use. Only a request that cannot connect leaves cycles."""


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """Leave alone what is there by now (modules, classes), and look at the rest seldom."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
