"""Checks of what servers answered: one canary each, and the batch."""

from __future__ import annotations

from typing import Final

import msgspec

from common.records import Verdict
from common.settings import QualitySettings
from consumers.client.outcome import Blame, ThinkingFrom
from consumers.quality import guard
from consumers.quality.guard import REMEDIES
from ops.preflight.values import Answer, Batch, Check, Status, passed, skipped, warned

NAME: Final = "canary"
BATCH: Final = "canary batch"

CUT: Final = frozenset({Verdict.TRUNCATED, Verdict.TRUNCATED_THINKING})
NOTABLE_SHARE: Final = 0.05
LEAST_JUDGED: Final = 20
"""Below so many completions a share is no ground to refuse a run."""

_LONG_THOUGHT: Final = "--canary 32 shows what becomes of prompts of the input"
_PARSER: Final = "start the server with the model's reasoning parser, or use --no-thinking"


def check_canary(url: str, answer: Answer | None, *, waits: bool) -> Check:
    """One prompt's answer: it came, passes the gate, and has thinking and content where both are due.

    Args:
        url: the server.
        answer: what came; `None` where nothing was asked.
        waits: one bad answer is no reason to stop, for a run waits for servers and guards its answers;
            settings that the server refuses are.
    """
    if answer is None:
        return skipped(url, NAME, "not asked")
    doubtful = Status.WARN if waits else Status.FAIL
    if answer.failure is not None:
        refused = answer.failure.is_setup or answer.failure.blame is Blame.ROW
        remedy = "correct what it names" if refused else "look at the server's log"
        words = f"{answer.failure.value}: {answer.words}"
        return Check(url, NAME, Status.FAIL if refused else doubtful, words, remedy)
    words = _measured(answer)
    verdict = answer.verdict or Verdict.OK
    if verdict is Verdict.OK or verdict in CUT:
        thinking = _check_thinking(url, answer, words, doubtful)
        if thinking is not None:
            return thinking
        if not answer.answered and not waits:
            return warned(url, NAME, f"{words}; no answer was seen: {answer.words}", _LONG_THOUGHT)
        return passed(url, NAME, words)
    remedy = REMEDIES.get(verdict, "look at the server's log")
    return Check(url, NAME, doubtful, f"verdict {verdict.value}: {answer.words}", remedy)


def _check_thinking(url: str, answer: Answer, words: str, doubtful: Status) -> Check | None:
    if not answer.thinking or answer.thinking_from is ThinkingFrom.FIELD:
        return None
    if answer.thinking_from is ThinkingFrom.CONTENT:
        told = f"{words}; the thinking came within the answer and was split off here"
        return Check(url, NAME, Status.WARN, told, _PARSER)
    told = f"{words}; no thinking came, though it was asked for"
    return Check(url, NAME, doubtful, told, f"check the model and its chat template; {_PARSER}")


def _measured(answer: Answer) -> str:
    words = f"{answer.tokens or 0:,} tokens in {answer.took:.1f} s"
    if answer.tokens_per_s:
        words += f", {answer.tokens_per_s:,.0f} tokens/s at one request"
    if answer.accept_length:
        words += f", accept length {answer.accept_length:.2f}"
    return words


def check_batch(batch: Batch, quality: QualitySettings) -> list[Check]:
    """The tally of the batch against what the quality guard would let pass."""
    checks = [_check_failures(batch)] if batch.failures else []
    if not batch.judged:
        return [*checks, Check(BATCH, "answers", Status.FAIL, "no prompt was answered", "see the line above")]
    tally = ", ".join(f"{verdict} {count}" for verdict, count in batch.verdicts.items())
    mean = f"; {batch.mean_tokens:,.0f} tokens on average" if batch.mean_tokens else ""
    checks.append(passed(BATCH, "verdicts", f"{tally} of {batch.judged}{mean}"))
    return [*checks, _check_cut(batch), *_check_bad(batch), *_check_guard(batch, quality)]


def _check_failures(batch: Batch) -> Check:
    failures = sum(batch.failures.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in batch.failures.items())
    return Check(
        BATCH,
        "failures",
        Status.WARN,
        f"{failures} of {batch.asked} requests failed: {kinds}",
        "see the servers' logs; timed out ones did not end in the time that the canary has",
    )


def _check_cut(batch: Batch) -> Check:
    by_verdict = {verdict: batch.verdicts.get(verdict.value, 0) for verdict in sorted(CUT)}
    share = sum(by_verdict.values()) / batch.judged
    inside = by_verdict[Verdict.TRUNCATED_THINKING] / batch.judged
    words = f"{share:.0%} ended cut off, {inside:.0%} inside the thinking"
    if share <= NOTABLE_SHARE:
        return passed(BATCH, "cut off", words)
    worst = max(by_verdict, key=lambda verdict: by_verdict[verdict])
    return warned(BATCH, "cut off", words, REMEDIES[worst])


def _check_bad(batch: Batch) -> list[Check]:
    bad = {
        verdict: count
        for name, count in batch.verdicts.items()
        if (verdict := Verdict(name)) is not Verdict.OK and verdict not in CUT
    }
    if not bad:
        return []
    words = ", ".join(f"{verdict.value} {count}" for verdict, count in bad.items())
    worst = max(bad, key=lambda verdict: bad[verdict])
    share = f"{sum(bad.values()) / batch.judged:.0%}"
    return [warned(BATCH, "bad answers", f"{share}: {words}", REMEDIES[worst])]


def _check_guard(batch: Batch, quality: QualitySettings) -> list[Check]:
    """Whether the guard would pause a run whose answers are like these."""
    pause = guard.check(batch.verdicts, {}, msgspec.structs.replace(quality, window=batch.judged))
    if pause is None:
        return []
    words = f"the quality guard would pause a run with {pause.share:.0%} {pause.verdict.value}"
    status = Status.FAIL if batch.judged >= LEAST_JUDGED else Status.WARN
    return [Check(BATCH, "quality guard", status, words, REMEDIES[pause.verdict])]
