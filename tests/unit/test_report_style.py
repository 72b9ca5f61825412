"""The page's colours can be told from its paper, in both schemes, and the sheet cannot end itself."""

import re
from pathlib import Path

import pytest

from common.records import Verdict
from ops.report import page

SHEET = Path(page.__file__).with_name("page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6});", block))
    for block in re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)[:2]
)
WORDS = {"ink", "soft", "link", "good", "bad", "warn"}
GROUND = {"paper", "card", "rule"}


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, two):
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(LIGHT.keys() - GROUND))
def test_every_colour_stands_out_from_the_paper(scheme, name):
    needed = 4.5 if name in WORDS else 3
    assert min(contrast(scheme[name], scheme[ground]) for ground in ("paper", "card")) >= needed


def test_both_schemes_have_the_same_colours():
    assert LIGHT.keys() == DARK.keys()


def test_every_verdict_has_a_colour():
    for verdict in Verdict:
        assert f".v-{verdict.value} {{" in SHEET


def test_the_sheet_loads_nothing_and_cannot_end_its_element():
    assert not re.search(r"<|url\(|@import|@font-face|expression", SHEET)
