"""The sections about load: lengths and latency, throughput, servers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ops.report.figures import accept_lengths, histogram, over_time, small
from ops.report.gather import Gathered, ServerTotals
from ops.report.markup import Html, el, join
from ops.report.pieces import note, section, table
from ops.report.scale import duration, moment, share, short
from ops.report.timeline import Points, Spread, Timeline, Track

_SMALL_SHOWN = 12
"""Servers whose charts are open at once; a click shows the rest."""


def lengths(gathered: Gathered) -> Html:
    """How long answers and requests are."""
    missing = (
        note(f"{gathered.without_usage:,} answers came without a count of their tokens.")
        if gathered.without_usage
        else Html()
    )
    return section(
        "lengths",
        "Lengths and latency",
        el(
            "div",
            histogram(
                "Output length",
                gathered.output_tokens,
                gathered.bad_output_tokens,
                unit="tokens",
                noun="completions",
            ),
            histogram("Latency", gathered.latency, gathered.bad_latency, unit="seconds", noun="requests"),
            class_="beside",
        ),
        missing,
    )


def throughput(gathered: Gathered, *, going_on: bool) -> Html:
    """The whole run over time."""
    timeline = gathered.timeline
    if timeline.first is None:
        return section("throughput", "Throughput", note("No completion has a usable time."))
    tracks = list(timeline.servers.values())
    charts = [
        over_time(
            "Completions a second",
            timeline,
            _sum(timeline, [t.ended for t in tracks]),
            style="s-rate",
            unit="completions/s",
        ),
        over_time(
            "Output tokens a second",
            timeline,
            _sum(timeline, [t.tokens for t in tracks]),
            style="s-tokens",
            unit="tokens/s",
        ),
        over_time(
            "Requests in flight",
            timeline,
            _sum(timeline, [t.held for t in tracks]),
            style="s-slots",
            unit="in flight",
        ),
    ]
    accepts = accept_lengths(timeline)
    if any(value is not None for value in accepts):
        charts.append(over_time("Accept length", timeline, accepts, style="s-accept", unit="tokens a step"))
    late = " The last stretch is low: what is in flight now is in no part yet." if going_on else ""
    untimed = (
        f" {gathered.untimed:,} records have no usable time and are left out." if gathered.untimed else ""
    )
    return section(
        "throughput",
        "Throughput",
        el("div", *charts, class_="beside two"),
        note(
            f"From {moment(timeline.first)} to {moment(timeline.last)} UTC; each step is "
            f"{duration(timeline.width)}. A request's tokens are spread over the "
            f"time that it was in flight; requests that failed are not seen here.{late}{untimed}"
        ),
    )


def _sum(timeline: Timeline, amounts: Sequence[Points | Spread]) -> list[float]:
    return [sum(values) for values in zip(*map(timeline.rates, amounts), strict=True)]


def servers(gathered: Gathered) -> Html:
    """What each server did, in figures and over time."""
    timeline = gathered.timeline
    named = sorted(gathered.servers.items())
    tracks = timeline.servers
    body = [
        _server_row(name, totals, timeline, [tracks[name]] if name in tracks else [])
        for name, totals in named
    ]
    if len(named) > 1:
        body.append(_server_row("all", gathered.total, timeline, list(tracks.values())))
    head = [
        "server", "completions", "not ok", "prompt tokens", "thinking tokens", "answer tokens",
        "unsplit tokens", "tokens/s", "in flight", "mean latency", "accept length",
    ]  # fmt: skip
    empty = [place for place in (6, 10) if all(row[place] in ("0", "\u2013") for row in body)]
    head, *body = [[cell for n, cell in enumerate(row) if n not in empty] for row in (head, *body)]
    return section(
        "servers",
        "Servers",
        table("Tokens spent and speed by server", head, body),
        note(
            "Tokens of completions that are stored; those of attempts that failed or were retried come on "
            "top. "
            "In flight is the mean over the whole run."
        ),
        _slots(timeline) if timeline.first is not None else Html(),
    )


def _server_row(name: str, totals: ServerTotals, timeline: Timeline, tracks: Sequence[Track]) -> list[str]:
    span = timeline.last - timeline.first if timeline.first is not None else 0.0
    first, last = timeline.span
    held = sum(sum(t.held.values(first, last)) for t in tracks)
    return [
        name,
        f"{totals.completions:,}",
        share(totals.bad, totals.completions),
        f"{totals.prompt:,}",
        f"{totals.thinking:,}",
        f"{totals.answer:,}",
        f"{totals.unsplit:,}",
        short(totals.output / span) if span else "\u2013",
        f"{held / span:.1f}" if span else "\u2013",
        duration(totals.latency / totals.completions) if totals.completions else "\u2013",
        f"{totals.accepted / totals.accepts:.2f}" if totals.accepts else "\u2013",
    ]


def _slots(timeline: Timeline) -> Html:
    held = {name: timeline.rates(track.held) for name, track in sorted(timeline.servers.items())}
    tokens = {name: timeline.rates(track.tokens) for name, track in sorted(timeline.servers.items())}
    most_held = max((max(values) for values in held.values()), default=0.0) or 1.0
    most_tokens = max((max(values) for values in tokens.values()), default=0.0) or 1.0
    rows = [
        el(
            "div",
            el("h3", name),
            small(
                "in flight", timeline, held[name], label=f"{name}: in flight", most=most_held, style="s-slots"
            ),
            small(
                "tokens/s",
                timeline,
                tokens[name],
                label=f"{name}: output tokens a second",
                most=most_tokens,
                style="s-tokens",
            ),
            class_="server",
        )
        for name in held
    ]
    shown, rest = rows[:_SMALL_SHOWN], rows[_SMALL_SHOWN:]
    more = (
        el("details", el("summary", f"{len(rest)} more servers"), el("div", *rest, class_="servers"))
        if rest
        else Html()
    )
    return join(
        el("h3", "Slots and tokens over time"),
        note("All servers are on the same scales, so that an idle one stands out."),
        el("div", *shown, class_="servers"),
        more,
    )
