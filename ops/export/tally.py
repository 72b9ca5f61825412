"""What an export counts as it goes, shard by shard, so that a resumed export counts the same. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from common.records import Message, Response
from ops.export.errors import ExportError, ShortAnswersError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

K = TypeVar("K", str, int)

SHORT: Final = 16
"""A row with fewer tokens to learn from than this is short."""
SHORT_SHARE: Final = 0.01
LEFT_OUT_SHARE: Final = 0.01
EARLY_ROWS: Final = 2000
EARLY_SHARE: Final = 0.2
"""A set that is this bad after so many rows is stopped then, not after hours."""

_CHARACTERS_PER_TOKEN: Final = 4
_EXAMPLES: Final = 5


class Tally(msgspec.Struct, kw_only=True):
    """Counts over the rows of a shard or of a whole export.

    `lengths` and `mask_sums` are histograms by bit length: bucket 3 counts the values from 4 to 7. `left_out`
    counts the answers that could not be exported, by reason, and `examples` names a few of them;
    `too_long` counts those that lie wholly past the length that rows are cut to.
    """

    records: int = 0
    rows: int = 0
    short: int = 0
    verdicts: dict[str, int] = {}
    finish_reasons: dict[str, int] = {}
    completion_tokens: int = 0
    longest: int = 0
    without_usage: int = 0
    other_assistant_turns: int = 0
    special_messages: int = 0
    lengths: dict[int, int] = {}
    too_long: int = 0
    tokens: int = 0
    masked: int = 0
    truncated: int = 0
    trimmed: int = 0
    normalised: int = 0
    mask_sums: dict[int, int] = {}
    left_out: dict[str, int] = {}
    examples: dict[str, list[str]] = {}

    def count_records(self, records: Sequence[Any]) -> list[int]:
        """Count records, however decoded; return their lengths in tokens, estimated where not given."""
        self.records += len(records)
        _add(self.verdicts, Counter(str(record.verdict) for record in records))
        _add(self.finish_reasons, Counter(record.finish_reason for record in records))
        lengths = [record.usage.completion_tokens for record in records]
        for place, length in enumerate(lengths):
            if length is None:
                self.without_usage += 1
                lengths[place] = _estimate(records[place].response)
        self.completion_tokens += sum(lengths)
        self.longest = max(self.longest, *lengths)
        _add(self.lengths, Counter(map(int.bit_length, lengths)))
        for record in records:
            messages = record.messages
            if len(messages) > 1:
                self._look_at(messages, record.turns)
        return lengths

    def _look_at(self, messages: Sequence[Message], turns: Any) -> None:
        """Count what a conversation of several messages may hold."""
        earlier = sum(message.role == "assistant" for message in messages)
        made = 0
        if turns:
            made = len(msgspec.json.decode(turns) if isinstance(turns, msgspec.Raw) else turns)
        self.other_assistant_turns += earlier > made
        self.special_messages += any(
            message.tool_calls or message.name or message.tool_call_id for message in messages
        )

    def count_rows(self, rows: int, *, short: int) -> None:
        """Count rows that go into a shard."""
        self.rows += rows
        self.short += short

    def count_tokens(self, *, tokens: int, masked: int, truncated: bool) -> None:
        """Count one row of token ids."""
        self.tokens += tokens
        self.masked += masked
        self.truncated += truncated
        _add(self.mask_sums, {masked.bit_length(): 1})

    def leave_out(self, reason: str, name: str) -> None:
        """Count an answer that cannot be exported; `reason` is what is said of it and others, as a clause."""
        _add(self.left_out, {reason: 1})
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(name)

    def add(self, other: Tally) -> None:
        """Add the counts of what comes next."""
        for name in Tally.__struct_fields__:
            mine, its = getattr(self, name), getattr(other, name)
            if name == "longest":
                self.longest = max(mine, its)
            elif name == "examples":
                for reason, shown in its.items():
                    mine[reason] = [*mine.get(reason, []), *shown][:_EXAMPLES]
            elif isinstance(mine, dict):
                _add(mine, its)
            elif its:
                setattr(self, name, mine + its)


def total(tallies: Iterable[Tally]) -> Tally:
    """Add tallies up, in order."""
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


def check(tally: Tally, *, tokens: bool = False, allow_short: bool, done: bool) -> None:
    """See that the set is fit to learn from; before it is `done`, that it is not hopeless.

    Raises:
        ShortAnswersError: too many rows hold almost nothing.
        ExportError: too many answers had to be left out.
    """
    failed = sum(tally.left_out.values())
    answers = tally.rows + failed
    if done and not answers:
        raise ExportError(
            f"there is nothing to export: of the records read, {tally.records} have a wanted verdict, and "
            f"{tally.too_long} answers lie past --max-length"
        )
    if not done and answers < EARLY_ROWS:
        return
    if not allow_short and tally.short > tally.rows * (SHORT_SHARE if done else EARLY_SHARE):
        what = "loss mask sums to" if tokens else "answer has"
        raise ShortAnswersError(
            f"{tally.short} of {tally.rows} rows ({tally.short / tally.rows:.1%}) have almost nothing to "
            f"learn from: their {what} fewer than {SHORT} tokens, and at most {SHORT_SHARE:.0%} may. Nothing "
            "was published. Look at some answers with ops report, repair the run with producer enqueue "
            "--missing-from, or give --allow-short if such answers are what you want"
        )
    if failed > answers * (LEFT_OUT_SHARE if done else EARLY_SHARE):
        reasons = "; ".join(
            f"{count} {reason} (such as {tally.examples[reason][0]})"
            for reason, count in sorted(tally.left_out.items(), key=lambda item: -item[1])
        )
        raise ExportError(
            f"{failed} of {answers} answers ({failed / answers:.1%}) cannot be exported, and at most "
            f"{LEFT_OUT_SHARE:.0%} may be left out: {reasons}. Nothing was published"
            + (". Is this the tokenizer of the model that made the run?" if tokens else "")
        )


def _estimate(response: Response | msgspec.Raw) -> int:
    """About how many tokens an answer has."""
    if isinstance(response, msgspec.Raw):
        response = msgspec.json.decode(response, type=Response)
    return (len(response.content or "") + len(response.reasoning_content or "")) // _CHARACTERS_PER_TOKEN


def _add(counts: dict[K, int], more: Mapping[K, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count
