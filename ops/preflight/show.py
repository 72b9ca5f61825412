"""The report on a terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.preflight.values import Check, Curve, Estimate, Report, Status
from ops.run.display import duration

BAR: Final = 40

_STYLES: Final = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
}


def show(report: Report, console: Console) -> None:
    """The whole report: every check, the sweep's curves, the estimate, and a last word."""
    console.print(table(report.checks))
    for curve in report.curves:
        console.print(curve_text(curve))
    if report.estimate:
        console.print(Text(estimate_words(report.estimate)))
    console.print(last_word(report))


def show_remarks(report: Report, console: Console) -> None:
    """The checks that warn or fail, if there are any."""
    if report.remarks:
        console.print(table(report.remarks))


def table(checks: list[Check]) -> Table:
    """One row per check, under its group, with the remedy below what was found."""
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    group = None
    for check in checks:
        if check.group != group:
            group = check.group
            rows.add_row("", Text(group, "bold"), "")
        words = Text(check.detail, style="dim" if check.status is Status.SKIP else "")
        if check.remedy and check.status in (Status.WARN, Status.FAIL):
            words.append(f"\n-> {check.remedy}", style="italic")
        rows.add_row(Text(check.status.value, _STYLES[check.status]), Text(check.name), words)
    return rows


def curve_text(curve: Curve) -> Text:
    """A server's tokens a second by number in flight, as bars, with the knee marked."""
    best = max((point.tokens_per_s for point in curve.points), default=0.0)
    text = Text(f"\n{curve.url}\n", "bold")
    text.append("in flight   tokens/s  p50 s  p95 s  accepted\n", "dim")
    for point in curve.points:
        bar = "#" * round(BAR * point.tokens_per_s / best) if best else ""
        accept = f"{point.accept_length:.2f}" if point.accept_length else "-"
        line = (
            f"{point.in_flight:>9} {point.tokens_per_s:>10,.0f} {_number(point.p50_s):>6} "
            f"{_number(point.p95_s):>6} {accept:>9}  {bar}"
        )
        at_knee = point.in_flight == curve.knee
        failures = f"  {point.failures} of {point.requests} failed" if point.failures else ""
        text.append(f"{line}{' <- knee' if at_knee else ''}{failures}\n", "bold" if at_knee else "")
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def estimate_words(found: Estimate) -> str:
    """The estimate in a sentence or two."""
    bounds = [word for word, so in (("at most", found.at_most), ("at best", found.at_best)) if so]
    bound = f" ({' and '.join(bounds)})" if bounds else ""
    servers = "server" if found.servers == 1 else "servers"
    return (
        f"Estimate{bound}: {found.completions:,} completions of {found.tokens_each:,.0f} tokens at "
        f"{found.tokens_per_s:,.0f} tokens/s on {found.servers} {servers}: {duration(found.wall_s)}, "
        f"{found.server_hours:,.1f} GPU hours with one GPU a server. It rests on {found.rests_on}."
    )


def last_word(report: Report) -> Text:
    """Whether a run may begin."""
    fails = sum(check.status is Status.FAIL for check in report.checks)
    warns = sum(check.status is Status.WARN for check in report.checks)
    if fails:
        return Text(f"Not ready: {fails} failed, {warns} to look at.", "bold red")
    return Text(f"Ready{f', {warns} to look at' if warns else ''}.", "bold green")
