"""The report's charts: from what was gathered to drawings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.records import Verdict
from ops.report.charts import Bar, Series, Tick, area, bars, chart, hover, top, y_ticks
from ops.report.histogram import PER_OCTAVE, LogHistogram
from ops.report.markup import Html, join
from ops.report.pieces import figure, legend, note, verdict_style
from ops.report.scale import clock, number, share, short, time_ticks
from ops.report.timeline import Timeline

MERGED = 4
"""A drawn bin is a quarter of an octave."""
_BINS_PER_OCTAVE = PER_OCTAVE // MERGED
_LABELS = 8
_SMALL = 84
_SMALL_TICKS = 2


def histogram(title: str, every: LogHistogram, bad: LogHistogram, *, unit: str, noun: str) -> Html:
    """How often each magnitude was seen, what is not ok on top."""
    counts, others = every.coarse(MERGED), bad.coarse(MERGED)
    first, last = min(counts, default=0), max(counts, default=0)
    lead = 2 if every.zeros else 0
    cells = last - first + 1 + lead
    items = [
        _bin(
            (place - first + lead) / cells, 1 / cells, count, others.get(place, 0), f"{_range(place, unit)}: "
        )
        for place, count in sorted(counts.items())
    ]
    if every.zeros:
        items.insert(0, _bin(0.0, 1 / cells, every.zeros, bad.zeros, f"0 {unit}: "))
    most = max((item.height for item in items), default=1)
    octaves = range(-(-first // _BINS_PER_OCTAVE), (last + 1) // _BINS_PER_OCTAVE + 1)
    step = max(1, -(-len(octaves) // _LABELS))
    x = [
        Tick(
            (octave * _BINS_PER_OCTAVE - first + lead) / cells,
            short(2.0**octave) if octave < 0 else _whole(2**octave),
            minor=octave // step % 2 == 1,
        )
        for octave in octaves
        if octave % step == 0
    ]
    if every.zeros:
        x.insert(0, Tick(0.5 / cells, "0"))
    quantiles = ", ".join(
        f"{name} {number(every.quantile(at))}"
        for name, at in (("5 % at most", 0.05), ("half at most", 0.5), ("95 % at most", 0.95))
    )
    said = (
        f"{every.count:,} {noun}: {quantiles}, the most {number(every.most)} {unit}; "
        f"mean {number(every.mean)}."
    )
    drawing = chart(bars(items, top(most)), label=title, description=said, x=x, y=y_ticks(most))
    return figure(
        f"{title}, {unit} (each step doubles)",
        drawing,
        legend([("v-ok", "verdict ok"), ("v-bad", "any other verdict")]),
        note(said),
    )


def _whole(value: int) -> str:
    return f"{value:,}" if value < 1 << 14 else short(value)  # 8,192 has room, 16,384 has not


def _bin(left: float, width: float, count: int, bad: int, words: str) -> Bar:
    gap = width * 0.06
    said = f"{words}{count:,}" + (f", {bad:,} of them not ok" if bad else "")
    return Bar(left + gap, left + width - gap, (("v-ok", count - bad), ("v-bad", bad)), said)


def _range(place: int, unit: str) -> str:
    low, high = (2 ** (edge / _BINS_PER_OCTAVE) for edge in (place, place + 1))
    return f"{number(low)} to {number(high)} {unit}"


def time_axis(timeline: Timeline, wanted: int = 9) -> list[Tick]:
    """Round times under the buckets."""
    first, last = timeline.span
    begin, end = first * timeline.width, (last + 1) * timeline.width
    moments = time_ticks(begin, end, wanted)
    found = [
        Tick((at - begin) / (end - begin), clock(at, end - begin), minor=place % 2 == 1)
        for place, at in enumerate(moments)
    ]
    # Words at the very edge would stick out of the page.
    return [tick for tick in found if 0.02 <= tick.at <= 0.98]  # noqa: PLR2004 - a few percent


def _moments(timeline: Timeline) -> list[str]:
    first, last = timeline.span
    begin, end = first * timeline.width, (last + 1) * timeline.width
    return [clock(bucket * timeline.width, min(end - begin, 299)) for bucket in range(first, last + 1)]


def over_time(
    title: str,
    timeline: Timeline,
    values: Sequence[float | None],
    *,
    style: str,
    unit: str,
    height: int = 170,
) -> Html:
    """One line over the run."""
    known = [value for value in values if value is not None]
    most = max(known, default=0.0) or 1.0
    mean = sum(known) / len(known) if known else 0.0
    words = [
        f"{moment} UTC: {number(value)} {unit}" if value is not None else f"{moment} UTC: no figure"
        for moment, value in zip(_moments(timeline), values, strict=True)
    ]
    return figure(
        title,
        chart(
            join(area(Series(title, style, values), top(most)), hover(words)),
            label=title,
            description=f"Highest {number(most)}, mean {number(mean)} {unit}.",
            x=time_axis(timeline),
            y=y_ticks(most),
            height=height,
        ),
    )


def bad_verdicts(timeline: Timeline) -> Html:
    """The share of each verdict but ok, by when the requests began."""
    first, last = timeline.span
    steps = last - first + 1
    columns = {name: points.values(first, last) for name, points in timeline.verdicts.items()}
    whole = [sum(column[place] for column in columns.values()) for place in range(steps)]
    names = [verdict.value for verdict in Verdict if verdict is not Verdict.OK and verdict.value in columns]
    names += sorted(set(columns) - set(names) - {Verdict.OK.value})
    items = []
    for place, (moment, count) in enumerate(zip(_moments(timeline), whole, strict=True)):
        if not count:
            continue
        said = "; ".join(
            f"{name} {share(columns[name][place], count)}" for name in names if columns[name][place]
        )
        items.append(
            Bar(
                place / steps,
                (place + 1) / steps,
                [(verdict_style(name), 100 * columns[name][place] / count) for name in names],
                f"{moment} UTC, {count:,.0f} completions: {said or 'all ok'}",
            )
        )
    most = max((item.height for item in items), default=0.0) or 1.0
    title = "Share of completions that are not ok, in percent"
    worst = max(items, key=lambda item: item.height, default=None)
    drawing = chart(
        bars(items, top(most)),
        label=title,
        description=f"The worst moment: {worst.words}." if worst else "No completion.",
        x=time_axis(timeline),
        y=y_ticks(most),
    )
    return figure(title, drawing, legend((verdict_style(name), name) for name in names))


def small(
    title: str, timeline: Timeline, values: Sequence[float], *, label: str, most: float, style: str
) -> Html:
    """One server's line, small; `most` is the highest of all servers, which share the scale."""
    peak = max(values, default=0.0)
    return figure(
        title,
        chart(
            area(Series(title, style, values), top(most, 2)),
            label=label,
            description=f"Highest {number(peak)}.",
            x=[msgspec.structs.replace(tick, minor=False) for tick in time_axis(timeline, _SMALL_TICKS)],
            y=y_ticks(most, 2),
            height=_SMALL,
        ),
    )


def accept_lengths(timeline: Timeline) -> list[float | None]:
    """The mean accept length in each bucket that has one."""
    first, last = timeline.span
    tracks = timeline.servers.values()
    totals = [sum(v) for v in zip(*(t.accepted.values(first, last) for t in tracks), strict=True)]
    counts = [sum(v) for v in zip(*(t.accepts.values(first, last) for t in tracks), strict=True)]
    return [total / count if count else None for total, count in zip(totals, counts, strict=True)]
