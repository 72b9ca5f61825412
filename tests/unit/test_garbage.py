"""The cycle collector while a consumer works."""

from __future__ import annotations

import gc
import weakref

from consumers.garbage import NEW_OBJECTS, collected_seldom


class Node:
    """What can be part of a cycle."""

    def __init__(self) -> None:
        self.me = self


def test_young_objects_are_looked_at_seldom_and_all_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with collected_seldom():
        assert gc.get_threshold() == (NEW_OBJECTS, *before[1:])
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_cycles_made_meanwhile_are_still_found() -> None:
    with collected_seldom():
        gone = weakref.ref(Node())
        kept = [[] for _ in range(3 * NEW_OBJECTS)]
        assert gone() is None
    assert kept
