"""One pass over a run's records: every figure of the report, in memory that does not grow with them. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from common.records import DeadLetter, Verdict
from ops.report.histogram import LogHistogram
from ops.report.samples import Samples
from ops.report.timeline import Timeline

MOST_NAMES: Final = 200
"""Names of one kind (servers, finish reasons) that are told apart; the rest are lumped together."""
OTHERS: Final = "(others)"
LETTERS_EACH: Final = 5


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the server gave them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


class Speculation(msgspec.Struct, frozen=True, gc=False):
    """The one figure of speculative decoding that is charted."""

    accept_length: float | None = None


class Turn(msgspec.Struct, frozen=True, gc=False):
    """An earlier turn that was generated, too."""

    usage: Usage


class Row(msgspec.Struct, frozen=True, gc=False):
    """A record without its texts, which are skipped when it is decoded."""

    index: int
    finish_reason: str
    verdict: str
    usage: Usage
    server: str
    attempts: int
    started_at: str
    latency_s: float
    sample: int = 0
    speculation: Speculation | None = None
    turns: tuple[Turn, ...] = ()


@dataclass(slots=True)
class ServerTotals:
    """What one server did. `unsplit` output tokens are those not told apart into thinking and answer."""

    completions: int = 0
    bad: int = 0
    prompt: int = 0
    thinking: int = 0
    answer: int = 0
    unsplit: int = 0
    latency: float = 0.0
    accepts: int = 0
    accepted: float = 0.0

    @property
    def output(self) -> int:
        """All output tokens."""
        return self.thinking + self.answer + self.unsplit


class Names:
    """Lets a bounded number of names through as they are."""

    def __init__(self) -> None:
        """Begin with no name known."""
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        """The name, or the one for all others."""
        if name in self._known:
            return name
        if len(self._known) >= MOST_NAMES:
            return OTHERS
        self._known.add(name)
        return name


@dataclass
class Gathered:
    """Everything that was counted. `earliest` and `latest` bound the times that are believed.

    The `bad_` histograms count those whose verdict is not ok once more.
    """

    samples: Samples
    earliest: float = -math.inf
    latest: float = math.inf
    records: int = 0
    untimed: int = 0
    without_usage: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    servers: dict[str, ServerTotals] = field(default_factory=lambda: defaultdict(ServerTotals))
    output_tokens: LogHistogram = field(default_factory=LogHistogram)
    bad_output_tokens: LogHistogram = field(default_factory=LogHistogram)
    latency: LogHistogram = field(default_factory=LogHistogram)
    bad_latency: LogHistogram = field(default_factory=LogHistogram)
    timeline: Timeline = field(default_factory=Timeline)
    _server: Names = field(default_factory=Names)
    _reason: Names = field(default_factory=Names)
    _verdict: Names = field(default_factory=Names)

    def add(self, row: Row, line: bytes) -> None:
        """Count one record; `line` is what it was decoded from, kept if it becomes a sample.

        Raises:
            msgspec.DecodeError: it was to be a sample, but has no texts. Nothing is counted then.
        """
        verdict = self._verdict(row.verdict)
        self.samples.offer(verdict, row.index, row.sample, line)
        server = self._server(row.server)
        self.records += 1
        self.verdicts[verdict] += 1
        self.finish_reasons[self._reason(row.finish_reason)] += 1
        self.attempts[min(row.attempts, MOST_NAMES)] += 1
        good = verdict == Verdict.OK
        tokens = self._count(row, self.servers[server], good=good)
        self.latency.add(row.latency_s)
        if not good:
            self.bad_latency.add(row.latency_s)
        start = _seconds(row.started_at)
        end = start + row.latency_s
        if not self.earliest <= start <= end <= self.latest:
            self.untimed += 1
            return
        length = row.speculation.accept_length if row.speculation else None
        self.timeline.add(server, verdict, start, end, tokens=tokens, accept_length=length)

    def _count(self, row: Row, totals: ServerTotals, *, good: bool) -> int:
        """Add to a server's totals; returns the output tokens."""
        output = 0
        for usage in (row.usage, *(turn.usage for turn in row.turns)) if row.turns else (row.usage,):
            totals.prompt += usage.prompt_tokens or 0
            made = usage.completion_tokens
            if made is None:
                self.without_usage += 1
                continue
            output += made
            if usage.reasoning_tokens is None:
                totals.unsplit += made
            else:
                totals.thinking += min(usage.reasoning_tokens, made)
                totals.answer += max(0, made - usage.reasoning_tokens)
        totals.completions += 1
        totals.latency += row.latency_s
        if not good:
            totals.bad += 1
        if row.speculation and row.speculation.accept_length is not None:
            totals.accepts += 1
            totals.accepted += row.speculation.accept_length
        # A length that nobody counted is no length of 0.
        if row.usage.completion_tokens is not None:
            self.output_tokens.add(output)
            if not good:
                self.bad_output_tokens.add(output)
        return output

    @property
    def total(self) -> ServerTotals:
        """All servers together."""
        whole = ServerTotals()
        for totals in self.servers.values():
            for name in ServerTotals.__slots__:
                setattr(whole, name, getattr(whole, name) + getattr(totals, name))
        return whole


@dataclass
class Letters:
    """Dead letters: how many of each reason, with the first few of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[DeadLetter]] = field(default_factory=lambda: defaultdict(list))

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        self.counts[letter.reason.value] += 1
        shown = self.examples[letter.reason.value]
        if len(shown) < LETTERS_EACH:
            shown.append(letter)


def _seconds(moment: str) -> float:
    """An ISO 8601 time as seconds since 1970, or NaN, which is within no bounds."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan
