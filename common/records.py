"""The values that travel: prompts, completions, dead letters, parts, progress.

Everything here is a frozen `msgspec.Struct`. Evolution rule: fields are only ever added, always with a
default, and `SCHEMA` rises when a reader of the old shape would misread the new one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

SCHEMA: Final = 1

JOB_FUNCTION: Final = "consumers.generate"
"""The only function that a job may name."""


class Verdict(StrEnum):
    """The quality gate's word on one completion."""

    OK = "ok"
    EMPTY = "empty"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    TRUNCATED_THINKING = "truncated_thinking"
    LOOPING = "looping"
    BOILERPLATE = "boilerplate"
    ABORTED = "aborted"
    BROKEN = "broken"
    PARSER_MISMATCH = "parser_mismatch"


class DeadReason(StrEnum):
    """Why a prompt ended without a completion."""

    INVALID_LINE = "invalid_line"
    TOO_LONG = "too_long"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    SERVER_FAULT = "server_fault"
    TIMEOUT = "timeout"
    KILLED_CONSUMERS = "killed_consumers"
    REJECTED = "rejected"
    FORGED_JOB = "forged_job"


def unit_of(index: int, rank: int | msgspec.UnsetType, sample: int, samples: int) -> int:
    """The number of one sample among all of a run's.

    `rank` is a prompt's place in the order of admission; it is set only where that is not the input's order.
    """
    return (index if isinstance(rank, msgspec.UnsetType) else rank) * samples + sample


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation, in the shape the chat endpoint takes."""

    role: str
    content: str | list[dict[str, Any]] | None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class PromptJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one RQ job carries: everything about a prompt that is not a setting of its run."""

    index: int
    id: str
    messages: list[Message]
    params: dict[str, Any] = {}
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sample: int = 0
    v: int = SCHEMA
    rank: int | msgspec.UnsetType = msgspec.UNSET

    def unit(self, samples: int) -> int:
        """The number of this sample in its run: by place in the order of admission, then by sample."""
        return unit_of(self.index, self.rank, self.sample, samples)


class Usage(msgspec.Struct, frozen=True, omit_defaults=False):
    """Token counts as the server gave them; `None` where it gave none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's turn, text exact."""

    role: str = "assistant"
    content: str | None = None
    reasoning_content: str | None = None


class Speculation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Speculative decoding figures of one request, where the server gives them."""

    accept_length: float | None = None
    accept_rate: float | None = None
    verify_steps: int | None = None


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One regenerated assistant turn before the last, when every turn is made anew."""

    position: int
    response: Response
    finish_reason: str
    usage: Usage
    verdict: Verdict = Verdict.OK


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a part. Field order is the order in the file."""

    schema: int = SCHEMA
    run: str
    index: int
    id: str
    messages: list[Message]
    response: Response
    finish_reason: str
    verdict: Verdict
    usage: Usage
    model: str
    server: str
    params: dict[str, Any]
    attempts: int
    started_at: str
    latency_s: float
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sample: int | msgspec.UnsetType = msgspec.UNSET
    speculation: Speculation | msgspec.UnsetType = msgspec.UNSET
    turns: list[Turn] | msgspec.UnsetType = msgspec.UNSET
    rank: int | msgspec.UnsetType = msgspec.UNSET


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of `dead.jsonl`: a prompt that ended without a completion."""

    index: int
    id: str
    reason: DeadReason
    last_error: str
    attempts: int
    sample: int = 0
    line: int | None = None
    server: str | None = None
    at: str | None = None
    rank: int | msgspec.UnsetType = msgspec.UNSET

    def unit(self, samples: int) -> int:
        """The number of this sample in its run: by place in the order of admission, then by sample."""
        return unit_of(self.index, self.rank, self.sample, samples)


class Fingerprint(msgspec.Struct, frozen=True):
    """What makes an input the same input: its bytes and its number of prompts."""

    sha256: str
    lines: int
    bytes: int


class PartRow(msgspec.Struct, frozen=True):
    """One part as the manifest lists it."""

    key: str
    records: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`: what the run is, and every part with its hash."""

    schema: int = SCHEMA
    run: str
    created_at: str
    settings: dict[str, Any]
    input: dict[str, Any]
    parts: list[PartRow] = []
    verdicts: dict[str, int] = {}
    completed: int = 0
    dead: int = 0
    accepted: int = 0
    finished_at: str | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """`progress.json`, and the core of `ops status --json`. Counts are taken at one instant."""

    run: str
    accepted: int
    completed: int
    stored: int
    dead: int
    queued: int
    in_flight: int
    at: str
    state: str
    rate_per_s: float | None = None
    output_tokens_per_s: float | None = None
    eta_s: float | None = None
    verdicts: dict[str, int] = {}

    @property
    def balanced(self) -> bool:
        """Whether accepted = completed + dead + queued + in flight."""
        return self.accepted == self.completed + self.dead + self.queued + self.in_flight
