"""Whatever an output holds, it is called proven exactly when every unit ended once."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from common.parts import part_name
from common.records import DeadLetter, DeadReason, Message, PartRow, Record, Response, Usage, Verdict
from ops.verify.check import Checker
from ops.verify.findings import Findings, Kind

PROMPT = Record(
    run="r",
    index=0,
    id="",
    messages=[Message("user", "x")],
    response=Response(content="y"),
    finish_reason="stop",
    verdict=Verdict.OK,
    usage=Usage(),
    model="m",
    server="s",
    params={},
    attempts=1,
    started_at="",
    latency_s=0.0,
)


@st.composite
def outputs(draw):
    """Lines, samples, and the ends of units: mostly one each, sometimes none, several or out of range."""
    lines, samples = draw(st.integers(0, 6)), draw(st.integers(1, 3))
    ends = [[unit] * draw(st.sampled_from([1, 1, 1, 1, 0, 2])) for unit in range(lines * samples)]
    more = draw(st.lists(st.integers(-2 * samples, (lines + 2) * samples), max_size=1))
    units = draw(st.permutations([unit for group in ends for unit in group] + more))
    return lines, samples, [(unit, draw(st.booleans())) for unit in units]


@given(outputs())
def test_proven_if_and_only_if_each_unit_ended_once(made):
    lines, samples, ends = made
    findings = Findings()
    rows = [PartRow(part_name(number), 1, "") for number in range(len(ends))]
    checker = Checker("r", lines=lines, samples=samples, rows=rows, findings=findings)
    for part, (unit, is_record) in enumerate(ends):
        if is_record:
            index, sample = divmod(unit, samples)
            sampled = sample if samples > 1 else msgspec.UNSET
            checker.record(msgspec.structs.replace(PROMPT, index=index, sample=sampled), part, 1)
    for unit, is_record in ends:
        if not is_record:
            index, sample = divmod(unit, samples)
            reason = DeadReason.TIMEOUT
            checker.letter(
                DeadLetter(index=index, id="", reason=reason, last_error="", attempts=1, sample=sample)
            )
    missing, first = checker.missing(keep=1000)
    counted = Counter(unit for unit, _ in ends)
    inside = {unit: counted[unit] for unit in range(lines * samples)}
    assert first == [unit for unit, number in inside.items() if number == 0]
    assert missing == len(first)
    found = {finding.kind: finding.total for finding in findings.all()}
    assert found.get(Kind.DOUBLE, 0) == sum(max(0, number - 1) for number in inside.values())
    assert found.get(Kind.RANGE, 0) == sum(number for unit, number in counted.items() if unit not in inside)
    tallies = checker.tallies()
    assert tallies.completions + tallies.dead == len(inside) - missing
