"""Whatever a model wrote stays text on the page, and whatever is counted over time adds up."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.report_runs import letters, made_up, write

from common.records import Message, Response
from common.storage import open_storage
from ops.report.markup import visible
from ops.report.page import page
from ops.report.read import read_run
from ops.report.reader import MOST, clip, passage
from ops.report.timeline import Timeline

ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "footer",
    "h1", "h2", "h3", "h4", "p", "a", "b", "bdi", "br", "div", "span", "strong", "small", "dl", "dt",
    "dd", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption",
    "details", "summary", "article", "svg", "desc", "g", "rect", "line", "text", "path", "circle",
}  # fmt: skip
"""Every element that a page of ours has: none that runs, loads or sends."""
VOID = {"meta", "br", "hr"}
HOSTILE = [
    "</script><script>alert(1)</script>",
    "</style></title></textarea></div></details></section></main>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<!--", "-->", "<![CDATA[", "]]>", "<?php", "<!doctype x>", "<", "</", "<a", "&", "&lt;", "&#60;",
    "&#x3c;",     '" onmouseover=alert(1) x="', "' onfocus=alert(1) autofocus '", "javascript:alert(1)",
    "\u202e</div>\u202c", "\u2067\u2066", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
    "\x00", "\x0c", "\r\n", "\x1b[31m", "\x7f", "\x85", "\ufeff", "\ufffe", "\U0001f469\u200d\U0001f467",
    "e\u0301" * 5, "\u2028", "{{7*7}}", "${x}", "\n\n\n", "\t", " ",
]  # fmt: skip


class Reader(HTMLParser):
    """Reads a page as a browser would: its elements, attributes, and each element's text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.kinds: list[str] = []
        self.attributes: set[str] = set()
        self._blocks: list[list[str]] = []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED, tag
        self.attributes |= {name for name, _ in attrs}
        if tag in VOID:
            return
        self.open.append(tag)
        self._blocks.append([])
        self.kinds.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        words = "".join(self._blocks.pop())
        if self.kinds.pop() == "text":
            self.texts.append(words)

    def handle_data(self, data):
        if self._blocks:
            self._blocks[-1].append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    def unknown_decl(self, data):
        raise AssertionError(data)

    def handle_pi(self, data):
        raise AssertionError(data)


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    assert reader.open == []
    assert not any(name.startswith("on") or name in ("style", "src", "srcset") for name in reader.attributes)
    return reader


def shown(words: str) -> str:
    """The text that the page's two pieces show together."""
    return "".join(read(passage(words)).texts)


texts = st.one_of(
    st.text(st.characters(exclude_categories=[])),
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text()), max_size=40).map("".join),
    st.tuples(st.sampled_from(HOSTILE), st.integers(1, 3000)).map(lambda pair: pair[0] * pair[1]),
)


@given(texts)
@settings(deadline=None)
def test_a_text_is_shown_as_it_is_and_opens_nothing(words):
    if words.strip():
        assert shown(words) == visible(words[:MOST])
    else:
        assert read(passage(words)).texts == []


@pytest.mark.parametrize("seed", HOSTILE)
def test_a_megabyte_of_anything_is_shown_up_to_a_bound(seed):
    words = "x" + seed * (1_000_000 // len(seed))
    markup = passage(words)
    assert shown(words) == visible(words[:MOST])
    assert "more characters are in the part" in markup
    assert len(markup) < 12 * MOST


@given(st.lists(texts, min_size=7, max_size=7))
@settings(deadline=None, max_examples=25)
def test_no_field_of_an_output_breaks_out_of_the_page(tmp_path_factory, words):
    # What is not valid Unicode cannot be in a file of JSON.
    words = [text.encode(errors="replace").decode() for text in words]
    record = msgspec.structs.replace(
        made_up(1)[0],
        id=words[0],
        server=words[1],
        finish_reason=words[2],
        messages=[Message("system", words[3]), Message(words[4], [{"type": "text", "text": words[5]}])],
        response=Response(content=words[6], reasoning_content=words[0]),
        model=words[1],
    )
    letter = msgspec.structs.replace(letters(1)[0], id=words[0], last_error=words[1], server=words[2])
    folder = write(
        tmp_path_factory.mktemp("hostile") / "nightly",
        [record],
        dead=[letter],
        manifest={
            "run": words[0],
            "input": {"name": words[1], "sha256": words[2]},
            "settings": {"generation": {"system": words[3], words[4] or "x": [words[5]]}},
        },
        progress={"at": words[6], "state": words[5]},
    )
    made = make(folder)
    found = read(made).texts
    for text in (words[3], words[5], words[0], words[6]):
        if text.strip():
            assert visible(clip(text)[0]) in found


def make(folder: Path) -> str:
    reading = read_run(open_storage(str(folder)), samples=4, at=datetime(2026, 2, 1, tzinfo=UTC))
    assert reading.faults.words == []
    return page(reading)


moments = st.lists(
    st.tuples(
        st.floats(0, 5_000_000, allow_nan=False),
        st.floats(0, 90_000, allow_nan=False),
        st.integers(0, 5000),
        st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=60,
)


@given(moments)
@settings(deadline=None)
def test_buckets_hold_what_a_slow_count_of_the_same_requests_gives(requests):
    timeline = Timeline()
    for start, latency, tokens, server in requests:
        timeline.add(server, "ok", start, start + latency, tokens=tokens)
    first, last = timeline.span
    width = timeline.width
    for server, track in timeline.servers.items():
        held: dict[int, float] = defaultdict(float)
        made: dict[int, float] = defaultdict(float)
        for start, latency, tokens, where in requests:
            if where != server:
                continue
            end = start + latency
            for bucket in range(int(start // width), int(end // width) + 1):
                inside = max(0.0, min(end, (bucket + 1) * width) - max(start, bucket * width))
                held[bucket] += inside
                made[bucket] += tokens * inside / (end - start) if end > start else tokens
        buckets = range(first, last + 1)
        assert track.held.values(first, last) == pytest.approx([held[b] for b in buckets], abs=1e-3)
        assert track.tokens.values(first, last) == pytest.approx([made[b] for b in buckets], abs=1e-3)
    assert sum(sum(t.ended.values(first, last)) for t in timeline.servers.values()) == len(requests)
