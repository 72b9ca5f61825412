"""The pieces that sections are built from: tables, figures, tiles, legends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.records import Verdict
from ops.report.charts import swatch
from ops.report.markup import Html, el, join

_STYLES = {verdict.value: f"v-{verdict.value}" for verdict in Verdict}


def verdict_style(verdict: str) -> str:
    """The class of a verdict's colour; one that we do not know has the colour of the others."""
    return _STYLES.get(verdict, "v-other")


def section(name: str, title: str, *children: Html) -> Html:
    """A part of the page that can be linked to and is named to those who cannot see it."""
    heading = el("h2", title, id=f"{name}-title")
    return el("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def note(words: str) -> Html:
    """A sentence that says how to read something."""
    return el("p", words, class_="note")


def figure(title: str, drawing: Html, *below: Html) -> Html:
    """A chart with its title."""
    return el("figure", el("figcaption", title), drawing, *below)


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """What colours mean: (style, name)."""
    items = [el("li", swatch(style), " ", name) for style, name in entries]
    return el("ul", *items, class_="legend")


def tile(name: str, value: str, detail: str = "", *, style: str = "") -> Html:
    """A headline figure."""
    more = el("dd", detail, class_="detail") if detail else Html()
    return el("div", el("dt", name), el("dd", value, class_="value"), more, class_=f"tile {style}".strip())


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,)
) -> Html:
    """A table. Columns of `words` are set left, others are numbers; the first cell of a row is its header."""
    columns = [el("th", name, scope="col", class_=None if n in words else "n") for n, name in enumerate(head)]
    body = []
    for row in rows:
        cells = [
            el("th", cell, scope="row") if n == 0 else el("td", cell, class_=None if n in words else "n")
            for n, cell in enumerate(row)
        ]
        body.append(el("tr", *cells))
    inside = el("table", el("caption", caption), el("thead", el("tr", *columns)), el("tbody", *body))
    # A keyboard can scroll it where it is wider than the screen.
    return el("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def pairs(entries: Iterable[tuple[str, str]]) -> Html:
    """Names with their values."""
    return el("dl", *(join(el("dt", name), el("dd", value)) for name, value in entries), class_="pairs")
