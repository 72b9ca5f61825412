"""Which turns of a conversation are made anew, and on what history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.records import Message, Response
from common.settings import Regenerate

_ASSISTANT = "assistant"


def turns_to_generate(messages: Sequence[Message], regenerate: Regenerate) -> list[int]:
    """The positions in `messages` at which an assistant's turn is generated, in order.

    `last` is one turn: after the last message if that is not the assistant's, else in place of the trailing
    assistant messages. `all` is every assistant turn that answers something, and the last as above. A turn
    that calls tools stays as given, for the results that follow belong to it. Empty where nothing asks for an
    answer.
    """
    end = len(messages)
    while end and messages[end - 1].role == _ASSISTANT:
        end -= 1
    if not any(message.role == "user" for message in messages[:end]):
        return []
    if regenerate == "last":
        return [end]
    earlier = [
        position
        for position in range(1, end)
        if _is_turn(messages, position) and messages[position - 1].role in ("user", "tool")
    ]
    return [*earlier, end]


def history_for(messages: Sequence[Message], position: int, answers: Mapping[int, Response]) -> list[Message]:
    """The conversation that the turn at `position` answers, with the model's own `answers` by position.

    Thinking is left out and so are the line breaks between thinking and answer, as the chat template does
    with earlier turns. Where an answer stands for several assistant messages in a row, the others go.
    """
    history: list[Message] = []
    replaced = False
    for place, message in enumerate(messages[:position]):
        if place in answers:
            history.append(Message(role=_ASSISTANT, content=(answers[place].content or "").lstrip("\n")))
            replaced = True
        elif not (replaced and message.role == _ASSISTANT):
            history.append(message)
            replaced = False
    return history


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """`messages` with the system prompt in front, unless the conversation has its own or none is set."""
    if not system or any(message.role in ("system", "developer") for message in messages):
        return list(messages)
    return [Message(role="system", content=system), *messages]


def _is_turn(messages: Sequence[Message], position: int) -> bool:
    return messages[position].role == _ASSISTANT and not messages[position].tool_calls
