"""A conversation as token ids, with a loss mask over exactly what the model produced, and its checks.

The prompt is rendered by the model's own chat template just as the server was sent it; the whole
conversation, answer included, is rendered too, and must begin with the prompt. What follows is what the model
produced. The two are turned into ids apart, as happens in inference, so no token lies across the boundary.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import msgspec

from common.records import Message, Record, Response, Usage, Verdict
from ops.export.errors import ExportError
from ops.export.rows import locate_turns, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ops.export.chat import Chat, Rendered
    from ops.export.options import ExportOptions

TOLERANCE_TOKENS: Final = 8
TOLERANCE_SHARE: Final = 0.02
"""How far a mask's sum may be from the server's count: this many tokens or this share, whichever is more."""

_SEAMS: Final = 4
_SPACE_TOKENS: Final = 3
"""The most tokens that one white space character can take: its bytes in UTF-8."""


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of token ids. `ids` are packed 32-bit integers; the mask is 0 up to `start`, 1 from there on.

    `turn` is the place of the answer among the conversation's messages.
    """

    id: str
    run: str
    index: int
    sample: int
    turn: int
    verdict: str
    truncated: bool
    ids: bytes
    start: int

    @property
    def length(self) -> int:
        """How many tokens the row has."""
        return len(self.ids) // array("i").itemsize

    @property
    def masked(self) -> int:
        """The mask's sum: how many tokens there are to learn from."""
        return self.length - self.start

    @property
    def mask(self) -> bytes:
        """The loss mask as packed 8-bit integers."""
        return bytes(self.start) + b"\1" * self.masked

    def line(self) -> bytes:
        """The row as a line of JSON."""
        head = msgspec.json.encode(
            {
                name: getattr(self, name)
                for name in ("id", "run", "index", "sample", "turn", "verdict", "truncated")
            }
        )
        ids = msgspec.json.encode(array("i", self.ids).tolist())
        mask = (b"0," * self.start + b"1," * self.masked)[:-1]
        return b'%b,"input_ids":%b,"loss_mask":[%b]}' % (head[:-1], ids, mask)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one answer: a row, the check that it fails, or neither where it is too long."""

    name: str
    row: TokenRow | None = None
    reason: str = ""
    trimmed: bool = False
    normalised: bool = False


class Answer(msgspec.Struct, frozen=True):
    """One thing that the model produced in a run: what it was shown, and what it said."""

    turn: int
    history: list[Message]
    response: Response
    finish_reason: str
    usage: Usage
    verdict: Verdict


def answers_of(record: Record) -> Iterator[Answer]:
    """Every turn that the run produced, each on the history it was produced on; the last turn last.

    Raises:
        ExportError: a regenerated turn is not in the conversation.
    """
    if not isinstance(record.turns, msgspec.UnsetType):
        places = locate_turns(record.messages, record)
        for place, turn in zip(places, record.turns, strict=True):
            yield Answer(
                place, record.messages[:place], turn.response, turn.finish_reason, turn.usage, turn.verdict
            )
    yield Answer(
        len(record.messages),
        record.messages,
        record.response,
        record.finish_reason,
        record.usage,
        record.verdict,
    )


def tokenize(record: Record, chat: Chat, options: ExportOptions) -> Iterator[Outcome]:
    """Turn a record into rows of tokens, one per turn that the run produced with a wanted verdict."""
    sample = sample_of(record)
    try:
        answers = list(answers_of(record))
    except ExportError as error:
        yield Outcome(name=f"{record.run}/{record.id}#{sample}", reason=str(error))
        return
    for answer in answers:
        if answer.verdict not in options.verdicts:
            continue
        name = f"{record.run}/{record.id}#{sample} turn {answer.turn}"
        try:
            rendered = chat.render(record, answer)
        except ExportError as error:
            yield Outcome(name=name, reason=str(error))
            continue
        prompt, produced, *own = chat.encode_all([rendered.prompt, rendered.produced, *rendered.own_texts])
        reason = _fault(answer, rendered, produced, sum(map(len, own)), chat)
        if reason:
            yield Outcome(name=name, reason=reason)
            continue
        whole = len(prompt) + len(produced)
        ids = array("i", (*prompt, *produced)[: options.max_length])
        if len(prompt) >= len(ids):
            yield Outcome(name=name)
            continue
        yield Outcome(
            name=name,
            row=TokenRow(
                id=record.id,
                run=record.run,
                index=record.index,
                sample=sample,
                turn=answer.turn,
                verdict=answer.verdict.value,
                truncated=len(ids) < whole,
                ids=ids.tobytes(),
                start=len(prompt),
            ),
            trimmed=rendered.trimmed,
            normalised=chat.normalize(rendered.produced) != rendered.produced,
        )


def _fault(answer: Answer, rendered: Rendered, produced: list[int], own: int, chat: Chat) -> str:
    """Why the ids cannot be trusted, or nothing; `own` is how many tokens the model's own words are."""
    if not produced:
        return "have nothing that the model produced"
    if chat.decode(produced) != chat.normalize(rendered.produced):
        return "do not decode to the text that the model produced"
    # Where the model's text meets the template's, tokens may join or part.
    fewest, most = own - _SEAMS, own + chat.scaffold_tokens + _SEAMS + rendered.spaces * _SPACE_TOKENS
    if not fewest <= len(produced) <= most:
        return "have a mask that is not as long as the answer and the template's own tokens"
    said = answer.usage.completion_tokens
    if said is not None and abs(said - len(produced)) > max(TOLERANCE_TOKENS, said * TOLERANCE_SHARE):
        return (
            f"have a mask sum that is not the server's completion_tokens (within {TOLERANCE_TOKENS} tokens "
            f"or {TOLERANCE_SHARE:.0%})"
        )
    return ""
