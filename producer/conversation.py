"""Conversations as files write them become the messages that a chat endpoint takes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from common.records import Message
from producer.params import MAX_DEPTH, UnusableError, too_deep, type_name

_ROLES: Final = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
_SHARED_ROLES: Final = {**_ROLES, "human": "user", "gpt": "assistant"}
_SHOWN_ROLE: Final = 32


class Turn(msgspec.Struct):
    """One message in either spelling; which fields must be there is checked with a reason of our own."""

    role: Any = None
    content: Any = None
    sender: Any = msgspec.field(default=None, name="from")
    value: Any = None
    name: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None


def read_turns(messages: Any) -> list[Turn]:
    """The messages of a batch line's body.

    Raises:
        UnusableError: they are no array of objects.
    """
    if not isinstance(messages, list):
        raise UnusableError(f'"body.messages" must be an array, not {type_name(messages)}')
    try:
        return msgspec.convert(messages, list[Turn])
    except msgspec.ValidationError:
        raise UnusableError('every item of "body.messages" must be an object') from None


def conversation(turns: list[Turn], where: str) -> list[Message]:
    """Check every turn and name its role as the endpoint does; text stays exact.

    Args:
        turns: as decoded.
        where: the field they came from. `conversations` may be in the from/value spelling.

    Raises:
        UnusableError: a turn, or the whole, cannot be sent.
    """
    if not turns:
        raise UnusableError(f'"{where}" is empty')
    shared = where == "conversations"
    roles = _SHARED_ROLES if shared else _ROLES
    messages = []
    asked = False
    for position, turn in enumerate(turns):
        role, content = turn.role, turn.content
        if shared:
            role = turn.sender if role is None else role
            content = turn.value if content is None else content
        known = roles.get(role) if type(role) is str else None
        if known is None:
            raise UnusableError(f"{where}[{position}]: {_role_fault(role, shared=shared)}")
        try:
            messages.append(_message(known, content, turn))
        except UnusableError as error:
            raise UnusableError(f"{where}[{position}]: {error}") from None
        asked = asked or known == "user"
    if not asked:
        raise UnusableError(f'"{where}" has no message of the user')
    return messages


def _message(role: str, content: Any, turn: Turn) -> Message:
    if type(content) is not str:
        _check_parts(content, may_be_null=role == "assistant" and bool(turn.tool_calls))
    if role == "user" and _is_blank(content):
        raise UnusableError("the user's message is empty")
    if turn.name is None and turn.tool_calls is None and turn.tool_call_id is None:
        return Message(role, content)
    _check_extras(turn)
    return Message(role, content, turn.name, turn.tool_calls, turn.tool_call_id)


def _role_fault(role: Any, *, shared: bool) -> str:
    if role is None:
        return 'neither "role" nor "from" is there' if shared else '"role" is missing'
    if type(role) is not str:
        return f"the role must be a string, not {type_name(role)}"
    known = ", ".join(_SHARED_ROLES if shared else _ROLES)
    return f"the role {role[:_SHOWN_ROLE]!r} is unknown; known are {known}"


def _check_parts(content: Any, *, may_be_null: bool) -> None:
    """Content that is no string: null beside tool calls, or a list of parts."""
    if content is None:
        if not may_be_null:
            raise UnusableError("the content is missing")
        return
    if type(content) is not list:
        raise UnusableError(f"the content must be a string or an array of parts, not {type_name(content)}")
    if not content:
        raise UnusableError("the content is an empty array")
    for part in content:
        if type(part) is not dict or type(part.get("type")) is not str:
            raise UnusableError('every part of the content must be an object with a "type"')
        if part["type"] == "text" and type(part.get("text")) is not str:
            raise UnusableError('a part of type "text" must have its "text", a string')
    if too_deep(content):
        raise UnusableError(f"the content is nested more than {MAX_DEPTH} deep")


def _is_blank(content: Any) -> bool:
    if type(content) is str:
        return not content or content.isspace()
    return all(part["type"] == "text" and _is_blank(part["text"]) for part in content)


def _check_extras(turn: Turn) -> None:
    for key, value in (("name", turn.name), ("tool_call_id", turn.tool_call_id)):
        if value is not None and type(value) is not str:
            raise UnusableError(f'"{key}" must be a string, not {type_name(value)}')
    calls = turn.tool_calls
    if calls is None:
        return
    if type(calls) is not list or any(type(call) is not dict for call in calls):
        raise UnusableError('"tool_calls" must be an array of objects')
    if too_deep(calls):
        raise UnusableError(f'"tool_calls" is nested more than {MAX_DEPTH} deep')
