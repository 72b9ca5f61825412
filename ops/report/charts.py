"""Charts as SVG. Pure functions from numbers to markup.

Places are percentages, so that a chart fills any width while its words keep their size; only lines, which
cannot be placed so, lie in a nested drawing that is stretched. Colours are classes of the style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ops.report.markup import Html, el, join
from ops.report.scale import short, ticks

_UNIT = 1000


class Tick(msgspec.Struct, frozen=True):
    """A place on an axis, from 0 to 1, and its words. A phone has no room for `minor` ones."""

    at: float
    label: str
    minor: bool = False


class Series(msgspec.Struct, frozen=True):
    """Values in equal steps from left to right; `None` is a gap. `style` is a class of the style sheet."""

    name: str
    style: str
    values: Sequence[float | None]


class Bar(msgspec.Struct, frozen=True):
    """A bar from `left` to `right` (0 to 1), stacked from pieces of (style, height), and what it says."""

    left: float
    right: float
    pieces: Sequence[tuple[str, float]]
    words: str

    @property
    def height(self) -> float:
        """All pieces together."""
        return sum(height for _, height in self.pieces)


def percent(fraction: float) -> str:
    """A place as SVG takes it."""
    return f"{100 * fraction:.6g}%"


def y_ticks(most: float, wanted: int = 4) -> list[Tick]:
    """An axis from 0 up to a round number."""
    steps = ticks(most, wanted)
    return [Tick(step / steps[-1], short(step)) for step in steps]


def top(most: float, wanted: int = 4) -> float:
    """The number at the upper end of `y_ticks`."""
    return ticks(most, wanted)[-1]


def chart(
    marks: Html, *, label: str, description: str, x: Sequence[Tick], y: Sequence[Tick], height: int = 190
) -> Html:
    """Axes around marks. `label` names the chart to who cannot see it, `description` says what it shows."""
    across = [
        el("line", class_="grid", x1="0", x2="100%", y1=percent(1 - tick.at), y2=percent(1 - tick.at))
        for tick in y
    ]
    up = [
        el("text", tick.label, class_="y", x="-8", y=percent(1 - tick.at), dy="0.32em", text_anchor="end")
        for tick in y
    ]
    along: list[Html] = []
    for tick in x:
        style = "x minor" if tick.minor else "x"
        at = percent(tick.at)
        along.append(el("line", class_=f"tick {style}", x1=at, x2=at, y1="100%", y2=str(height + 5)))
        along.append(el("text", tick.label, class_=style, x=at, y=str(height + 18), text_anchor="middle"))
    return el(
        "svg",
        el("desc", description),
        *across,
        marks,
        *up,
        *along,
        class_="chart",
        role="img",
        aria_label=label,
        width="100%",
        height=str(height),
    )


def bars(items: Sequence[Bar], most: float) -> Html:
    """Bars that stand on the axis; `most` is the height of the chart."""
    drawn: list[Html] = []
    for item in items:
        low = 0.0
        stack: list[Html] = []
        for style, height in item.pieces:
            if height <= 0:
                continue
            high = min(1.0, low + height / most)
            stack.append(
                el(
                    "rect",
                    class_=style,
                    x=percent(item.left),
                    width=percent(item.right - item.left),
                    y=percent(1 - high),
                    height=percent(high - low),
                )
            )
            low = high
        drawn.append(el("g", el("title", item.words), *stack))
    return join(*drawn)


def area(series: Series, most: float, *, filled: bool = True) -> Html:
    """A line through the middle of every step, filled down to the axis."""
    steps = max(1, len(series.values))
    drawn: list[Html] = []
    for run in _runs(series.values):
        points = [
            (f"{_UNIT * (place + 0.5) / steps:.5g}", f"{_UNIT * (1 - min(1.0, value / most)):.5g}")
            for place, value in run
        ]
        if len(points) == 1:
            # One step alone has no line: it is as wide as it lasted.
            place, height = run[0][0], points[0][1]
            points = [(f"{_UNIT * edge / steps:.5g}", height) for edge in (place, place + 1)]
        path = "M" + "L".join(f"{across} {down}" for across, down in points)
        if filled:
            closed = f"{path}L{points[-1][0]} {_UNIT}L{points[0][0]} {_UNIT}Z"
            drawn.append(el("path", class_=f"area {series.style}", d=closed))
        drawn.append(el("path", class_=f"line {series.style}", d=path))
    return el(
        "svg",
        *drawn,
        width="100%",
        height="100%",
        viewBox=f"0 0 {_UNIT} {_UNIT}",
        preserveAspectRatio="none",
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            runs[-1].append((place, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def hover(words: Sequence[str]) -> Html:
    """What to say of each step when the pointer is on it."""
    steps = max(1, len(words))
    return join(
        *(
            el(
                "rect",
                el("title", said),
                class_="hover",
                x=percent(place / steps),
                width=percent(1 / steps),
                y="0",
                height="100%",
            )
            for place, said in enumerate(words)
        )
    )


def curve(points: Sequence[tuple[float, float]], style: str) -> Html:
    """A line from point to point, each from 0 to 1 across and up, with a dot at each."""
    lines = [
        el(
            "line",
            class_=f"line {style}",
            x1=percent(before[0]),
            y1=percent(1 - before[1]),
            x2=percent(after[0]),
            y2=percent(1 - after[1]),
        )
        for before, after in pairwise(points)
    ]
    dots = [
        el("circle", class_=f"dot {style}", cx=percent(across), cy=percent(1 - up), r="3")
        for across, up in points
    ]
    return join(*lines, *dots)


def meter(pieces: Sequence[tuple[str, float]], *, label: str) -> Html:
    """One bar over the whole width, of pieces of (style, share)."""
    drawn: list[Html] = []
    left = 0.0
    for style, width in pieces:
        drawn.append(
            el("rect", class_=style, x=percent(left), width=percent(width), y="0", height="100%")
            if width > 0
            else Html()
        )
        left += width
    return el("svg", *drawn, class_="meter", role="img", aria_label=label, width="100%", height="10")


def swatch(style: str) -> Html:
    """The colour of a series, for a legend or a table."""
    rect = el("rect", class_=style, width="100%", height="100%")
    return el("svg", rect, class_="swatch", width="10", height="10", aria_hidden="true")
