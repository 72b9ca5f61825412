"""Boilerplate: many different prompts, the same few answers.

One such answer looks harmless; only counting shows it. Each consumer counts its own recent short answers in
memory, by how many *different prompts* got them: an input that asks the same thing twice, and `--samples`,
may well get the same answer twice.

How many prompts it takes depends on what an honest model could say:

- With thinking, a trace is written for its prompt. Five prompts with the same short trace and answer are no
  chance. `4` and `Yes.` after different traces differ, since the trace is part of what is compared.
- Without thinking, a sentence (`I cannot help with that.`) is boilerplate when 16 prompts (3 %) share it.
- Without thinking, one or two words may be a label: a classification says `no` to most of its prompts, and
  nothing but the prompts could tell it from a model that says `OK` to all. It takes 90 % of the last 512.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.records import Message, Response

WINDOW: Final = 512
"""How many of the last completions one consumer counts over."""

LONGEST: Final = 240
"""Characters of thinking and answer together beyond which an output is not compared: a real one is longer."""

PROMPTS_WITH_THINKING: Final = 5
PROMPTS_FOR_A_SENTENCE: Final = 16
PROMPTS_FOR_A_LABEL: Final = 461

_LABEL_WORDS: Final = 2
_LABEL_CHARACTERS: Final = 24
_NOT_WORDS: Final = re.compile(r"[\W_]+")


def fingerprint(response: Response) -> bytes | None:
    """What a short output says, case, punctuation and spacing aside; `None` for a long or blank one."""
    thought, answer = response.reasoning_content or "", response.content or ""
    if len(thought) + len(answer) > LONGEST:
        return None
    parts = [_normalise(thought), _normalise(answer)]
    if not any(parts):
        return None
    return "\x1f".join(parts).encode("utf-8", "surrogatepass")


def _normalise(text: str) -> str:
    # A text of signs alone ("...", an emoji) has no words to compare by; then its signs count.
    return _NOT_WORDS.sub(" ", text.casefold()).strip() or text.strip()


def prompts_needed(response: Response, *, thinking: bool) -> int:
    """How many different prompts must share this output before it counts as boilerplate."""
    if thinking or (response.reasoning_content or "").strip():
        return PROMPTS_WITH_THINKING
    answer = (response.content or "").strip()
    if len(answer) <= _LABEL_CHARACTERS and len(answer.split()) <= _LABEL_WORDS:
        return PROMPTS_FOR_A_LABEL
    return PROMPTS_FOR_A_SENTENCE


class RecentAnswers:
    """Counts, over the last completions, how many different prompts got the same short output.

    Memory is bounded by `window` entries of at most a few hundred bytes. Not for sharing between threads.
    """

    __slots__ = ("_prompts", "_recent", "_window")

    def __init__(self, window: int = WINDOW) -> None:
        """Start with nothing seen; `window` is in completions, long ones included."""
        self._window = window
        self._recent: deque[tuple[bytes, bytes] | None] = deque()
        self._prompts: dict[bytes, Counter[bytes]] = {}

    def see(self, response: Response, messages: Sequence[Message]) -> int:
        """Count one more completion and return how many different recent prompts got this output.

        0 means that the output is not of the kind that is compared. Ask once for each completion, before it
        is judged.
        """
        answer = fingerprint(response)
        if answer is None:
            self._push(None)
            return 0
        prompt = blake2b(msgspec.json.encode(messages), digest_size=16).digest()
        self._push((answer, prompt))
        return len(self._prompts[answer])

    def _push(self, entry: tuple[bytes, bytes] | None) -> None:
        self._recent.append(entry)
        if entry is not None:
            self._prompts.setdefault(entry[0], Counter())[entry[1]] += 1
        if len(self._recent) > self._window:
            oldest = self._recent.popleft()
            if oldest is not None:
                self._forget(*oldest)

    def _forget(self, answer: bytes, prompt: bytes) -> None:
        prompts = self._prompts[answer]
        prompts[prompt] -= 1
        if not prompts[prompt]:
            del prompts[prompt]
        if not prompts:
            del self._prompts[answer]
