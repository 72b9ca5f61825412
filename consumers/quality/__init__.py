"""The quality gate and the guard: pure decisions, without clock, network or Redis.

`judge` gives a completion its verdict, `apply` says what to do with it, `check` says when to stop.
"""

from consumers.quality.boilerplate import RecentAnswers, fingerprint
from consumers.quality.guard import PauseRun, PauseServer, check
from consumers.quality.policy import Decision, Keep, Reject, RetryWithSeed, apply
from consumers.quality.verdict import Judgement, judge

__all__ = [
    "Decision",
    "Judgement",
    "Keep",
    "PauseRun",
    "PauseServer",
    "RecentAnswers",
    "Reject",
    "RetryWithSeed",
    "apply",
    "check",
    "fingerprint",
    "judge",
]
