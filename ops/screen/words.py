"""Numbers and counts as people read them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from common.records import DeadReason
from ops.status.values import RunStatus


class Counted(Protocol):
    """Whatever has a run's counts."""

    @property
    def accepted(self) -> int: ...  # noqa: D102  # the six counts of the contract
    @property
    def completed(self) -> int: ...  # noqa: D102  # as above
    @property
    def dead(self) -> int: ...  # noqa: D102  # as above
    @property
    def queued(self) -> int: ...  # noqa: D102  # as above
    @property
    def in_flight(self) -> int: ...  # noqa: D102  # as above
    @property
    def stored(self) -> int: ...  # noqa: D102  # as above


_UNITS: Final = ("B", "KB", "MB", "GB", "TB")
_THOUSAND: Final = 1000


def equation(counts: Counted) -> str:
    """The counts equation."""
    return (
        f"accepted {counts.accepted:,} = completed {counts.completed:,} + dead {counts.dead:,} "
        f"+ queued {counts.queued:,} + in flight {counts.in_flight:,}"
    )


def short_equation(counts: Counted) -> str:
    """The counts equation where room is scarce."""
    return (
        f"{counts.accepted:,} = {counts.completed:,} completed + {counts.dead:,} dead "
        f"+ {counts.queued:,} queued + {counts.in_flight:,} in flight"
    )


def counts_line(counts: Counted) -> str:
    """The counts equation and what is stored, as one line."""
    return f"{equation(counts)}; stored {counts.stored:,}"


def duration(seconds: float) -> str:
    """A time span as people say it: `2 h 05 min`."""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004  # a minute
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004  # an hour
        return f"{whole // 60} min {whole % 60:02d} s"
    hours = whole // 3600
    if hours < 48:  # noqa: PLR2004  # two days
        return f"{hours} h {whole % 3600 // 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 part`, `1,200 parts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def what_helps(run: str, reasons: Iterable[str]) -> str:
    """What can be done about dead letters with these reasons."""
    if set(reasons) <= {DeadReason.INVALID_LINE}:
        return "mend the lines in a file of their own and run that: they cannot be retried"
    return f"`ops retry {run}` queues them again"


def size(number: float) -> str:
    """Bytes with a unit, two or three digits: `1.2 GB`."""
    for unit in _UNITS:
        if number < _THOUSAND or unit == _UNITS[-1]:
            break
        number /= _THOUSAND
    return f"{number:,.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"  # noqa: PLR2004  # two digits


def rate(number: float) -> str:
    """A rate with as many digits as it is sure of."""
    return f"{number:,.0f}" if number >= 100 else f"{number:,.1f}" if number >= 1 else f"{number:.2f}"  # noqa: PLR2004  # three digits


def speed(run: RunStatus) -> str:
    """The pace of the last minute."""
    if run.rate_per_s is None:
        return "no pace known yet"
    of_all = " (all runs)" if run.rate_of_all_runs else ""
    tokens = run.output_tokens_per_s or 0.0
    return f"{rate(run.rate_per_s)} completions/s, {rate(tokens)} tokens/s{of_all}"


def whole_speed(run: RunStatus) -> str:
    """The pace since the run was created; empty where there is none."""
    if run.whole_run_rate_per_s is None:
        return ""
    tokens = run.whole_run_output_tokens_per_s or 0.0
    return f"whole run {rate(run.whole_run_rate_per_s)}/s, {rate(tokens)} tokens/s"


def eta(run: RunStatus) -> str:
    """How long it will take, with its spread."""
    if run.eta_s is None:
        return "time left unknown"
    if not run.eta_s:
        return "nothing left to do"
    low, high = duration(run.eta_low_s or 0.0), duration(run.eta_high_s or 0.0)
    spread = f" ({low} to {high})" if low != high else ""
    return f"{duration(run.eta_s)} left{spread}"
