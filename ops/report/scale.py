"""Round numbers for axes, and numbers in words. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

_STEPS: Final = (1, 2, 2.5, 5, 10)
_TIME_STEPS: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800, 604_800,
)  # fmt: skip
_THOUSAND: Final = 1000
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400


def ticks(most: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to at least `most`, about `wanted` steps apart."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def time_ticks(begin: float, end: float, wanted: int = 9) -> list[float]:
    """Round times within a span."""
    rough = max(1.0, (end - begin) / wanted)
    step = next((step for step in _TIME_STEPS if step >= rough), 604_800 * math.ceil(rough / 604_800))
    first = math.ceil(begin / step) * step
    return [float(at) for at in range(first, math.floor(end) + 1, step)]


def clock(at: float, span: float) -> str:
    """A time for an axis that covers `span` seconds."""
    shape = "%H:%M:%S" if span < 5 * _MINUTE else "%H:%M" if span < 2 * _DAY else "%d %b"
    return datetime.fromtimestamp(at, UTC).strftime(shape)


def moment(at: float) -> str:
    """A time with its date, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%d %b %Y %H:%M")


def short(value: float) -> str:
    """A number in few characters: 1234 is `1.23k`."""
    for power, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power * 0.9995:
            return f"{value / power:.3g}{sign}"
    return f"{value:.3g}"


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; `None` is a dash."""
    if value is None:
        return "\u2013"
    if isinstance(value, int) or abs(value) >= _THOUSAND:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def share(part: float, whole: float) -> str:
    """A share in percent; a small one is never shown as nothing."""
    if not whole:
        return "\u2013"
    percent = 100 * part / whole
    if 0 < percent < 0.01:  # noqa: PLR2004 - the smallest that two digits show
        return "< 0.01 %"
    return f"{percent:.2f} %" if percent < 10 else f"{percent:.1f} %"  # noqa: PLR2004 - three digits


def duration(seconds: float | None) -> str:
    """A length of time in words of two units at most."""
    if seconds is None:
        return "\u2013"
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for unit, below, word, part, lesser in (
        (_MINUTE, _HOUR, "min", 1, "s"),
        (_HOUR, _DAY, "h", _MINUTE, "min"),
        (_DAY, math.inf, "d", _HOUR, "h"),
    ):
        if whole < below:
            rest = whole % unit // part
            return f"{whole // unit} {word}" + (f" {rest} {lesser}" if rest else "")
    raise AssertionError("the last unit has no end")
