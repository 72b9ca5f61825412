"""The report on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.preflight.values import Check, Curve, Estimate, Report, Status
from ops.screen.words import duration

BAR: Final = 24

_STYLES: Final = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.SKIP: "dim",
}


def show(report: Report, console: Console) -> None:
    """The whole report: every check, the sweep's curves, the estimate, and a last word."""
    show_checks(report.checks, report, console)
    for curve in report.curves:
        console.print(curve_text(curve))
    if report.estimate:
        console.print(Text(estimate_words(report.estimate)))
    console.print(last_word(report))


def show_remarks(report: Report, console: Console) -> None:
    """The checks that warn or fail, if there are any."""
    show_checks(report.remarks, report, console)


def show_checks(checks: Sequence[Check], report: Report, console: Console) -> None:
    """One row per check, under its group, with the remedy below what was found."""
    width = max((len(check.name) for check in checks), default=0)
    answering = [server.url for server in report.servers if server.info is not None]
    for group, rows in grouped(merged(checks, answering, len(report.servers))).items():
        console.print(Text(group, "bold"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(width=4)
        table.add_column(width=width)
        table.add_column(overflow="fold")
        for check in rows:
            table.add_row(Text(check.status.value, _STYLES[check.status]), Text(check.name), _words(check))
        console.print(table)


def _words(check: Check) -> Text:
    words = Text(check.detail, "dim" if check.status is Status.SKIP else "")
    if check.remedy and check.status in (Status.WARN, Status.FAIL):
        words.append(f"\n-> {check.remedy}", "italic")
    return words


def merged(checks: Sequence[Check], urls: Sequence[str], servers: int) -> list[Check]:
    """The checks, those that are the same on every one of several servers once, under the name of all.

    Args:
        checks: all checks.
        urls: the servers that answered, whose checks are merged.
        servers: how many there are.
    """
    if len(urls) < 2:  # noqa: PLR2004  # one server is no several
        return list(checks)
    everywhere = f"all {servers} servers" if len(urls) == servers else f"{len(urls)} of {servers} servers"
    seen = Counter(msgspec.structs.replace(check, group="") for check in checks if check.group in urls)
    kept: list[Check] = []
    for check in checks:
        bare = msgspec.structs.replace(check, group="")
        if check.group not in urls or seen[bare] < len(urls):
            kept.append(check)
        elif (shared := msgspec.structs.replace(check, group=everywhere)) not in kept:
            kept.append(shared)
    return kept


def grouped(checks: Sequence[Check]) -> dict[str, list[Check]]:
    """The checks by group, in the order in which the groups first come."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.group, []).append(check)
    return found


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
