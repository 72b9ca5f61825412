"""The curve of a preflight sweep: tokens a second by requests in flight. Pure, but for reading its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.errors import UsageError
from ops.preflight.values import Curve
from ops.report.charts import Tick, chart, curve, top, y_ticks
from ops.report.markup import Html, el
from ops.report.pieces import figure, note, section, table
from ops.report.scale import number, short, ticks


class _Sweep(msgspec.Struct, frozen=True):
    curves: list[Curve] = []


def read_sweep(path: Path) -> list[Curve]:
    """The curves of a report that `ops preflight --json` wrote.

    Raises:
        UsageError: the file cannot be read, or holds no sweep.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Sweep)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a report of ops preflight --json: {error}") from error
    if not found.curves:
        raise UsageError(f"{path} holds no sweep: make one with ops preflight --sweep --json")
    return found.curves


def sweep(curves: Sequence[Curve]) -> Html:
    """A chart and a table for each server."""
    most_rate = max((point.tokens_per_s for found in curves for point in found.points), default=0.0) or 1.0
    most_flight = top(max((point.in_flight for found in curves for point in found.points), default=1))
    return section(
        "sweep",
        "Tokens a second by requests in flight",
        note("From the sweep that preflight made. The knee is where more in flight brings next to nothing."),
        el("div", *(_one(found, most_rate, most_flight) for found in curves), class_="beside"),
    )


def _one(found: Curve, most_rate: float, most_flight: float) -> Html:
    points = [(p.in_flight / most_flight, p.tokens_per_s / top(most_rate)) for p in found.points]
    knee = f"knee at {found.knee}" if found.knee is not None else "no knee found"
    drawing = chart(
        curve(points, "s-tokens"),
        label=f"{found.url}: tokens a second by requests in flight",
        description=knee,
        x=[Tick(step / most_flight, short(step)) for step in ticks(most_flight)],
        y=y_ticks(most_rate),
    )
    rows = [
        [str(p.in_flight), number(p.tokens_per_s), number(p.p50_s), number(p.p95_s), str(p.failures)]
        for p in found.points
    ]
    head = ["in flight", "tokens/s", "p50 s", "p95 s", "failures"]
    return el("div", figure(f"{found.url}, {knee}", drawing), table(f"{found.url}: levels", head, rows))
