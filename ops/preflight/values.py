"""What preflight finds: checks, the figures they rest on, and the report of them all."""

from __future__ import annotations

import msgspec

from common.records import Verdict
from consumers.client.conformance import CheckStatus as Status
from consumers.client.health import Health
from consumers.client.info import ServerInfo
from consumers.client.outcome import FailureKind, ThinkingFrom

__all__ = [
    "Answer",
    "Batch",
    "Check",
    "Curve",
    "CurvePoint",
    "Estimate",
    "Report",
    "ServerFacts",
    "Status",
    "failed",
    "passed",
    "skipped",
    "warned",
]


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the table. `remedy` says what to do where it did not pass."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that preflight made and how it ended: a verdict, or the kind of its failure.

    `began` and `took` are in seconds; `began` on the clock of the one who asked. `words` explain a verdict
    that is not ok, or hold the server's words on a failure, which may quote the prompt.
    """

    began: float
    took: float
    verdict: Verdict | None = None
    failure: FailureKind | None = None
    words: str = ""
    tokens: int | None = None
    thinking: bool = False
    thinking_from: ThinkingFrom = ThinkingFrom.NOWHERE
    answered: bool = False
    accept_length: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of this one request, its wait included."""
        return self.tokens / self.took if self.tokens and self.took > 0 else None


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found out about one server. `fault` says why `info` is missing."""

    url: str
    health: Health | None = None
    info: ServerInfo | None = None
    fault: str = ""
    refused_key: bool = False
    canary: Answer | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes work and told about itself."""
        return self.info is not None and self.health is not None and self.health.ready


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the canary batch. `rates`: each server's mean number in flight and tokens a second."""

    asked: int
    verdicts: dict[str, int] = {}
    failures: dict[str, int] = {}
    mean_tokens: float | None = None
    accept_length: float | None = None
    rates: dict[str, tuple[float, float]] = {}

    @property
    def judged(self) -> int:
        """How many ended in a completion."""
        return sum(self.verdicts.values())


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One level of a sweep. `p50_s` and `p95_s` are latencies in seconds."""

    in_flight: int
    tokens_per_s: float
    requests: int
    failures: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    accept_length: float | None = None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One server's sweep; `knee` is where more in flight brings next to nothing, `None` for no data."""

    url: str
    points: list[CurvePoint]
    knee: int | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """How long the input takes. `rests_on` says in a sentence what the figures rest on.

    `server_hours` are GPU hours where each server has one GPU. `at_most` and `at_best` say that a bound was
    taken where a figure was not known: the length of the answers, the speed of a full server.
    """

    completions: int
    tokens_each: float
    tokens_per_s: float
    wall_s: float
    server_hours: float
    servers: int
    rests_on: str
    at_most: bool = False
    at_best: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that preflight found."""

    checks: list[Check]
    servers: list[ServerFacts] = []
    batch: Batch | None = None
    curves: list[Curve] = []
    estimate: Estimate | None = None

    @property
    def failed(self) -> bool:
        """Whether a run must not begin."""
        return any(check.status is Status.FAIL for check in self.checks)

    @property
    def remarks(self) -> list[Check]:
        """The checks that warn or fail."""
        return [check for check in self.checks if check.status in (Status.WARN, Status.FAIL)]


def passed(group: str, name: str, detail: str) -> Check:
    """A check that found all well."""
    return Check(group, name, Status.PASS, detail)


def warned(group: str, name: str, detail: str, remedy: str) -> Check:
    """A check that found what a run can live with, but its operator should know."""
    return Check(group, name, Status.WARN, detail, remedy)


def failed(group: str, name: str, detail: str, remedy: str) -> Check:
    """A check that found what a run would fail of."""
    return Check(group, name, Status.FAIL, detail, remedy)


def skipped(group: str, name: str, detail: str) -> Check:
    """A check that could not be made."""
    return Check(group, name, Status.SKIP, detail)
