"""What one request ended in: a `Success` or a `Failure` that says whose fault it was."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from common.records import Response, Speculation, Usage

SLOT_RELEASE_S: Final = 5.0
"""How long a server may go on with a request whose client has gone: it looks every 4 s, then ends a step."""


class Blame(StrEnum):
    """Whose fault a failure is."""

    ROW = "row"
    SERVER = "server"
    LOAD = "load"


class FailureKind(StrEnum):
    """What went wrong, told by status, finish reason or connection event."""

    TOO_LONG = "too_long"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    SERVER_FAULT = "server_fault"
    UNREACHABLE = "unreachable"
    DISCONNECTED = "disconnected"
    TIMEOUT = "timeout"

    @property
    def blame(self) -> Blame:
        """Who answers for it: a refused row says nothing about the server, a full server is not broken."""
        return _BLAME[self]

    @property
    def is_setup(self) -> bool:
        """Whether any other prompt would meet the same answer there: a wrong key, model or address."""
        return self in (FailureKind.UNAUTHORIZED, FailureKind.NOT_FOUND)


_BLAME: Final = {
    FailureKind.TOO_LONG: Blame.ROW,
    FailureKind.BAD_REQUEST: Blame.ROW,
    FailureKind.UNAUTHORIZED: Blame.ROW,
    FailureKind.NOT_FOUND: Blame.ROW,
    FailureKind.OVERLOADED: Blame.LOAD,
    FailureKind.SERVER_FAULT: Blame.SERVER,
    FailureKind.UNREACHABLE: Blame.SERVER,
    FailureKind.DISCONNECTED: Blame.SERVER,
    FailureKind.TIMEOUT: Blame.SERVER,
}


class ThinkingFrom(StrEnum):
    """Where the thinking text was found: in its own field, split from the content, or nowhere."""

    FIELD = "field"
    CONTENT = "content"
    NOWHERE = "nowhere"


class Success(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. Whether it is a good one is for the quality gate: it may be empty or cut by length."""

    response: Response
    finish_reason: str
    usage: Usage = Usage()
    model: str | None = None
    matched_stop: int | str | None = None
    speculation: Speculation | None = None
    cached_tokens: int | None = None
    thinking_from: ThinkingFrom = ThinkingFrom.NOWHERE


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """No answer.

    `message` holds the server's words and may quote the prompt: it is for dead letters; logs take `summary`.
    `retry_after` is what the server asked for, `hold_s` how long it may still work on the request, both in
    seconds. `elapsed_s` is the time from sending to the failure.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after: float | None = None
    hold_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def blame(self) -> Blame:
        """Whose fault it is."""
        return self.kind.blame

    @property
    def summary(self) -> str:
        """The failure without a word of the server's, fit for a log."""
        return self.kind.value if self.status is None else f"{self.kind.value} (HTTP {self.status})"


Outcome = Success | Failure
