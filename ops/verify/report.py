"""What a verification found, as data and in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from ops.screen.words import counted
from ops.verify.check import Tallies
from ops.verify.findings import SHOWN, TITLES, Finding


class Outcome(StrEnum):
    """The one word for a whole output."""

    PROVEN = "proven"
    WRONG = "wrong"
    UNFINISHED = "unfinished"


EXIT_CODES = {Outcome.PROVEN: 0, Outcome.WRONG: 1, Outcome.UNFINISHED: 3}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One verification.

    Attributes:
        run: the run's name.
        output: where it was read, without secrets.
        outcome: proven, wrong, or unfinished: all is right so far, but the run has not ended.
        state: what the run last said of itself.
        units: how many ends the run is to have: prompts times samples.
        missing: how many of them have neither a record nor a dead letter.
        parts: how many parts the manifest lists.
        parts_unlisted: how many more are stored than the manifest of a run going on lists yet.
        input: the name of the input that ids and content were compared with, or null.
        tallies: what was read.
        findings: what is wrong, by kind.
        notes: what is worth knowing and not wrong.
        seconds: how long the reading of the parts took.
    """

    run: str
    output: str
    outcome: Outcome
    state: str
    units: int
    samples: int
    missing: int
    parts: int
    parts_unlisted: int
    input: str | None
    tallies: Tallies
    findings: list[Finding]
    notes: list[str]
    seconds: float

    @property
    def records_per_s(self) -> float:
        """Completions read in a second."""
        return self.tallies.completions / self.seconds if self.seconds > 0 else 0.0


def words(report: Report) -> Iterator[str]:
    """The report as lines, the verdict last."""
    tallies = report.tallies
    yield f"run {report.run} in {report.output}"
    parts, completions = counted(report.parts, "part"), counted(tallies.completions, "completion")
    yield f"  {parts}, {completions}{_listed(tallies.verdicts)}"
    yield f"  {counted(tallies.dead, 'dead letter')}{_listed(tallies.dead_by_reason)}"
    thinking = f", {tallies.reasoning_tokens:,} of them thinking" if tallies.reasoning_tokens else ""
    yield f"  tokens: {tallies.prompt_tokens:,} in, {tallies.completion_tokens:,} out{thinking}"
    yield f"  read in {report.seconds:,.1f} s: {report.records_per_s:,.0f} completions/s"
    for note in report.notes:
        yield f"  note: {note}"
    for finding in report.findings:
        yield ""
        yield f"{TITLES[finding.kind]}: {finding.total:,}"
        yield from (f"  {example}" for example in finding.examples)
        if finding.total > len(finding.examples) >= SHOWN:
            yield f"  ... and {finding.total - len(finding.examples):,} more"
    yield ""
    yield verdict(report)


def verdict(report: Report) -> str:
    """The last sentence."""
    tallies = report.tallies
    if report.outcome is Outcome.WRONG:
        total = sum(finding.total for finding in report.findings)
        return f"WRONG: {total:,} {'fault' if total == 1 else 'faults'} found; see above."
    what = f"{report.units // max(1, report.samples):,} prompts"
    if report.samples > 1:
        what += f" x {report.samples} samples"
    content = _content(report)
    if report.outcome is Outcome.PROVEN:
        ends = f"{tallies.completions:,} as one record in one part, {tallies.dead:,} as a dead letter"
        return f"PROVEN: each of the {what} ended exactly once, {ends}. {content}"
    return (
        f"NOT FINISHED (it last said: {report.state}). Of the {what}, {tallies.completions:,} have ended as "
        f"one record in one part and {tallies.dead:,} as a dead letter, each exactly once; "
        f"{report.missing:,} have no end in what could be read so far.{_newer(report.parts_unlisted)} "
        f"Nothing is wrong. {content}"
    )


def _newer(parts: int) -> str:
    if not parts:
        return ""
    return f" {parts:,} newer {'part is' if parts == 1 else 'parts are'} not in the manifest yet."


def _content(report: Report) -> str:
    if report.input is None:
        return "Content was not compared with the input: name it with --input to prove that, too."
    return f"Ids, conversations and metadata are those of {report.input}."


def _listed(tally: dict[str, int]) -> str:
    return f": {', '.join(f'{name} {number:,}' for name, number in tally.items())}" if tally else ""
