"""What can be wrong with an output, counted by kind, with the first few of each kept as sentences."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

SHOWN: Final = 20
"""Sentences kept of each kind; all are counted."""


class Kind(StrEnum):
    """One kind of fault."""

    MANIFEST = "manifest"
    PART = "part"
    RECORD = "record"
    FOREIGN = "foreign"
    RANGE = "range"
    DOUBLE = "double"
    MISSING = "missing"
    DEAD_LETTER = "dead_letter"
    COUNTS = "counts"
    UNLISTED = "unlisted"
    INPUT = "input"
    ID = "id"
    MESSAGES = "messages"
    METADATA = "metadata"


TITLES: Final[dict[Kind, str]] = {
    Kind.MANIFEST: "the manifest or the progress file cannot be used",
    Kind.PART: "parts that are missing, damaged or not the ones that the manifest names",
    Kind.RECORD: "lines that are not records",
    Kind.FOREIGN: "records of another run",
    Kind.RANGE: "indices that the input does not have",
    Kind.DOUBLE: "prompts that ended more than once",
    Kind.MISSING: "prompts that ended nowhere",
    Kind.DEAD_LETTER: "dead letters that cannot be right",
    Kind.COUNTS: "counts that disagree",
    Kind.UNLISTED: "parts that the manifest does not list",
    Kind.INPUT: "the input is not the one of this run",
    Kind.ID: "ids that are not those of the input",
    Kind.MESSAGES: "conversations that are not what the input says",
    Kind.METADATA: "metadata that is not what the input says",
}


class Finding(msgspec.Struct, frozen=True):
    """All faults of one kind: how many, and the first few."""

    kind: Kind
    total: int
    examples: list[str]


class Findings:
    """Collects faults in constant memory."""

    def __init__(self) -> None:
        """Start with none."""
        self._totals: dict[Kind, int] = {}
        self._examples: dict[Kind, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._totals)

    def add(self, kind: Kind, sentence: str) -> None:
        """Count one fault; keep the sentence while there is room."""
        self.count(kind)
        examples = self._examples[kind]
        if len(examples) < SHOWN:
            examples.append(sentence)

    def count(self, kind: Kind, number: int = 1) -> None:
        """Count faults whose sentences would not be kept."""
        self._totals[kind] = self._totals.get(kind, 0) + number
        self._examples.setdefault(kind, [])

    def full(self, kind: Kind) -> bool:
        """Whether further sentences of this kind are only counted."""
        return len(self._examples.get(kind, ())) >= SHOWN

    def all(self) -> list[Finding]:
        """Every kind that occurred, in the order of `Kind`."""
        return [Finding(k, self._totals[k], self._examples[k]) for k in Kind if k in self._totals]
