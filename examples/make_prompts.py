# ruff: noqa: INP001  a script beside its output, no package
"""Make `prompts.jsonl`: varied prompts in every shape that is read, the same bytes on any machine.

python examples/make_prompts.py              write the file beside this script
python examples/make_prompts.py --stdout     write it to standard output
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PHRASES: dict[str, Any] = json.loads((HERE / "phrases.json").read_text(encoding="utf-8"))


class Draft(NamedTuple):
    """A prompt before it is given one of the shapes: turns alternate, the user's first."""

    kind: str
    turns: list[str]


class Picker:
    """Picks that look random and never change: a small linear congruential generator."""

    def __init__(self, seed: int) -> None:
        """Start from `seed`."""
        self._state = seed

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit

    def one(self, choices: list[Any]) -> Any:
        """One of `choices`."""
        return choices[self.below(len(choices))]

    def fill(self, text: str) -> str:
        """The text with its places for names, things and numbers filled."""
        filled = {
            "name": self.one(PHRASES["people"]),
            "city": self.one(PHRASES["cities"]),
            "thing": self.one(PHRASES["things"]),
            "t": self.one(PHRASES["plans"]),
            "k": str(2 + self.below(7)),
            "n": str(11 + self.below(80)),
            "m": str(100 + self.below(1900)),
        }
        for key, value in filled.items():
            text = text.replace("{" + key + "}", value)
        return text

    def shuffle(self, items: list[Draft]) -> None:
        """Shuffle in place."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]


def languages(_: Picker) -> Iterator[Draft]:
    """Questions about everyday topics in ten languages."""
    for code, words in PHRASES["languages"].items():
        for template, topic in product(words["templates"], words["topics"]):
            yield Draft(f"topic-{code}", [template.replace("{t}", topic)])


def code(pick: Picker) -> Iterator[Draft]:
    """Programming tasks in twenty languages."""
    for language, task in product(PHRASES["code"]["languages"], PHRASES["code"]["tasks"]):
        wish = pick.one(PHRASES["code"]["wishes"])
        yield Draft("code", [f"Write {language} code that {task}. {wish}"])


def filled(kind: str, templates: list[str], times: int) -> Callable[[Picker], Iterator[Draft]]:
    """Each of `templates`, `times` times with other names and numbers."""

    def make(pick: Picker) -> Iterator[Draft]:
        for template, _ in product(templates, range(times)):
            yield Draft(kind, [pick.fill(template)])

    return make


def translations(pick: Picker) -> Iterator[Draft]:
    """Sentences to translate."""
    for language, sentence in product(PHRASES["translate"]["into"], PHRASES["translate"]["sentences"]):
        yield Draft(
            "translate", [f"Translate into {language}, and explain one choice:\n\n{pick.fill(sentence)}"]
        )


def dialogues(pick: Picker) -> Iterator[Draft]:
    """Conversations that end with a question of the user."""
    for turns, _ in product(PHRASES["dialogues"], range(32)):
        yield Draft("dialogue", pick.fill("\x1f".join(turns)).split("\x1f"))


def tiny(_: Picker) -> Iterator[Draft]:
    """A word or a sign."""
    yield from (Draft("tiny", [text]) for text in PHRASES["tiny"])


def emoji(_: Picker) -> Iterator[Draft]:
    """Questions full of emoji, some of several code points."""
    yield from (Draft("emoji", [text]) for text in PHRASES["emoji"])


def minutes(pick: Picker) -> Iterator[Draft]:
    """Long notes of meetings, two to seven thousand characters."""
    for number in range(60):
        size = 16 + pick.below(45)
        notes = [f"{at + 1}. {pick.fill(pick.one(PHRASES['minutes']))}" for at in range(size)]
        yield Draft("long", [PHRASES["long_asks"][number % len(PHRASES["long_asks"])] + "\n".join(notes)])


def logs(pick: Picker) -> Iterator[Draft]:
    """Log files to read, fenced."""
    for number in range(24):
        lines = [
            f"2024-0{1 + number % 9}-1{at % 10}T0{at // 8}:{10 + at % 50}:0{at % 10}Z "
            + pick.fill(pick.one(PHRASES["log"]))
            for at in range(20 + pick.below(40))
        ]
        yield Draft("log", [PHRASES["log_asks"][number % 2] + "\n".join(lines) + "\n```\n"])


MAKERS: list[Callable[[Picker], Iterator[Draft]]] = [
    languages,
    code,
    filled("maths", PHRASES["maths"], 45),
    filled("task", PHRASES["extract"], 30),
    translations,
    dialogues,
    tiny,
    emoji,
    minutes,
    logs,
]


def as_messages(turns: list[str], system: str | None) -> list[dict[str, str]]:
    """Role and content."""
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return [{"role": "system", "content": system}, *said] if system else said


def as_conversation(turns: list[str]) -> list[dict[str, str]]:
    """From and value, as shared conversations are written."""
    return [{"from": ("human", "gpt")[at % 2], "value": text} for at, text in enumerate(turns)]


def as_line(draft: Draft, number: int, pick: Picker) -> dict[str, Any]:
    """One of the four shapes, with or without id, parameters and metadata."""
    system = pick.one(PHRASES["systems"]) if pick.below(3) == 0 else None
    shape = pick.below(10)
    if shape == 0:
        body: dict[str, Any] = {"model": "qwen3.6-27b", "messages": as_messages(draft.turns, system)}
        if pick.below(2):
            body |= {"temperature": pick.below(11) / 10, "max_tokens": 256 << pick.below(5)}
        return {
            "custom_id": f"{draft.kind}/{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
    named = pick.below(4)
    line: dict[str, Any] = {}
    if named:
        line["id"] = number if named == 1 else f"{draft.kind}-{number:04d}"
    if len(draft.turns) == 1 and shape < 7:  # noqa: PLR2004 six lines in ten
        line["prompt"] = draft.turns[0]
    elif shape % 2:
        line["conversations"] = as_conversation(draft.turns)
    else:
        line["messages"] = as_messages(draft.turns, system)
    if pick.below(8) == 0:
        line["params"] = {"temperature": pick.below(11) / 10, "max_output_tokens": 512 << pick.below(4)}
    if pick.below(4) == 0:
        line["metadata"] = {"source": "examples", "kind": draft.kind, "weight": pick.below(100) / 100}
    return line


def make() -> bytes:
    """The whole file."""
    pick = Picker(20240501)
    drafts = list({tuple(draft.turns): draft for maker in MAKERS for draft in maker(pick)}.values())
    pick.shuffle(drafts)
    lines = (
        json.dumps(as_line(draft, number, pick), ensure_ascii=pick.below(5) == 0)
        for number, draft in enumerate(drafts)
    )
    return "".join(f"{line}\n" for line in lines).encode()


if __name__ == "__main__":
    if "--stdout" in sys.argv[1:]:
        sys.stdout.buffer.write(make())
    else:
        (HERE / "prompts.jsonl").write_bytes(make())
