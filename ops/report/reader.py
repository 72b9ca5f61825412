"""Completions to read side by side: prompt, thinking, answer. Pure.

What is shown was written by a model or by whoever wrote the prompts; `markup` keeps it text.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from common.records import Message, Verdict
from ops.report.charts import swatch
from ops.report.gather import Gathered
from ops.report.markup import Html, el, join
from ops.report.pieces import note, section, verdict_style
from ops.report.samples import Sample
from ops.report.scale import duration

SHOWN: Final = 800
"""Characters of a text that are seen without a click."""
MOST: Final = 40_000
"""Characters of a text that the page holds."""
_BREAK: Final = 120


def samples(gathered: Gathered) -> Html:
    """A few completions of each verdict, the rarest first, ok last."""
    names = [name for name, _ in sorted(gathered.verdicts.items(), key=lambda item: item[1])]
    names.sort(key=lambda name: name == Verdict.OK)
    groups = [_group(name, gathered, first=name == names[0]) for name in names]
    if not any(groups):
        return section("samples", "Samples", note("No completion is shown."))
    return section(
        "samples",
        "Samples by verdict",
        note("Chosen by their place in the input alone, spread over the run, so that nobody picked them."),
        *groups,
    )


def _group(verdict: str, gathered: Gathered, *, first: bool) -> Html:
    found = gathered.samples.of(verdict)
    if not found:
        return Html()
    title = join(swatch(verdict_style(verdict)), " ", verdict)
    count = el("small", f" {len(found)} of {gathered.verdicts[verdict]:,}")
    return el(
        "details",
        el("summary", title, count),
        *map(_sample, found),
        class_="verdict",
        open="" if first else None,
    )


def _sample(sample: Sample) -> Html:
    tokens = sample.usage.get("completion_tokens")
    facts = [
        f"index {sample.index}" + (f", sample {sample.sample}" if sample.sample else ""),
        sample.finish_reason,
        f"{tokens:,} tokens" if tokens is not None else "tokens not counted",
        duration(sample.latency_s),
        f"attempt {sample.attempts}",
        sample.server,
        sample.started_at[:19],
    ]
    return el(
        "article",
        el("h3", el("bdi", sample.id)),
        el("p", " \u00b7 ".join(facts), class_="facts"),
        el(
            "div",
            _column("Prompt", *(_message(message) for message in sample.messages)),
            _column("Thinking", passage(sample.response.reasoning_content)),
            _column("Answer", passage(sample.response.content)),
            class_="columns",
        ),
    )


def _column(title: str, *inside: Html) -> Html:
    return el("div", el("h4", title), *inside, class_="column")


def _message(message: Message) -> Html:
    role = Html() if message.role == "user" else el("p", message.role, class_="role")
    return join(role, passage(_words(message.content)))


def _words(content: str | list[dict[str, Any]] | None) -> str | None:
    """The text of a message; what is no text is shown as JSON."""
    if content is None or isinstance(content, str):
        return content
    parts = [
        part["text"] if isinstance(part.get("text"), str) else msgspec.json.encode(part).decode()
        for part in content
    ]
    return "\n".join(parts)


def passage(words: str | None) -> Html:
    """A text of any length and content: its beginning, and the rest behind a click."""
    if words is None:
        return el("p", "none", class_="none")
    if not words.strip():
        return el("p", f"{len(words)} characters, all white space" if words else "empty", class_="none")
    shown, rest, left = clip(words)
    beginning = el("div", shown, class_="text", dir="auto")
    if not rest:
        return beginning
    more = el("p", f"\u2026 {left:,} more characters are in the part.", class_="none") if left else Html()
    reading_on = el("summary", f"read on: {len(rest) + left:,} more characters")
    return join(beginning, el("details", reading_on, el("div", rest, class_="text", dir="auto"), more))


def clip(words: str) -> tuple[str, str, int]:
    """What is shown at once, what on a click, and how many characters not at all.

    The first cut is at white space where there is some near; nothing is lost between the two.
    """
    if len(words) <= SHOWN + _BREAK:
        return words, "", 0
    at = max(words.rfind(" ", SHOWN - _BREAK, SHOWN), words.rfind("\n", SHOWN - _BREAK, SHOWN)) + 1 or SHOWN
    return words[:at], words[at:MOST], max(0, len(words) - MOST)
