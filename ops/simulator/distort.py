"""How an answer looks when the model or the server got it wrong. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ops.simulator.answers import EOS_TOKEN, Answer, cut
from ops.simulator.faults import FaultKind
from ops.simulator.text import tokens_in

if TYPE_CHECKING:
    from collections.abc import Callable

NAN_MATCHED: Final = "NaN happened"
_BOILERPLATE: Final = ("OK.", "response, OK.", "Response: OK.")
_LOOPS: Final = (
    " The answer is therefore the same as before, so let us go through it once more.",
    " Wait, let me reconsider the second step.",
    "\n- check the value again",
)
_LOOP_TOKENS: Final = 8_000
_REPLACEMENT: Final = "\ufffd"


def distort(answer: Answer, kind: FaultKind, *, limit: int, draw: int) -> Answer:
    """The answer as `kind` leaves it; kinds that do not concern answers leave it alone."""
    change = _CHANGES.get(kind)
    return change(answer, limit, draw) if change else answer


def _plain(answer: Answer, text: str, *, thinking: str | None, finish: str = "stop") -> Answer:
    """A closed answer with other words; `thinking` is dropped where thinking was off."""
    kept = thinking if answer.thinking is not None else None
    reasoning = tokens_in(kept) + 1 if kept is not None else 0
    return Answer(
        thinking=kept,
        closed=kept is not None,
        text=text,
        finish=finish,
        matched=EOS_TOKEN if finish == "stop" else None,
        tokens=max(1, reasoning + tokens_in(text)),
        reasoning_tokens=reasoning,
    )


def _aborted(answer: Answer, _limit: int, _draw: int) -> Answer:
    return cut(answer, max(1, answer.tokens // 2), finish="abort")


def _aborted_waiting(answer: Answer, _limit: int, _draw: int) -> Answer:
    return msgspec.structs.replace(
        answer,
        thinking=None if answer.thinking is None else "",
        closed=False,
        text="",
        finish="abort",
        matched=None,
        tokens=0,
        reasoning_tokens=0,
    )


def _nan(answer: Answer, _limit: int, _draw: int) -> Answer:
    broken = cut(answer, max(1, answer.tokens // 3), finish="stop")
    return msgspec.structs.replace(broken, matched=NAN_MATCHED)


def _empty(answer: Answer, _limit: int, _draw: int) -> Answer:
    return _plain(answer, "", thinking="")


def _boilerplate(answer: Answer, _limit: int, draw: int) -> Answer:
    short = _plain(answer, _BOILERPLATE[draw % len(_BOILERPLATE)], thinking="thinking")
    return msgspec.structs.replace(short, tokens=6, reasoning_tokens=min(3, short.reasoning_tokens))


def _repeated(seed_text: str, tokens: int, draw: int) -> str:
    """A beginning that gets stuck on one sentence for `tokens` tokens."""
    beginning = seed_text[: min(len(seed_text), tokens)]
    phrase = _LOOPS[draw % len(_LOOPS)]
    size = max(0, 4 * tokens - len(beginning))
    return beginning + (phrase * (size // len(phrase) + 1))[:size]


def _loop(answer: Answer, limit: int, draw: int) -> Answer:
    tokens = min(limit, _LOOP_TOKENS)
    if tokens <= answer.reasoning_tokens + 1:
        return _loop_thinking(answer, limit, draw)
    text = _repeated(answer.text, tokens - answer.reasoning_tokens, draw)
    return msgspec.structs.replace(answer, text=text, finish="length", matched=None, tokens=tokens)


def _loop_thinking(answer: Answer, limit: int, draw: int) -> Answer:
    if answer.thinking is None:
        return _loop(msgspec.structs.replace(answer, reasoning_tokens=0), max(limit, 2), draw)
    tokens = min(limit, _LOOP_TOKENS)
    thinking = _repeated(answer.thinking, tokens, draw)
    return msgspec.structs.replace(
        answer,
        thinking=thinking,
        closed=False,
        text="",
        finish="length",
        matched=None,
        tokens=tokens,
        reasoning_tokens=tokens,
    )


def _no_think_end(answer: Answer, _limit: int, _draw: int) -> Answer:
    if answer.thinking is None:
        return answer
    return msgspec.structs.replace(
        answer,
        closed=False,
        text="",
        tokens=answer.reasoning_tokens,
        reasoning_tokens=answer.reasoning_tokens,
    )


def _truncated_thinking(answer: Answer, _limit: int, _draw: int) -> Answer:
    return cut(answer, max(1, answer.reasoning_tokens * 3 // 4)) if answer.thinking is not None else answer


def _garbled(answer: Answer, _limit: int, _draw: int) -> Answer:
    spoilt = "".join(_REPLACEMENT if place % 3 == 0 else char for place, char in enumerate(answer.text))
    return msgspec.structs.replace(answer, text=spoilt)


def _answer_in_reasoning(answer: Answer, _limit: int, _draw: int) -> Answer:
    if answer.thinking is None:
        return answer
    merged = f"{answer.thinking}\n\n{answer.text}"
    return msgspec.structs.replace(
        answer, thinking=merged, closed=False, text="", reasoning_tokens=answer.tokens
    )


def _think_in_content(answer: Answer, _limit: int, _draw: int) -> Answer:
    return msgspec.structs.replace(answer, thinking=None, closed=False, text=answer.raw, reasoning_tokens=0)


def _zero_usage(answer: Answer, _limit: int, _draw: int) -> Answer:
    return msgspec.structs.replace(answer, tokens=0, reasoning_tokens=0)


def _overcount(answer: Answer, _limit: int, _draw: int) -> Answer:
    return msgspec.structs.replace(answer, reasoning_tokens=answer.tokens + 3)


_CHANGES: Final[dict[FaultKind, Callable[[Answer, int, int], Answer]]] = {
    FaultKind.ABORT_PARTIAL: _aborted,
    FaultKind.ABORT_EMPTY: _aborted_waiting,
    FaultKind.NAN: _nan,
    FaultKind.EMPTY: _empty,
    FaultKind.BOILERPLATE: _boilerplate,
    FaultKind.LOOP: _loop,
    FaultKind.LOOP_THINKING: _loop_thinking,
    FaultKind.NO_THINK_END: _no_think_end,
    FaultKind.TRUNCATED_THINKING: _truncated_thinking,
    FaultKind.GARBLED: _garbled,
    FaultKind.ANSWER_IN_REASONING: _answer_in_reasoning,
    FaultKind.THINK_IN_CONTENT: _think_in_content,
    FaultKind.ZERO_USAGE: _zero_usage,
    FaultKind.OVERCOUNT: _overcount,
}
