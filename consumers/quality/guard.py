"""The guard: from the verdicts of the last completions to a pause, of one server or of the whole run.

The caller keeps the window: the last `QualitySettings.window` completions as they were judged, those that are
being retried included, counted by verdict and by server.
"""

from __future__ import annotations

from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from common.records import Verdict
from common.settings import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from common.settings import QualitySettings

LEAST_ON_A_SERVER: Final = 20
"""Completions it takes to call one server bad, or the others good, when they share the run's evidence."""

_CLEARLY: Final = 4
"""How many times as bad as the others a server must be to be the one to blame."""

REMEDIES: Final[Mapping[Verdict, str]] = MappingProxyType(
    {
        Verdict.EMPTY: "look at the server's log and send it one prompt by hand",
        Verdict.NO_ANSWER: "check the chat template and the sampling settings, or use --no-thinking",
        Verdict.TRUNCATED: "raise --max-output-tokens in a new run, if the context has room",
        Verdict.TRUNCATED_THINKING: (
            "raise --max-output-tokens in a new run (thinking counts towards it), or use --no-thinking"
        ),
        Verdict.LOOPING: "check the sampling settings (greedy decoding loops) and the model's files",
        Verdict.BOILERPLATE: (
            "many prompts get the same few answers: check the chat template, the model and the input"
        ),
        Verdict.ABORTED: "the server gives requests up: look at its log and its memory",
        Verdict.BROKEN: "restart the server, and check its quantisation and attention backend",
        Verdict.PARSER_MISMATCH: (
            "start the server with the model's reasoning parser, or use --no-thinking for a model without"
        ),
    }
)


class PauseRun(msgspec.Struct, frozen=True):
    """Stop taking jobs everywhere. `share` is of the window."""

    sentence: str
    verdict: Verdict
    share: float


class PauseServer(msgspec.Struct, frozen=True):
    """Stop taking jobs for this server alone. `share` is of its own completions in the window."""

    server: str
    sentence: str
    verdict: Verdict
    share: float


class _Breach(msgspec.Struct, frozen=True):
    """A limit that was passed; `verdict` is the most frequent of those that passed it together."""

    verdict: Verdict
    bad: int
    total: int
    limit: float
    together: bool

    @property
    def share(self) -> float:
        return self.bad / self.total


def check(
    window: Mapping[str, int],
    by_server: Mapping[str, Mapping[str, int]],
    settings: QualitySettings,
    *,
    paused: Collection[str] = (),
) -> PauseRun | PauseServer | None:
    """Say whether something must be paused, one server rather than the run where one alone is bad.

    Args:
        window: completions by verdict over the window.
        by_server: the same by server, named as people should read it (no password in a URL).
        settings: the run's quality settings.
        paused: servers that are paused already; what is left of them in the window counts no more.
    """
    if not settings.guard:
        return None
    if paused:
        gone = _sum([counts for server, counts in by_server.items() if server in paused])
        window = {verdict: number - gone.get(verdict, 0) for verdict, number in window.items()}
    by_server = {
        server: counts
        for server, counts in by_server.items()
        if server not in paused and any(counts.values())
    }
    return _one_server(by_server, settings) or _whole_run(window, by_server, settings)


def _whole_run(
    window: Mapping[str, int],
    by_server: Mapping[str, Mapping[str, int]],
    settings: QualitySettings,
) -> PauseRun | None:
    # A window too short to ever hold `least` bad ones must not switch the guard off.
    least = min(settings.least, ceil(settings.window * settings.limit))
    breach = _breach(window, settings, least)
    if breach is None:
        return None
    affected = sum(1 for counts in by_server.values() if _share(counts, breach, settings) > breach.limit)
    where = _where(affected, len(by_server))
    sentence = (
        f"The quality guard paused the run: {_what(breach)}{where}; {REMEDIES[breach.verdict]}; "
        "or go on as it is with `ops resume --accept`."
    )
    return PauseRun(sentence, breach.verdict, breach.share)


def _one_server(
    by_server: Mapping[str, Mapping[str, int]],
    settings: QualitySettings,
) -> PauseServer | None:
    """The one server that is bad while the others, taken together, are not."""
    if len(by_server) < 2:  # noqa: PLR2004  # one server is the whole run
        return None
    least = max(LEAST_ON_A_SERVER, settings.least // len(by_server))
    for server, counts in by_server.items():
        breach = _breach(counts, settings, least)
        if breach is None:
            continue
        others = _sum([other for name, other in by_server.items() if name != server])
        share = _share(others, breach, settings)
        enough = sum(others.values()) >= LEAST_ON_A_SERVER
        if enough and share <= breach.limit and share * _CLEARLY <= breach.share:
            sentence = (
                f"The quality guard paused the server {server} alone: {_what(breach)}, "
                f"against {share:.0%} on the others; look at that server, restart it, "
                "or go on as it is with `ops resume --accept`."
            )
            return PauseServer(server, sentence, breach.verdict, breach.share)
    return None


def _breach(counts: Mapping[str, int], settings: QualitySettings, least: int) -> _Breach | None:
    """The limit that these counts pass, that of a single verdict first."""
    total = sum(counts.values())
    by_number = sorted(REMEDIES, key=lambda verdict: counts.get(verdict, 0), reverse=True)
    for verdict in by_number:
        bad, limit = counts.get(verdict, 0), _limit(verdict, settings)
        if bad >= least and bad > limit * total:
            return _Breach(verdict, bad, total, limit, together=False)
    summed = [verdict for verdict in by_number if _is_summed(verdict, settings)]
    bad = sum(counts.get(verdict, 0) for verdict in summed)
    if bad >= least and bad > settings.limit * total:
        return _Breach(summed[0], bad, total, settings.limit, together=True)
    return None


def _limit(verdict: Verdict, settings: QualitySettings) -> float:
    return settings.limits.get(verdict, max(DEFAULT_LIMITS.get(verdict, 0), settings.limit))


def _is_summed(verdict: Verdict, settings: QualitySettings) -> bool:
    """Whether a verdict counts among all bad ones together: those with a limit of their own do not."""
    return verdict not in settings.limits and verdict not in DEFAULT_LIMITS


def _share(counts: Mapping[str, int], breach: _Breach, settings: QualitySettings) -> float:
    """The share, in these counts, of what the breach is about."""
    total = sum(counts.values())
    if not total:
        return 0.0
    if not breach.together:
        return counts.get(breach.verdict, 0) / total
    return sum(number for verdict, number in counts.items() if _counts_as_bad(verdict, settings)) / total


def _counts_as_bad(verdict: str, settings: QualitySettings) -> bool:
    return verdict in REMEDIES and _is_summed(Verdict(verdict), settings)


def _sum(many: list[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in many:
        for verdict, number in counts.items():
            total[verdict] = total.get(verdict, 0) + number
    return total


def _what(breach: _Breach) -> str:
    kind = f"bad, most of them {breach.verdict}" if breach.together else str(breach.verdict)
    return (
        f"{breach.bad} of the last {breach.total} completions ({breach.share:.0%}) are {kind} "
        f"(limit {breach.limit:.0%})"
    )


def _where(affected: int, servers: int) -> str:
    if servers == 1:
        return " on the only server"
    if not affected or not servers:
        return ""
    return f" on all {servers} servers" if affected == servers else f" on {affected} of {servers} servers"
