"""Which turns of a conversation are generated, and on what history."""

from __future__ import annotations

import pytest

from common.records import Message, Response
from consumers.client.turns import history_for, turns_to_generate, with_system


def talk(roles: str) -> list[Message]:
    """A conversation by one letter a message; its text is its place."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "d": "developer"}
    called = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return [
        Message("assistant", None, tool_calls=called) if role == "c" else Message(names[role], f"{place}")
        for place, role in enumerate(roles)
    ]


@pytest.mark.parametrize(
    ("roles", "last", "every"),
    [
        ("u", [1], [1]),
        ("su", [2], [2]),
        ("ua", [1], [1]),
        ("uau", [3], [1, 3]),
        ("uaua", [3], [1, 3]),
        ("suaua", [4], [2, 4]),
        ("uaa", [1], [1]),
        ("uaau", [4], [1, 4]),
        ("auau", [4], [2, 4]),
        ("saua", [3], [3]),
        ("uctau", [5], [3, 5]),
        ("uct", [3], [3]),
        ("", [], []),
        ("a", [], []),
        ("s", [], []),
        ("sa", [], []),
    ],
)
def test_turns(roles, last, every):
    assert turns_to_generate(talk(roles), "last") == last
    assert turns_to_generate(talk(roles), "all") == every


def test_history_has_the_models_own_answers_and_no_thinking():
    messages = talk("suauau")
    answers = {2: Response(content="\n\nmine", reasoning_content="thought"), 4: Response(content=None)}
    assert history_for(messages, 6, answers) == [
        messages[0],
        messages[1],
        Message("assistant", "mine"),
        messages[3],
        Message("assistant", ""),
        messages[5],
    ]


def test_history_without_answers_is_the_input_up_to_the_turn():
    messages = talk("uaua")
    assert history_for(messages, 3, {}) == messages[:3]


def test_one_answer_stands_for_several_messages_in_a_row():
    messages = talk("uaauau")
    found = history_for(messages, 6, {1: Response(content="one"), 4: Response(content="two")})
    assert [message.content for message in found] == ["0", "one", "3", "two", "5"]


@pytest.mark.parametrize(("roles", "added"), [("u", True), ("su", False), ("du", False), ("usu", False)])
def test_system_prompt(roles, added):
    messages = talk(roles)
    found = with_system(messages, "S")
    assert (found[0] == Message("system", "S")) is added
    assert found[-len(messages) :] == messages
    assert with_system(messages, None) == messages
