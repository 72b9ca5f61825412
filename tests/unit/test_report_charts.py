import re
from xml.etree import ElementTree as ET

import pytest

from ops.report.charts import Bar, Series, Tick, area, bars, chart, curve, hover, meter, top, y_ticks
from ops.report.figures import bad_verdicts, histogram, over_time
from ops.report.histogram import LogHistogram
from ops.report.markup import Html, el, join, text, visible
from ops.report.timeline import Timeline


def parsed(markup):
    """The drawing as a tree; places that are percentages must lie within it."""
    tree = ET.fromstring(markup)
    for node in tree.iter():
        for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"):
            value = node.get(key, "")
            if value.endswith("%"):
                assert -0.001 <= float(value[:-1]) <= 100.001, (node.tag, key, value)
    return tree


def test_text_is_escaped_and_markup_is_not():
    assert el("p", "<b>", Html("<i></i>"), class_='"x') == '<p class="&quot;x">&lt;b&gt;<i></i></p>'
    assert join("a&", text("b")) == "a&amp;b"
    assert el("meta", name="a") == '<meta name="a">'
    assert el("details", open="") == "<details open></details>"
    assert el("p", title=None) == "<p></p>"


def test_control_characters_are_shown_as_signs():
    assert visible("a\0\r\x1b\x7f\x85\u202eb\ud800\n\t") == "a␀␍␛␡[U+0085][U+202E]b\ufffd\n\t"
    assert visible("👩‍👩‍👧 עברית हिन्दी") == "👩‍👩‍👧 עברית हिन्दी"


def test_bars_stack_up_to_their_height():
    tree = parsed(el("g", bars([Bar(0.25, 0.5, [("a", 30), ("b", 10), ("c", 0)], "forty")], 80)))
    low, high = tree.findall(".//rect")
    assert (low.get("x"), low.get("width"), low.get("y"), low.get("height")) == (
        "25%",
        "25%",
        "62.5%",
        "37.5%",
    )
    assert (high.get("y"), high.get("height")) == ("50%", "12.5%")
    assert tree.findtext(".//title") == "forty"


def test_a_line_breaks_at_gaps_and_one_value_alone_is_still_seen():
    tree = parsed(area(Series("n", "s", [1, 2, None, 3, None]), 4))
    lines = [node.get("d") for node in tree.findall("path") if "line" in node.get("class")]
    assert lines == ["M100 750L300 500", "M600 250L800 250"]
    assert len(tree.findall("path")) == 4


def test_nothing_at_all_is_an_empty_drawing():
    assert parsed(area(Series("n", "s", []), 1)).findall("path") == []
    assert hover([]) == ""
    assert bars([], 1) == ""


def test_a_chart_names_itself_to_those_who_cannot_see_it():
    drawn = chart(Html(), label="A <b>", description="up", x=[Tick(0.5, "now", minor=True)], y=y_ticks(9))
    tree = parsed(drawn)
    assert tree.get("role") == "img"
    assert tree.get("aria-label") == "A <b>"
    assert tree.findtext("desc") == "up"
    assert [node.text for node in tree.findall("text")] == ["0", "2.5", "5", "7.5", "10", "now"]
    assert top(9) == 10


def test_curves_and_meters():
    tree = parsed(el("g", curve([(0, 0), (0.5, 0.75), (1, 1)], "s")))
    assert len(tree.findall("line")) == 2
    assert len(tree.findall("circle")) == 3
    assert [rect.get("width") for rect in parsed(meter([("a", 0.75), ("b", 0), ("c", 0.25)], label="m"))] == [
        "75%",
        "25%",
    ]


def numbers(*values):
    found = LogHistogram()
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize(
    "values", [(), (0,), (1,), (0.0001, 5000), (4096,) * 9, (0, 1, 10, 100, 10**6), (1e-300, 1e300)]
)
def test_histograms_of_anything_are_drawn_within_their_frame(values):
    drawn = histogram("T", numbers(*values), numbers(*values[:1]), unit="tokens", noun="things")
    svg = re.search(r'<svg.*?class="chart".*?</svg>', drawn)[0]
    tree = parsed(svg)
    said = [node.findtext("title") for node in tree.findall("g")]
    counts = [int(re.search(r": ([\d,]+)", words)[1].replace(",", "")) for words in said]
    assert sum(counts) == len(values)
    labels = [node for node in tree.findall("text") if "x" in node.get("class").split()]
    assert len(labels) <= 12


def test_verdicts_over_time_show_shares_of_what_was_asked_for_then():
    timeline = Timeline()
    for moment in range(4):
        timeline.add("s", "looping" if moment == 0 else "ok", 60.1, 61.0)
    timeline.add("s", "strange", 63.0, 64.0)
    drawn = bad_verdicts(timeline)
    assert "4 completions: looping 25.0 %" in drawn
    assert "1 completions: strange 100.0 %" in drawn
    assert "v-other" in drawn


def test_over_time_says_each_step():
    timeline = Timeline()
    timeline.add("s", "ok", 60.0, 62.0)
    drawn = over_time("T", timeline, [1.0, None, 3.0], style="s-rate", unit="x/s")
    assert "00:01:00 UTC: 1 x/s" in drawn
    assert "00:01:01 UTC: no figure" in drawn
    assert "Highest 3, mean 2 x/s." in drawn
