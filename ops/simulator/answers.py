"""What the model says: a pure function of the prompt, the seed and the settings.

The same prompt gets the same words from every server of a fleet, in every process; another `seed`, others.
"""

from __future__ import annotations

import math
import re
import struct
from hashlib import blake2b
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import msgspec

from ops.simulator.text import language_of, river, tokens_in
from ops.simulator.vocabulary import vocabularies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.simulator.settings import ServerSettings

EOS_TOKEN: Final = 248_046
THINK_END: Final = "\n</think>\n\n"
_LEAST_TOKENS: Final = 8
_MOST_TOKENS: Final = 32_768
_KNOWN_THINKING: Final = 60
_SNIPPET: Final = 60
_UNIT: Final = 2.0**-32
_DRAWS: Final = struct.Struct("<8I")
_NORMAL: Final = NormalDist()

_REPEAT: Final = re.compile(r"\s*repeat:\s*(.+)", re.IGNORECASE | re.DOTALL)
_COUNT: Final = re.compile(r"\s*count to (\d{1,3})\b", re.IGNORECASE)
_SUM: Final = re.compile(r"\s*what is (\d{1,6}) plus (\d{1,6})\b", re.IGNORECASE)


class Draws(msgspec.Struct, frozen=True):
    """The eight random numbers (0 to 2**32 - 1) that a prompt and a seed decide."""

    length: int
    share: int
    thinking_start: int
    text_start: int
    fault: int
    cached: int
    accept: int
    spare: int

    def uniform(self, name: str) -> float:
        """One of the numbers as a fraction in (0, 1)."""
        number: int = getattr(self, name)
        return (number + 0.5) * _UNIT


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One generated answer, before any convention of the wire is applied to it.

    Attributes:
        thinking: text before `</think>`; `None` where thinking was off.
        closed: whether `</think>` was generated.
        text: what followed it.
        finish: stop, length or abort.
        matched: what ended it: a token id, a stop string, or a message.
        tokens: completion tokens, thinking included.
        reasoning_tokens: how many of them are thinking, `</think>` included.
    """

    thinking: str | None
    closed: bool
    text: str
    finish: str
    matched: int | str | None
    tokens: int
    reasoning_tokens: int

    @property
    def raw(self) -> str:
        """All generated text as the model wrote it; the opening `<think>` stood in the prompt."""
        if self.thinking is None:
            return self.text
        return f"{self.thinking}{THINK_END}{self.text}" if self.closed else self.thinking


def draw(texts: Sequence[bytes], seed: int | None, fleet_seed: int) -> Draws:
    """The random numbers of a prompt. `texts` are its roles and contents in order."""
    digest = blake2b(digest_size=32, key=b"%d" % fleet_seed if fleet_seed else b"")
    for text in texts:
        digest.update(text)
        digest.update(b"\0")
    if seed is not None:
        digest.update(b"seed %d" % seed)
    return Draws(*_DRAWS.unpack(digest.digest()))


def sampled_tokens(settings: ServerSettings, draws: Draws) -> int:
    """The lognormal output length of a prompt, in tokens."""
    spread = settings.sigma * _NORMAL.inv_cdf(draws.uniform("length"))
    return max(_LEAST_TOKENS, min(_MOST_TOKENS, round(settings.median_tokens * math.exp(spread))))


def compose(
    settings: ServerSettings,
    draws: Draws,
    prompt: str,
    *,
    thinking: bool,
    limit: int,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
) -> Answer:
    """Answer `prompt`, the text of the last message, with at most `limit` tokens."""
    total = limit if ignore_eos else sampled_tokens(settings, draws)
    share = min(0.95, settings.thinking_share * (0.6 + 0.8 * draws.uniform("share")))
    quoted = " ".join(prompt[: 4 * _SNIPPET].split())[:_SNIPPET]
    known = _known_answer(prompt)
    reasoning = _KNOWN_THINKING if known is not None and not ignore_eos else int(total * share)
    thought = _thought(draws, quoted, reasoning) if thinking else None
    text = known or _text(draws, quoted, language_of(prompt), int(total * (1 - share)))
    return cut(_finished(thought, text), limit, stop)


def _finished(thought: str | None, text: str) -> Answer:
    """An answer that ended by itself."""
    reasoning = tokens_in(thought) + 1 if thought is not None else 0
    return Answer(
        thinking=thought,
        closed=thought is not None,
        text=text,
        finish="stop",
        matched=EOS_TOKEN,
        tokens=reasoning + tokens_in(text) + 1,
        reasoning_tokens=reasoning,
    )


def _thought(draws: Draws, quoted: str, tokens: int) -> str:
    opener = vocabularies()["thinking"].opener.format(quoted)
    return opener + river("thinking").passage(draws.thinking_start, tokens - tokens_in(opener))


def _text(draws: Draws, quoted: str, language: str, tokens: int) -> str:
    opener = vocabularies()[language].opener.format(quoted)
    return opener + river(language).passage(draws.text_start, tokens - tokens_in(opener))


def _known_answer(prompt: str) -> str | None:
    """The true answer to the few questions that test prompts ask."""
    if match := _SUM.match(prompt):
        return str(int(match[1]) + int(match[2]))
    if match := _COUNT.match(prompt):
        return ", ".join(str(number) for number in range(1, int(match[1]) + 1))
    if match := _REPEAT.match(prompt):
        return match[1].strip()
    return None


def cut(answer: Answer, limit: int, stop: Sequence[str] = (), *, finish: str = "length") -> Answer:
    """The answer ended early: at the first stop string, or after `limit` tokens with `finish`."""
    stopped = _stop_at(answer, stop) if stop else None
    if stopped is not None:
        answer = stopped
    if answer.tokens <= limit:
        return answer
    if answer.thinking is not None and limit < answer.reasoning_tokens:
        kept = _part(answer.thinking, limit, answer.reasoning_tokens)
        return msgspec.structs.replace(
            answer,
            thinking=kept,
            closed=False,
            text="",
            finish=finish,
            matched=None,
            tokens=limit,
            reasoning_tokens=limit,
        )
    room = limit - answer.reasoning_tokens
    kept = _part(answer.text, room, answer.tokens - answer.reasoning_tokens)
    return msgspec.structs.replace(answer, text=kept, finish=finish, matched=None, tokens=limit)


def _part(text: str, tokens: int, of_tokens: int) -> str:
    return text[: len(text) * tokens // max(1, of_tokens)]


def _stop_at(answer: Answer, stop: Sequence[str]) -> Answer | None:
    """The answer up to the first stop string, which is matched inside thinking too and is trimmed."""
    raw = answer.raw
    found = [(place, string) for string in stop if string and (place := raw.find(string)) >= 0]
    if not found:
        return None
    place, string = min(found)
    thought, closed, text = (
        split_thinking(raw[:place]) if answer.thinking is not None else (None, False, raw[:place])
    )
    reasoning = tokens_in(thought) + closed if thought is not None else 0
    return Answer(
        thinking=thought,
        closed=closed,
        text=text,
        finish="stop",
        matched=string,
        tokens=max(1, reasoning + tokens_in(text)),
        reasoning_tokens=reasoning,
    )


def split_thinking(raw: str) -> tuple[str, bool, str]:
    """Thinking, whether it was closed, and the text after it."""
    thought, closed, text = raw.partition(THINK_END)
    return thought, bool(closed), text
