"""The sections of the report, in the order of the page. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from common.records import Manifest, Progress, Verdict
from ops.report.charts import meter, swatch
from ops.report.figures import bad_verdicts
from ops.report.gather import Gathered, Letters
from ops.report.markup import Html, el, join
from ops.report.pieces import note, pairs, section, table, tile, verdict_style
from ops.report.reading import Faults, Reading
from ops.report.scale import duration, number, share, short
from ops.screen.words import counted

_ERROR_SHOWN = 500
"""Characters of a dead letter's last error."""


def headline(reading: Reading) -> Html:
    """The figures that answer most questions."""
    gathered, progress, manifest = reading.gathered, reading.progress, reading.manifest
    total, ok = gathered.total, gathered.verdicts[Verdict.OK.value]
    accepted, completed, dead = (
        (progress.accepted, progress.completed, progress.dead)
        if progress
        else (manifest.accepted, manifest.completed, manifest.dead)
    )
    timeline = gathered.timeline
    span = timeline.last - timeline.first if timeline.first is not None else 0.0
    tiles = [
        tile("Completed", f"{completed:,}", f"{share(completed, accepted)} of {accepted:,} accepted"),
        tile(
            "Verdict ok",
            share(ok, gathered.records),
            f"{gathered.records - ok:,} of {gathered.records:,} read are not",
            style="warn" if ok < 0.95 * gathered.records else "",
        ),
        tile(
            "Dead letters", f"{dead:,}", share(dead, accepted) + " of accepted", style="warn" if dead else ""
        ),
        tile("Output tokens", short(total.output), f"{number(gathered.output_tokens.mean)} a completion"),
    ]
    if span > 0:
        rate = gathered.records / span
        tiles += [
            tile("Throughput", f"{short(total.output / span)} tok/s", f"{number(rate)} completions/s"),
            tile("At work for", duration(span), counted(len(gathered.servers), "server")),
        ]
    if progress and progress.eta_s is not None and progress.state != "finished":
        tiles.append(tile("Left", duration(progress.eta_s), "at the present rate"))
    return section(
        "figures", "Headline figures", el("dl", *tiles, class_="tiles"), _equation(progress, manifest)
    )


def _equation(progress: Progress | None, manifest: Manifest) -> Html:
    if progress is None:
        return note(
            f"Without progress.json, the manifest counts {manifest.accepted:,} accepted, "
            f"{manifest.completed:,} completed, {manifest.dead:,} dead."
        )
    terms = [
        ("accepted", progress.accepted),
        ("completed", progress.completed),
        ("dead", progress.dead),
        ("queued", progress.queued),
        ("in flight", progress.in_flight),
    ]
    signs = ("", "=", "+", "+", "+")
    shown = [
        el("span", f"{sign} " if sign else "", el("b", f"{count:,}"), f" {name}")
        for sign, (name, count) in zip(signs, terms, strict=True)
    ]
    holds = progress.balanced and progress.stored <= progress.completed
    word = (
        el("span", "\u2713 holds", class_="good")
        if holds
        else el("strong", "\u2717 does not hold", class_="bad")
    )
    stored = (
        f" {progress.stored:,} of {progress.completed:,} completed are stored in parts. "
        f"Taken at {progress.at}."
    )
    return el("p", *(join(term, " ") for term in shown), word, el("br"), stored, class_="equation")


def trouble(faults: Faults) -> Html:
    """What could not be read; nothing where all could."""
    if not faults.count:
        return Html()
    more = faults.count - len(faults.words)
    items = [el("li", words) for words in faults.words]
    if more:
        items.append(el("li", f"and {more:,} more"))
    return section(
        "faults",
        "What could not be read",
        el("p", "The figures on this page leave it out. ops verify tells all that is wrong."),
        el("ul", *items),
    )


def quality(gathered: Gathered) -> Html:
    """Verdicts, finish reasons and attempts."""
    whole = gathered.records
    verdicts = _by_count(gathered.verdicts)
    rows = [
        [join(swatch(verdict_style(name)), " ", name), f"{count:,}", share(count, whole)]
        for name, count in verdicts
    ]
    pieces = [(verdict_style(name), count / whole) for name, count in verdicts if whole]
    said = ", ".join(f"{name} {share(count, whole)}" for name, count in verdicts)
    tables = [
        table("Verdicts", ["verdict", "completions", "share"], rows),
        _tally("Finish reasons", "reason", _by_count(gathered.finish_reasons), whole),
        _tally("Attempts", "attempts", sorted(gathered.attempts.items()), whole),
    ]
    timed = gathered.timeline.first is not None
    return section(
        "quality",
        "Quality",
        meter(pieces, label=f"Verdicts: {said}"),
        bad_verdicts(gathered.timeline) if timed else Html(),
        note(
            "By the time the request was sent. What was retried and came out well counts once, as it ended."
        ),
        el("div", *tables, class_="beside"),
    )


def _tally(caption: str, head: str, counts: Iterable[tuple[object, int]], whole: int) -> Html:
    rows = [[str(name), f"{count:,}", share(count, whole)] for name, count in counts]
    return table(caption, [head, "completions", "share"], rows)


def _by_count(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def dead_letters(letters: Letters) -> Html:
    """Prompts that ended without a completion."""
    if not letters.counts:
        return section("dead", "Dead letters", note("None so far: no prompt ended without a completion."))
    whole = letters.counts.total()
    parts: list[Html] = []
    for reason, count in _by_count(letters.counts):
        examples = [
            [
                letter.id,
                _clip(letter.last_error),
                str(letter.index) if letter.line is None else f"{letter.index} (line {letter.line})",
                str(letter.attempts),
                letter.server or "\u2013",
            ]
            for letter in letters.examples[reason]
        ]
        more = f"the first {len(examples)} of {count:,}" if count > len(examples) else f"{count:,}"
        parts.append(
            el(
                "details",
                el("summary", el("b", reason), f" {count:,} ({share(count, whole)})"),
                table(
                    f"{reason}: {more}",
                    ["id", "last error", "index", "attempts", "server"],
                    examples,
                    words=(0, 1, 4),
                ),
                open="" if not parts else None,
            )
        )
    return section("dead", "Dead letters", *parts)


def _clip(words: str) -> str:
    return words if len(words) <= _ERROR_SHOWN else f"{words[:_ERROR_SHOWN]}\u2026"


def settings(manifest: Manifest) -> Html:
    """What was asked for: settings and input."""
    source = manifest.input
    known = [
        ("Run", manifest.run),
        ("Created", manifest.created_at),
        ("Finished", manifest.finished_at or "not yet"),
        ("Input", str(source.get("name", "\u2013"))),
        ("Prompts", _count(source.get("lines"))),
        ("Bytes", _count(source.get("bytes"))),
        ("SHA-256", str(source.get("sha256", "\u2013"))),
        ("Parts", f"{len(manifest.parts):,}"),
    ]
    groups = [
        el("div", el("h3", name.capitalize()), pairs(_flat(group)))
        for name in ("generation", "quality", "consumer")
        if isinstance(group := manifest.settings.get(name), dict) and group
    ]
    rest = {
        key: value
        for key, value in manifest.settings.items()
        if key in ("output", "batch_size", "high_water", "skip_invalid")
    }
    if rest:
        groups.append(el("div", el("h3", "Run"), pairs(_flat(rest))))
    return section(
        "settings", "Input and settings", pairs(known), el("div", *groups, class_="beside settings")
    )


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "\u2013"


def _flat(group: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(key), value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in group.items()
    ]


def state_of(reading: Reading) -> str:
    """The run's state in a word or two."""
    if reading.manifest.finished_at:
        return "finished"
    return reading.progress.state if reading.progress else "not finished"
