"""What becomes of a judged completion: kept, asked for again, or rejected."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from common.records import DeadReason, Verdict
from common.settings import DEFAULT_POLICY, NEVER_RETRIED

if TYPE_CHECKING:
    from common.settings import OnVerdict, QualitySettings


class Keep(msgspec.Struct, frozen=True):
    """Store the completion with its verdict."""


class RetryWithSeed(msgspec.Struct, frozen=True):
    """Ask for it again with this seed. A server that ignores seeds draws anew all the same."""

    seed: int


class Reject(msgspec.Struct, frozen=True):
    """Make it a dead letter. That is an end: resuming the run does not pay for it again."""

    reason: DeadReason = DeadReason.REJECTED


Decision: TypeAlias = Keep | RetryWithSeed | Reject


def apply(
    verdict: Verdict,
    tries: int,
    settings: QualitySettings,
    *,
    unit: int = 0,
    sampled: bool = True,
) -> Decision:
    """Decide what becomes of a completion.

    Args:
        verdict: the gate's word on it.
        tries: completions judged so far for this unit, this one included, so 1 for the first.
        settings: the run's quality settings.
        unit: the unit's number, so that samples of one prompt do not draw the same retry.
        sampled: whether the text was sampled; greedy decoding (temperature 0) gives the same text again,
            so what would be retried is rejected at once.
    """
    action = action_for(verdict, settings)
    if action == "keep":
        return Keep()
    if action == "retry" and sampled and tries <= settings.retries:
        return RetryWithSeed(retry_seed(unit, tries))
    return Reject()


def action_for(verdict: Verdict, settings: QualitySettings) -> OnVerdict:
    """The run's policy for a verdict; what a retry cannot change is never retried, whatever it says."""
    action = settings.policy.get(verdict, DEFAULT_POLICY[verdict])
    if verdict is Verdict.OK or (action == "retry" and verdict in NEVER_RETRIED):
        return "keep"
    return action


def retry_seed(unit: int, tries: int) -> int:
    """A seed of 31 bits, the same for the same try of the same unit."""
    return zlib.crc32(f"{unit}:{tries}".encode()) & 0x7FFF_FFFF
