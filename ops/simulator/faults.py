"""Scripted faults: what may go wrong, when, and to which requests.

Matching is pure but for counters and a seeded random generator; what a fault does is in `distort` (answers),
`generation` (replies) and `server` (sockets).
"""

from __future__ import annotations

import random
import zlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class FaultKind(StrEnum):
    """Everything that can be made to go wrong."""

    # the server as a whole, for `seconds` (or until cleared)
    REFUSE = "refuse"
    STARTING = "starting"
    DRAINING = "draining"
    STUCK = "stuck"
    # the connection of a request
    KILL = "kill"
    HANG = "hang"
    RESET = "reset"
    RESET_MID = "reset_mid"
    TRUNCATED_BODY = "truncated_body"
    # the reply
    ERROR_500 = "error_500"
    QUEUE_FULL = "queue_full"
    RATE_LIMIT = "rate_limit"
    WRONG_MODEL = "wrong_model"
    NOT_JSON = "not_json"
    SLOW = "slow"
    # the answer
    ABORT_PARTIAL = "abort_partial"
    ABORT_EMPTY = "abort_empty"
    NAN = "nan"
    EMPTY = "empty"
    BOILERPLATE = "boilerplate"
    LOOP = "loop"
    LOOP_THINKING = "loop_thinking"
    NO_THINK_END = "no_think_end"
    TRUNCATED_THINKING = "truncated_thinking"
    GARBLED = "garbled"
    ANSWER_IN_REASONING = "answer_in_reasoning"
    THINK_IN_CONTENT = "think_in_content"
    ZERO_USAGE = "zero_usage"
    OVERCOUNT = "overcount"


STATES: Final = frozenset({FaultKind.REFUSE, FaultKind.STARTING, FaultKind.DRAINING, FaultKind.STUCK})
"""Kinds that are a state of the server, not something that befalls single requests."""

ANSWER_FAULTS: Final = frozenset(
    {
        FaultKind.ABORT_PARTIAL,
        FaultKind.ABORT_EMPTY,
        FaultKind.NAN,
        FaultKind.EMPTY,
        FaultKind.BOILERPLATE,
        FaultKind.LOOP,
        FaultKind.LOOP_THINKING,
        FaultKind.NO_THINK_END,
        FaultKind.TRUNCATED_THINKING,
        FaultKind.GARBLED,
        FaultKind.ANSWER_IN_REASONING,
        FaultKind.THINK_IN_CONTENT,
        FaultKind.ZERO_USAGE,
        FaultKind.OVERCOUNT,
    }
)
"""Kinds that change the answer. Prompt and seed decide whom they hit, so a repeat is hit again."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted fault.

    Attributes:
        kind: what goes wrong.
        share: part of the matching requests that it befalls.
        skip: matching requests that pass first.
        first: how many requests it befalls at most.
        containing: it befalls only prompts that contain this text.
        after: real seconds from when it was set until it is active.
        until: real seconds from when it was set until it ends.
        seconds: how long its effect lasts, in real seconds: the state, the downtime of `kill` (5), the
            silence of `hang` before the connection is reset (endless), the wait that `slow` adds (1), the
            `Retry-After` of `rate_limit` (1).
        server: the index of the one server of the fleet that has it.
    """

    kind: FaultKind
    share: float = 1.0
    skip: int = 0
    first: int | None = None
    containing: str | None = None
    after: float = 0.0
    until: float | None = None
    seconds: float | None = None
    server: int | None = None

    def __post_init__(self) -> None:
        """Refuse a share that is none."""
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, not {self.share}")

    @property
    def end(self) -> float | None:
        """Real seconds from when it was set until it ends; `None`: never."""
        if self.kind in STATES and self.seconds is not None:
            return min(
                self.after + self.seconds, self.until if self.until is not None else self.after + self.seconds
            )
        return self.until


def parse_faults(text: str) -> list[Fault]:
    """Read faults from `KIND`, `KIND:name=value,...`, JSON (an object or a list), or the path of a JSON file.

    Raises:
        UsageError: the text is none of these, or names an unknown kind or field.
    """
    try:
        if text.endswith(".json"):
            text = Path(text).read_text("utf-8").strip()
        values = msgspec.json.decode(text) if text[:1] in ("[", "{") else _short_form(text)
        return msgspec.convert(values if isinstance(values, list) else [values], list[Fault], strict=False)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        kinds = ", ".join(FaultKind)
        raise UsageError(f"cannot read the fault {text[:200]!r}: {error}. Kinds: {kinds}") from None


def _short_form(text: str) -> dict[str, Any]:
    kind, _, rest = text.partition(":")
    fields: dict[str, Any] = {"kind": kind.strip()}
    for item in filter(None, rest.split(",")):
        name, mark, value = item.partition("=")
        if not mark:
            raise ValueError(f"{item!r} is not name=value")
        fields[name.strip()] = value
    return fields


class FaultBook:
    """The faults of one server, and how often each has struck."""

    def __init__(self, *, seed: int, now: Callable[[], float]) -> None:
        """Start without faults; `now` gives real seconds."""
        self._now = now
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - reproducible faults, not secrets
        self._since = now()
        self._faults: list[Fault] = []
        self._seen: list[int] = []
        self._struck: list[int] = []
        self.counts: dict[FaultKind, int] = {}
        self.reads_prompts = False

    @property
    def faults(self) -> list[Fault]:
        """The faults as they were set."""
        return list(self._faults)

    @property
    def active(self) -> bool:
        """Whether any fault of requests is set."""
        return bool(self._faults)

    def set(self, faults: Iterable[Fault]) -> None:
        """Replace all faults; counters and clocks start anew. States are the server's own business."""
        self._faults = [fault for fault in faults if fault.kind not in STATES]
        self._seen = [0] * len(self._faults)
        self._struck = [0] * len(self._faults)
        self._since = self._now()
        self._random.seed(self._seed)
        self.reads_prompts = any(fault.containing is not None for fault in self._faults)

    def strike(self, prompt: str, draw: int) -> Fault | None:
        """The first fault that befalls this request, if any. `prompt` is read only by `containing`."""
        elapsed = self._now() - self._since
        for place, fault in enumerate(self._faults):
            if elapsed < fault.after or (fault.until is not None and elapsed >= fault.until):
                continue
            if fault.containing is not None and fault.containing not in prompt:
                continue
            self._seen[place] += 1
            if self._seen[place] <= fault.skip:
                continue
            if fault.first is not None and self._struck[place] >= fault.first:
                continue
            if self._chance(fault, draw) >= fault.share:
                continue
            self._struck[place] += 1
            self.count(fault.kind)
            return fault
        return None

    def count(self, kind: FaultKind) -> None:
        """Note that a fault has struck."""
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _chance(self, fault: Fault, draw: int) -> float:
        if fault.share >= 1:
            return 0.0
        if fault.kind in ANSWER_FAULTS:
            return zlib.crc32(fault.kind.encode(), draw) * 2.0**-32
        return self._random.random()
