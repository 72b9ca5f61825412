"""The quality gate: from one completion to one verdict, by a table of rules in order of precedence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from common.records import Response, Speculation, Usage, Verdict
from consumers.quality.boilerplate import prompts_needed
from consumers.quality.repetition import find_loop

if TYPE_CHECKING:
    from collections.abc import Callable

FINISHED: Final = frozenset({"stop", "tool_calls", "function_call"})
"""Finish reasons of a completion that the model ended by itself."""

CUT: Final = "length"
STOPPED_FOR_REPETITION: Final = "repetition"

_NAN_MARKER: Final = "nan happened"
_NEAR_MAX: Final = 0.97
_FEW: Final = 3
_SMALL_SHARE: Final = 0.005
_REPLACEMENT: Final = "\ufffd"
_CONTROLS: Final = bytes({*range(0x20), 0x7F} - set(b"\t\n\r\f\x1b"))
_CODE: Final = re.compile(r"```.*?(?:```|\Z)|``.*?``|`[^`\n]*`", re.DOTALL)
_QUOTES: Final = frozenset("\"'`“”‘’«»‹›「」『』„")  # noqa: RUF001  # quotation marks of many languages
_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class Judgement(msgspec.Struct, frozen=True):
    """A verdict and why, in words that never quote the completion."""

    verdict: Verdict
    detail: str = ""


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """One completion as the rules see it. Texts are exact; the flags say whether they are more than space."""

    response: Response
    thought: str
    answer: str
    has_thought: bool
    has_answer: bool
    finish_reason: str
    usage: Usage
    thinking: bool
    max_tokens: int | None
    repeats: int
    matched_stop: int | str | None
    near_max: bool


def judge(
    response: Response,
    finish_reason: str,
    usage: Usage,
    *,
    thinking: bool,
    max_tokens: int | None = None,
    repeats: int = 0,
    matched_stop: int | str | None = None,
    speculation: Speculation | None = None,
    accept_max: float | None = None,
) -> Judgement:
    """Say what a completion is worth. The first rule of `RULES` that applies gives the verdict.

    Args:
        response: the assistant's turn, text exact.
        finish_reason: as the server gave it; `""` where it gave none.
        usage: token counts as the server gave them.
        thinking: whether thinking was asked for.
        max_tokens: the limit that was sent, for the wording alone.
        repeats: how many different recent prompts got this same short output (`RecentAnswers.see`).
        matched_stop: what ended the text, where the server says it.
        speculation: acceptance of the draft model. Near its maximum a loop is believed sooner; alone it
            means nothing, since plain text is accepted just as well.
        accept_max: the greatest accept length possible, the number of draft tokens.
    """
    thought, answer = response.reasoning_content or "", response.content or ""
    case = _Case(
        response=response,
        thought=thought,
        answer=answer,
        has_thought=bool(thought) and not thought.isspace(),
        has_answer=bool(answer) and not answer.isspace(),
        finish_reason=finish_reason,
        usage=usage,
        thinking=thinking,
        max_tokens=max_tokens,
        repeats=repeats,
        matched_stop=matched_stop,
        near_max=_is_near_max(speculation, accept_max),
    )
    for verdict, rule in RULES:
        detail = rule(case)
        if detail is not None:
            return Judgement(verdict, detail)
    return Judgement(Verdict.OK)


def _is_near_max(speculation: Speculation | None, accept_max: float | None) -> bool:
    if speculation is None:
        return False
    if speculation.accept_rate is not None:
        return speculation.accept_rate >= _NEAR_MAX
    if speculation.accept_length is None or not accept_max or accept_max <= 1:
        return False
    return speculation.accept_length >= _NEAR_MAX * accept_max


def _aborted(case: _Case) -> str | None:
    if case.finish_reason in FINISHED or case.finish_reason in {CUT, STOPPED_FOR_REPETITION}:
        return None
    return f"the server ended it with finish reason {case.finish_reason[:40]!r}"


def _broken(case: _Case) -> str | None:
    if isinstance(case.matched_stop, str) and _NAN_MARKER in case.matched_stop.lower():
        return "the server met a NaN while computing it"
    return _damage(case.answer) or _damage(case.thought)


def _damage(text: str) -> str | None:
    """How a text is damaged beyond a small share of its characters, if it is."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return "a lone surrogate, which UTF-8 cannot hold"
    replaced = 0 if text.isascii() else text.count(_REPLACEMENT)
    controls = len(data) - len(data.translate(None, _CONTROLS))
    worst = max(replaced, controls)
    if worst <= _FEW or worst <= _SMALL_SHARE * len(text):
        return None
    kind = "replacement" if replaced >= controls else "control"
    return f"{worst} of {len(text)} characters are {kind} characters"


def _empty(case: _Case) -> str | None:
    return None if case.has_thought or case.has_answer else "neither thinking nor an answer"


def _parser_mismatch(case: _Case) -> str | None:
    if case.usage.completion_tokens == 0:
        return "text came, but the server counted no token of it"
    if not case.thinking and not case.has_answer:
        return "the answer stands in the thinking field, though thinking was off"
    if has_stray_think_tag(case.answer):
        return "a thinking tag stands in the answer"
    if case.thinking and not case.has_thought and case.finish_reason == CUT:
        return "cut off with nothing in the thinking field: the thinking may stand in the answer"
    return None


def has_stray_think_tag(text: str) -> bool:
    """Whether a thinking tag stands in `text` as markup, not in code, quotes or as a word of a sentence."""
    if text[:64].lstrip().startswith(_OPEN):
        return True
    if _CLOSE not in text:
        return False
    prose = _CODE.sub("`", text)
    at = prose.find(_CLOSE)
    while at >= 0:
        if _is_markup(prose, at, at + len(_CLOSE)):
            return True
        at = prose.find(_CLOSE, at + 1)
    return False


def _is_markup(prose: str, start: int, stop: int) -> bool:
    """Whether the closing tag at `start` ends a thought; inside a line, after a space, it is a word."""
    if prose[start - 1 : start] in _QUOTES or prose[stop : stop + 1] in _QUOTES:
        return False
    line_stop = prose.find("\n", stop)
    before = prose[prose.rfind("\n", 0, start) + 1 : start]
    after = prose[stop:] if line_stop < 0 else prose[stop:line_stop]
    if not before.strip() or not after.strip():
        return True
    return not (before[-1].isspace() or before[-1] in "([{" or _OPEN in before)


def _looping(case: _Case) -> str | None:
    if case.finish_reason == STOPPED_FOR_REPETITION:
        return "the server stopped it for repetition"
    for name, text, last in (
        ("answer", case.answer, True),
        ("thinking", case.thought, not case.has_answer),
    ):
        loop = find_loop(text, cut=case.near_max or (last and case.finish_reason == CUT))
        if loop is not None:
            near = "; draft tokens were nearly all accepted" if case.near_max else ""
            return f"the {name} repeats {loop.period} bytes {loop.repeats:.0f} times ({loop.kind}){near}"
    return None


def _boilerplate(case: _Case) -> str | None:
    if case.finish_reason == CUT or not case.repeats:
        return None
    needed = prompts_needed(case.response, thinking=case.thinking)
    return f"{case.repeats} recent prompts got the same short output" if case.repeats >= needed else None


def _no_answer(case: _Case) -> str | None:
    if case.has_answer or case.finish_reason == CUT:
        return None
    return "the model ended after its thinking, without an answer"


def _truncated_thinking(case: _Case) -> str | None:
    if case.has_answer or case.finish_reason != CUT:
        return None
    return f"cut off inside the thinking {_by_what(case)}"


def _truncated(case: _Case) -> str | None:
    return f"cut off inside the answer {_by_what(case)}" if case.finish_reason == CUT else None


def _by_what(case: _Case) -> str:
    """What cut it: the limit that was sent, or, short of that, the end of the context."""
    made = case.usage.completion_tokens
    if case.max_tokens is None or (made is not None and made < case.max_tokens):
        return "by the end of the context"
    return f"by its limit of {case.max_tokens} tokens"


RULES: Final[tuple[tuple[Verdict, Callable[[_Case], str | None]], ...]] = (
    # A completion that the server gave up on says nothing about the model.
    (Verdict.ABORTED, _aborted),
    # Damaged numbers or characters: whatever else it looks like follows from that.
    (Verdict.BROKEN, _broken),
    (Verdict.EMPTY, _empty),
    # Text in the wrong field misleads every rule below.
    (Verdict.PARSER_MISMATCH, _parser_mismatch),
    # A loop is the cause of being cut, and of thinking that never ends.
    (Verdict.LOOPING, _looping),
    (Verdict.BOILERPLATE, _boilerplate),
    (Verdict.NO_ANSWER, _no_answer),
    (Verdict.TRUNCATED_THINKING, _truncated_thinking),
    (Verdict.TRUNCATED, _truncated),
)
"""The rules in order of precedence, each returning why it applies or `None`. Where none does: `ok`."""
