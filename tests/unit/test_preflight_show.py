"""The report on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from consumers.client.info import ServerInfo
from ops.preflight.show import estimate_words, last_word, merged, show, show_remarks
from ops.preflight.values import (
    Curve,
    CurvePoint,
    Estimate,
    Report,
    ServerFacts,
    failed,
    passed,
    skipped,
    warned,
)

A, B = "http://a", "http://b"
ESTIMATE = Estimate(
    completions=902_087,
    tokens_each=1820,
    tokens_per_s=21_000,
    wall_s=78_180,
    server_hours=152,
    servers=7,
    rests_on="the sweep",
)


def text_of(report: Report, *, remarks: bool = False, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    (show_remarks if remarks else show)(report, console)
    return console.file.getvalue()


def servers(*urls: str) -> list[ServerFacts]:
    return [ServerFacts(url=url, info=ServerInfo()) for url in urls]


def test_what_is_the_same_on_all_servers_is_said_once():
    checks = [
        passed(A, "model", "m"),
        warned(A, "runs", "16", "more"),
        passed(B, "model", "m"),
        warned(B, "runs", "48", "more"),
    ]
    kept = merged(checks, [A, B], 2)
    assert [(check.group, check.name, check.detail) for check in kept] == [
        ("all 2 servers", "model", "m"),
        (A, "runs", "16"),
        (B, "runs", "48"),
    ]
    assert merged(checks, [A, B], 3)[0].group == "2 of 3 servers"
    assert merged(checks[:2], [A], 1) == checks[:2]


def test_the_same_words_under_other_groups_are_left_alone():
    checks = [passed("input", "x", "y"), passed("redis", "x", "y")]
    assert merged(checks, [A, B], 2) == checks


def test_every_check_is_shown_with_its_remedy():
    report = Report(
        checks=[
            passed("input", "prompts", "5"),
            failed("redis", "version", "too old [1]", "use another"),
            skipped("redis", "memory", "not told"),
        ]
    )
    text = text_of(report)
    for word in ("pass", "fail", "skip", "too old [1]", "-> use another", "Not ready: 1 failed"):
        assert word in text


def test_remarks_alone_leave_out_what_passed():
    report = Report(checks=[passed("input", "prompts", "5"), warned("redis", "file", "off", "turn it on")])
    text = text_of(report, remarks=True)
    assert "prompts" not in text
    assert "-> turn it on" in text
    assert text_of(Report(checks=[passed("a", "b", "c")]), remarks=True) == ""


def test_a_curve_has_a_bar_for_each_level_and_names_the_knee():
    curve = Curve(
        url=A,
        points=[
            CurvePoint(in_flight=1, tokens_per_s=100, requests=3, p50_s=1.0, p95_s=1.2, accept_length=3.0),
            CurvePoint(in_flight=8, tokens_per_s=400, requests=24, failures=2),
            CurvePoint(in_flight=16, tokens_per_s=0, requests=24),
        ],
        knee=8,
    )
    rows = text_of(Report(checks=[], curves=[curve]), width=100).splitlines()
    one, eight, sixteen = (next(row for row in rows if row.split()[:1] == [n]) for n in ("1", "8", "16"))
    assert one.count("#") * 4 == eight.count("#")
    assert eight.endswith("<- knee  2 of 24 failed")
    assert "#" not in sixteen
    assert "knee" not in one


def test_a_curve_fits_a_terminal_of_80_columns():
    point = CurvePoint(
        in_flight=4096, tokens_per_s=20_000, requests=9, p50_s=100.0, p95_s=9999.9, accept_length=3.9
    )
    text = text_of(Report(checks=[], curves=[Curve(url=A, points=[point], knee=4096)]))
    assert any(line.rstrip().endswith("<- knee") and "4096" in line for line in text.splitlines())


def test_the_estimate_is_a_sentence():
    assert estimate_words(ESTIMATE) == (
        "Estimate: 902,087 completions of 1,820 tokens at 21,000 tokens/s on 7 servers: 21 h 43 min, "
        "152.0 GPU hours with one GPU a server. It rests on the sweep."
    )


def test_bounds_are_said():
    bounds = Estimate(**{f: getattr(ESTIMATE, f) for f in ESTIMATE.__struct_fields__} | {"at_best": True})
    assert estimate_words(bounds).startswith("Estimate (at best): ")


def test_the_last_word():
    assert last_word(Report(checks=[])).plain == "Ready."
    assert last_word(Report(checks=[warned("a", "b", "c", "d")])).plain == "Ready, 1 to look at."
    assert (
        last_word(Report(checks=[failed("a", "b", "c", "d")])).plain == "Not ready: 1 failed, 0 to look at."
    )


def test_group_headings_are_shown_once():
    report = Report(checks=[passed(A, "model", "m"), passed(B, "model", "m")], servers=servers(A, B))
    assert text_of(report).count("all 2 servers") == 1
