"""What was read of a run's output, and what could not be."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from common.records import Manifest, Progress
from ops.report.gather import Gathered, Letters

FAULTS_SHOWN: Final = 20


class Faults:
    """What could not be read: how much, and the first few in words."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self.words: list[str] = []

    def add(self, error: object) -> None:
        """Count one."""
        self.count += 1
        if self.count <= FAULTS_SHOWN:
            self.words.append(str(error))


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A run's output, read."""

    place: str
    manifest: Manifest
    progress: Progress | None
    gathered: Gathered
    letters: Letters
    faults: Faults
    at: datetime
