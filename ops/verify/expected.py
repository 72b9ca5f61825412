"""What the input says that each record must hold, as hashes by index: 48 bytes a prompt. Pure.

A conversation whose every assistant turn was made anew holds the model's own earlier answers. They are
checked against the record's `turns` and then left out on both sides: the rest must equal the input's.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

import msgspec

from common.records import DeadLetter, DeadReason, Message, Record, Response
from common.settings import GenerationSettings
from consumers.client.info import ServerInfo
from consumers.client.request import build_request
from consumers.client.turns import history_for, turns_to_generate
from producer.parse import InvalidLine, Prompt

DIGEST: Final = 16
ROW: Final = 3 * DIGEST
NO_TURN: Final = b"\x00" * DIGEST
"""Stands for the conversation of a line that no record can answer."""

_LEFT_OUT: Final = Response(content="")
_ANYWHERE: Final = ServerInfo()


class Difference(StrEnum):
    """How a record or dead letter departs from its line of the input."""

    ID = "id"
    MESSAGES = "messages"
    METADATA = "metadata"
    UNUSABLE = "unusable"
    USABLE = "usable"


class Expected:
    """The input, line by line, as hashes. `add` takes every line in the order of its index."""

    def __init__(self, generation: GenerationSettings) -> None:
        """Start empty. The settings decide what is sent for a line."""
        self._generation = generation
        self._rows = bytearray()

    def __len__(self) -> int:
        """How many lines were taken."""
        return len(self._rows) // ROW

    def add(self, item: Prompt | InvalidLine) -> None:
        """Take the next line."""
        name = _digest(item.id.encode())
        if isinstance(item, InvalidLine):
            self._rows += name + NO_TURN + NO_TURN
        else:
            self._rows += name + self._conversation(item) + _digest(_raw(item.metadata))

    def _conversation(self, prompt: Prompt) -> bytes:
        *earlier, last = turns_to_generate(prompt.messages, self._generation.regenerate) or [-1]
        if last < 0:
            return NO_TURN
        history = history_for(prompt.messages, last, dict.fromkeys(earlier, _LEFT_OUT))
        sent = build_request(prompt.job(), self._generation, _ANYWHERE, messages=history).messages
        return _digest(msgspec.json.encode((earlier, sent)))

    def of_record(self, record: Record) -> list[Difference]:
        """How a record departs from its line; its index is within the input."""
        name, conversation, metadata = self._row(record.index)
        if conversation == NO_TURN:
            return [Difference.UNUSABLE]
        found = []
        if name != _digest(record.id.encode()):
            found.append(Difference.ID)
        if conversation != conversation_of(record):
            found.append(Difference.MESSAGES)
        if metadata != _digest(_raw(record.metadata)):
            found.append(Difference.METADATA)
        return found

    def of_letter(self, letter: DeadLetter) -> list[Difference]:
        """How a dead letter departs from its line; its index is within the input."""
        name, conversation, metadata = self._row(letter.index)
        found = []
        # The letter of a forged job is named by the job: what the job said of a prompt is not to be believed.
        if name != _digest(letter.id.encode()) and letter.reason is not DeadReason.FORGED_JOB:
            found.append(Difference.ID)
        unusable = conversation == NO_TURN and metadata == NO_TURN
        if unusable and letter.reason is not DeadReason.INVALID_LINE:
            found.append(Difference.UNUSABLE)
        if letter.reason is DeadReason.INVALID_LINE and not unusable:
            found.append(Difference.USABLE)
        return found

    def _row(self, index: int) -> tuple[bytes, bytes, bytes]:
        at = index * ROW
        row = self._rows
        middle, end = at + DIGEST, at + 2 * DIGEST
        return bytes(row[at:middle]), bytes(row[middle:end]), bytes(row[end : at + ROW])


def conversation_of(record: Record) -> bytes | None:
    """The hash of what a record says was sent, without the answers that stand in its `turns`.

    `None` where its turns and its messages contradict each other.
    """
    if isinstance(record.turns, msgspec.UnsetType):
        return _digest(msgspec.json.encode(([], record.messages)))
    messages, turns = record.messages, record.turns
    places = turns_to_generate(messages, "all")[:-1]
    if len(places) != len(turns):
        return None
    answers = {place: turn.response for place, turn in zip(places, turns, strict=True)}
    if history_for(messages, len(messages), answers) != messages:
        return None
    bare: list[Message] = history_for(messages, len(messages), dict.fromkeys(places, _LEFT_OUT))
    return _digest(msgspec.json.encode(([turn.position for turn in turns], bare)))


def _raw(metadata: msgspec.Raw | msgspec.UnsetType) -> bytes:
    return b"" if isinstance(metadata, msgspec.UnsetType) else bytes(metadata)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()
