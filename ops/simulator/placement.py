"""Where thinking and answer stand in a message: the reasoning parser's work, by engine and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ops.simulator.answers import Answer
    from ops.simulator.traits import Traits


class Placed(msgspec.Struct, frozen=True):
    """The two text fields of a message."""

    content: str | None
    reasoning: str | None


def place(answer: Answer, traits: Traits, *, parser: bool) -> Placed:
    """Split the answer into fields as a server with (or without) a reasoning parser does."""
    if answer.thinking is None or not parser:
        raw = answer.raw
        return Placed((raw.strip() if traits.strips else raw) or traits.empty_content, None)
    if traits.strips:
        content, reasoning = answer.text.strip(), answer.thinking.strip()
    else:
        content = f"\n\n{answer.text}" if answer.closed else ""
        reasoning = f"{answer.thinking}\n" if answer.closed else answer.thinking
    return Placed(content or traits.empty_content, reasoning or None)
