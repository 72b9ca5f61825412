"""One line of the input becomes one prompt, or the reason why it cannot. Pure: no clock, no files.

Four shapes are read:

    {"id"?, "prompt": str}
    {"id"?, "messages": [{"role", "content"}, ...]}
    {"id"?, "conversations": [{"role", "content"} or {"from", "value"}, ...]}
    {"custom_id", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], ...}}

each with optional `params` and `metadata`. Null means not given, except in `metadata`, which is carried byte
for byte. Fields of other names are ignored. A line without an id is called `prompt-` and its index in eight
digits or more (`prompt-00000041`); an integer id is its decimal text. A conversation may end with the
assistant: what is asked for then is that turn made anew, never a continuation of its text.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from common.records import Message, PromptJob
from producer.conversation import Turn, conversation, read_turns
from producer.diagnose import decode_fault, may_repeat_key, repeated_key
from producer.params import MAX_DEPTH, UnusableError, check_params, too_deep, type_name

MAX_ID_CHARACTERS: Final = 512
BATCH_URL: Final = "/v1/chat/completions"
_NESTING_BYTES: Final = (b"[", b"{")


class Prompt(msgspec.Struct, frozen=True):
    """A usable line. `index` counts from 0 over lines that are not blank, `line` from 1 over all lines."""

    index: int
    line: int
    id: str
    messages: list[Message]
    params: dict[str, Any]
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def job(self, sample: int = 0, rank: int | msgspec.UnsetType = msgspec.UNSET) -> PromptJob:
        """What the RQ job of this prompt's `sample`-th completion carries; `rank` as in `PromptJob`."""
        return PromptJob(
            index=self.index,
            id=self.id,
            messages=self.messages,
            params=self.params,
            metadata=self.metadata,
            sample=sample,
            rank=rank,
        )


class InvalidLine(msgspec.Struct, frozen=True):
    """A line that cannot be used. `id` is its own where that could be read, otherwise the derived one."""

    index: int
    line: int
    id: str
    reason: str

    def __str__(self) -> str:
        """The sentence for a person: which line of the file, and why."""
        return f"line {self.line}: {self.reason}"


class _Fields(msgspec.Struct):
    """The fields of any shape. `Any` where a reason of our own says more than the decoder's."""

    id: Any = None
    custom_id: Any = None
    prompt: Any = None
    messages: list[Turn] | None = None
    conversations: list[Turn] | None = None
    method: Any = None
    url: Any = None
    body: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    metadata: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Names(msgspec.Struct):
    id: Any = None
    custom_id: Any = None


_DECODER: Final = msgspec.json.Decoder(_Fields)
_NAMES: Final = msgspec.json.Decoder(_Names)


def derived_id(index: int) -> str:
    """The id of a line that has none of its own."""
    return f"prompt-{index:08d}"


def parse_line(raw: bytes, *, line: int, index: int) -> Prompt | InvalidLine:
    """Read one line; never raises for what is in it.

    Args:
        raw: the bytes of the line, with or without its end.
        line: its number in the file, from 1.
        index: how many lines that are not blank come before it.
    """
    try:
        fields = _DECODER.decode(raw)
        if not raw.isascii():
            raw.decode()  # the decoder does not look into the text of fields it skips or keeps raw
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return InvalidLine(index, line, _any_id(raw, index), decode_fault(raw, error))
    try:
        name = _id(fields, index)
        messages, params = _content(fields)
        if fields.params:
            params = {**params, **check_params(fields.params, "params")}
        _check_metadata(fields.metadata)
        if may_repeat_key(raw, _names(fields, len(messages)), fields.params, fields.body):
            _refuse_repeated_key(raw)
    except UnusableError as error:
        return InvalidLine(index, line, _any_id(raw, index), str(error))
    return Prompt(index, line, name, messages, params, fields.metadata)


def _content(fields: _Fields) -> tuple[list[Message], dict[str, Any]]:
    """The conversation, and the parameters that its shape brings along."""
    shape = _shape(fields)
    if shape == "prompt":
        return [Message("user", _prompt_text(fields.prompt))], {}
    if shape == "messages":
        return conversation(fields.messages or [], shape), {}
    if shape == "conversations":
        return conversation(fields.conversations or [], shape), {}
    return _batch(fields)


def _shape(fields: _Fields) -> str:
    there = []
    if fields.prompt is not None:
        there.append("prompt")
    if fields.messages is not None:
        there.append("messages")
    if fields.conversations is not None:
        there.append("conversations")
    if fields.body is not None:
        there.append("body")
    if len(there) == 1:
        return there[0]
    if not there:
        raise UnusableError('there is no prompt: give "prompt", "messages", "conversations" or "body"')
    raise UnusableError(f'"{there[0]}" and "{there[1]}" are both there: give one of them')


def _prompt_text(prompt: Any) -> str:
    if type(prompt) is not str:
        raise UnusableError(f'"prompt" must be a string, not {type_name(prompt)}')
    if not prompt or prompt.isspace():
        raise UnusableError('"prompt" ' + ("holds only white space" if prompt else "is empty"))
    return prompt


def _batch(fields: _Fields) -> tuple[list[Message], dict[str, Any]]:
    """An OpenAI Batch line: all that its body has besides the messages is parameters."""
    body = dict(fields.body or {})
    if fields.custom_id is None:
        raise UnusableError('a batch line needs "custom_id"')
    if fields.method != "POST":
        raise UnusableError('"method" of a batch line must be "POST"')
    if fields.url != BATCH_URL:
        raise UnusableError(f'"url" of a batch line must be "{BATCH_URL}": only chat completions are made')
    turns = read_turns(body.pop("messages", None))
    return conversation(turns, "body.messages"), check_params(body, "body")


def _id(fields: _Fields, index: int) -> str:
    given, key = fields.id, "id"
    if given is None:
        if fields.custom_id is None:
            return derived_id(index)
        given, key = fields.custom_id, "custom_id"
    elif fields.custom_id is not None:
        raise UnusableError('"id" and "custom_id" are both there: give one of them')
    if type(given) is int:
        given = str(given)
    elif type(given) is not str:
        raise UnusableError(f'"{key}" must be a string or an integer, not {type_name(given)}')
    if not given or given.isspace():
        raise UnusableError(f'"{key}" ' + ("holds only white space" if given else "is empty"))
    if len(given) > MAX_ID_CHARACTERS:
        raise UnusableError(f'"{key}" has {len(given):,} characters; the most is {MAX_ID_CHARACTERS}')
    return str(given)


def _names(fields: _Fields, turns: int) -> int:
    """How many names of ours the line has at least, if none is there twice."""
    expected = 1 if fields.prompt is not None else 1 + 2 * turns
    if fields.id is not None:
        expected += 1
    if fields.body is not None:
        expected += 4  # custom_id, method and url beside it, messages in it
    elif fields.custom_id is not None:
        expected += 1
    if fields.params is not None:
        expected += 1
    if fields.metadata is not msgspec.UNSET:
        expected += 1
    return expected


def _refuse_repeated_key(raw: bytes) -> None:
    key = repeated_key(raw)
    if key is not None:
        raise UnusableError(f'the key "{key}" is there twice')


def _any_id(raw: bytes, index: int) -> str:
    """The id of a line that is otherwise unusable, if that much of it can be read."""
    try:
        names = _NAMES.decode(raw)
        raw.decode()
        return _id(_Fields(id=names.id, custom_id=names.custom_id), index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnusableError):
        return derived_id(index)


def _check_metadata(metadata: msgspec.Raw | msgspec.UnsetType) -> None:
    """Its syntax is checked already; here only that whatever reads it later can nest as deep."""
    if isinstance(metadata, msgspec.UnsetType):
        return
    content = bytes(metadata)
    if sum(map(content.count, _NESTING_BYTES)) <= MAX_DEPTH:
        return
    try:
        deep = too_deep(msgspec.json.decode(content, type=Any))
    except RecursionError:
        deep = True
    except msgspec.ValidationError:  # a number too large for a float: legal, and carried as it is
        deep = False
    if deep:
        raise UnusableError(f'"metadata" is nested more than {MAX_DEPTH} deep')
