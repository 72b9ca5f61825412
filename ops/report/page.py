"""The page: what was read, as one HTML document that needs nothing else. Pure."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from ops.report import load, sections
from ops.report.markup import Html, el
from ops.report.reader import samples
from ops.report.reading import Reading
from ops.screen.words import counted

_LINKS = (
    ("figures", "Figures"),
    ("quality", "Quality"),
    ("lengths", "Lengths"),
    ("throughput", "Throughput"),
    ("servers", "Servers"),
    ("dead", "Dead letters"),
    ("samples", "Samples"),
    ("settings", "Settings"),
)

NOTHING = Html()


@cache
def _style() -> str:
    return files("ops.report").joinpath("page.css").read_text(encoding="utf-8")


def _policy(style: str) -> str:
    """Nothing may be loaded or run; only this very style sheet counts."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def page(reading: Reading, more: Html = NOTHING) -> str:
    """The whole document; `more` are sections that do not come from the run."""
    manifest, gathered = reading.manifest, reading.gathered
    state = sections.state_of(reading)
    style = _style()
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy(style)),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{manifest.run}: {state}"),
        # A style sheet's text is not escaped in HTML; ours holds nothing that could end it.
        el("style", Html(style)),
    )
    written = reading.at.strftime("%Y-%m-%d %H:%M UTC")
    top = el(
        "header",
        el("h1", el("bdi", manifest.run), " ", el("span", state, class_="state")),
        el("p", f"{reading.place}, {counted(len(manifest.parts), 'part')}, as of {written}", class_="note"),
        el("nav", *(el("a", words, href=f"#{name}") for name, words in _LINKS), aria_label="Sections"),
    )
    main = el(
        "main",
        sections.trouble(reading.faults),
        sections.headline(reading),
        sections.quality(gathered),
        load.lengths(gathered),
        load.throughput(gathered, going_on=manifest.finished_at is None),
        load.servers(gathered),
        more,
        sections.dead_letters(reading.letters),
        samples(gathered),
        sections.settings(manifest),
    )
    foot = el("footer", el("p", "Written by ops report from the manifest, the parts and the dead letters."))
    return f"<!doctype html>\n{el('html', head, el('body', top, main, foot), lang='en')}\n"
