"""Holds every record and dead letter of an output against what a run promises. Pure and streaming.

Memory is four bytes a unit (index x samples): where it ended.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from common.parts import part_name
from common.records import SCHEMA, DeadLetter, Manifest, PartRow, Progress, Record
from ops.verify.expected import Difference, Expected
from ops.verify.findings import SHOWN, Findings, Kind

_NOWHERE: Final = 0
_DEAD: Final = 0xFFFF_FFFF

_KINDS: Final = {
    Difference.ID: Kind.ID,
    Difference.MESSAGES: Kind.MESSAGES,
    Difference.METADATA: Kind.METADATA,
    Difference.UNUSABLE: Kind.MESSAGES,
    Difference.USABLE: Kind.DEAD_LETTER,
}
_WORDS: Final = {
    Difference.ID: "has an id that the input does not have at that place",
    Difference.MESSAGES: "holds another conversation than the input's line",
    Difference.METADATA: "holds other metadata than the input's line",
    Difference.UNUSABLE: "answers a line of the input that cannot be used",
}
_LETTER_WORDS: Final = {
    Difference.ID: "has an id that the input does not have at that place",
    Difference.UNUSABLE: "is of a line that cannot be used, but gives another reason",
    Difference.USABLE: "says that its line cannot be used, but it can",
}


class Tallies(msgspec.Struct, frozen=True):
    """What an output holds. Tokens are of completions, as the servers counted them."""

    completions: int
    dead: int
    verdicts: dict[str, int]
    dead_by_reason: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class Checker:
    """Takes all records, then all dead letters, then says what is missing."""

    def __init__(
        self,
        run: str,
        *,
        lines: int,
        samples: int,
        rows: Sequence[PartRow],
        findings: Findings,
        expected: Expected | None = None,
    ) -> None:
        """Check a run of `lines` prompts with `samples` units each; `expected` adds ids and content."""
        self.findings = findings
        self._run = run
        self._lines = lines
        self._samples = samples
        self._rows = rows
        self._expected = expected
        self._ended = array("I", bytes(4 * lines * samples))
        self._verdicts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._prompt = self._completion = self._reasoning = 0

    def record(self, record: Record, part: int, number: int) -> None:
        """Take the record on line `number` of the part with that number."""
        if record.schema != SCHEMA:
            self._say(Kind.RECORD, record, part, f"has the unknown schema {record.schema} (line {number})")
            return
        if record.run != self._run:
            self._say(Kind.FOREIGN, record, part, f"belongs to run {record.run!r} (line {number})")
            return
        unit = self._unit(record.index, _sample_of(record))
        if unit is None:
            most = f"the input has {self._lines:,} prompts and the run {self._samples} samples of each"
            self._say(Kind.RANGE, record, part, f"is out of range (line {number}): {most}")
            return
        before = self._ended[unit]
        if before != _NOWHERE:
            self._say(Kind.DOUBLE, record, part, f"stands in {self._rows[before - 1].key} too")
            return
        self._ended[unit] = part + 1
        self._count(record)
        if self._expected is not None:
            for difference in self._expected.of_record(record):
                self._say(_KINDS[difference], record, part, _WORDS[difference])

    def letter(self, letter: DeadLetter) -> None:
        """Take one dead letter."""
        unit = self._unit(letter.index, letter.sample)
        if unit is None:
            self.findings.add(Kind.RANGE, f"{self._of(letter)} is out of range")
            return
        before = self._ended[unit]
        if before != _NOWHERE:
            where = "dead.jsonl" if before == _DEAD else self._rows[before - 1].key
            self.findings.add(Kind.DOUBLE, f"{self._of(letter)} stands in {where} too")
            return
        self._ended[unit] = _DEAD
        self._reasons[letter.reason.value] += 1
        if self._expected is not None:
            for difference in self._expected.of_letter(letter):
                self.findings.add(_KINDS[difference], f"{self._of(letter)} {_LETTER_WORDS[difference]}")

    def missing(self, *, keep: int = SHOWN) -> tuple[int, list[int]]:
        """How many units have no end, and the first few of them."""
        total = self._ended.count(_NOWHERE)
        first: list[int] = []
        at = -1
        while len(first) < min(keep, total):
            at = self._ended.index(_NOWHERE, at + 1)
            first.append(at)
        return total, first

    def name(self, unit: int, ids: dict[int, str]) -> str:
        """A unit as sentences name it."""
        index, sample = divmod(unit, self._samples)
        known = f" (id {ids[index]!r})" if index in ids else ""
        return f"index {index}{known}{self._sample(sample)}"

    def tallies(self) -> Tallies:
        """What was taken and had its place."""
        return Tallies(
            completions=self._verdicts.total(),
            dead=self._reasons.total(),
            verdicts=dict(self._verdicts.most_common()),
            dead_by_reason=dict(self._reasons.most_common()),
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            reasoning_tokens=self._reasoning,
        )

    def _unit(self, index: int, sample: int) -> int | None:
        if not (0 <= index < self._lines and 0 <= sample < self._samples):
            return None
        return index * self._samples + sample

    def _count(self, record: Record) -> None:
        self._verdicts[record.verdict.value] += 1
        turns = () if isinstance(record.turns, msgspec.UnsetType) else record.turns
        for usage in (record.usage, *(turn.usage for turn in turns)):
            self._prompt += usage.prompt_tokens or 0
            self._completion += usage.completion_tokens or 0
            self._reasoning += usage.reasoning_tokens or 0

    def _say(self, kind: Kind, record: Record, part: int, words: str) -> None:
        if self.findings.full(kind):
            self.findings.count(kind)
            return
        name = f"index {record.index} (id {record.id!r}){self._sample(_sample_of(record))}"
        self.findings.add(kind, f"{name} in {self._rows[part].key} {words}")

    def _of(self, letter: DeadLetter) -> str:
        return f"the dead letter of index {letter.index} (id {letter.id!r}){self._sample(letter.sample)}"

    def _sample(self, sample: int) -> str:
        return f" sample {sample}" if self._samples > 1 or sample else ""


def _sample_of(record: Record) -> int:
    return 0 if isinstance(record.sample, msgspec.UnsetType) else record.sample


def check_numbering(rows: Sequence[PartRow], findings: Findings) -> None:
    """See that the manifest lists parts 0, 1, 2 and so on, each once."""
    for number, row in enumerate(rows):
        if row.key != part_name(number):
            findings.add(Kind.MANIFEST, f"row {number} of the manifest is {row.key}, not {part_name(number)}")
            return  # every row after it would be named too


def check_counts(
    manifest: Manifest,
    progress: Progress | None,
    tallies: Tallies,
    total: int,
    findings: Findings,
    *,
    finished: bool,
) -> None:
    """Hold the counts of manifest and progress against each other and against what was read.

    Args:
        manifest: as read.
        progress: as read, or `None` if there is none.
        tallies: what the parts and dead letters hold.
        total: units of the input.
        findings: takes what disagrees.
        finished: whether the run says so; until then counts only bound each other.
    """
    if progress is not None:
        if not progress.balanced:
            findings.add(
                Kind.COUNTS,
                f"progress.json: accepted {progress.accepted:,} is not completed {progress.completed:,} + "
                f"dead {progress.dead:,} + queued {progress.queued:,} + in flight {progress.in_flight:,}",
            )
        if progress.stored > progress.completed:
            words = f"stored {progress.stored:,} is more than completed {progress.completed:,}"
            findings.add(Kind.COUNTS, f"progress.json: {words}")
        if progress.accepted > total:
            words = f"accepted {progress.accepted:,} is more than the input's {total:,}"
            findings.add(Kind.COUNTS, f"progress.json: {words}")
    if not finished:
        return
    wanted = {"completed": tallies.completions, "dead": tallies.dead, "accepted": total}
    _compare("manifest.json", msgspec.structs.asdict(manifest), wanted, findings)
    if progress is not None:
        wanted |= {"stored": tallies.completions, "queued": 0, "in_flight": 0}
        _compare("progress.json", msgspec.structs.asdict(progress), wanted, findings)
    for verdict in sorted({*manifest.verdicts, *tallies.verdicts}):
        said, found = manifest.verdicts.get(verdict, 0), tallies.verdicts.get(verdict, 0)
        if said != found:
            findings.add(
                Kind.COUNTS, f"manifest.json says verdict {verdict} {said:,} times, the parts {found:,}"
            )


def _compare(name: str, said: dict[str, object], wanted: dict[str, int], findings: Findings) -> None:
    for field, number in wanted.items():
        if said[field] != number:
            findings.add(Kind.COUNTS, f"{name} says {field} {said[field]:,}; what was read says {number:,}")
