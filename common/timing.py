"""How long silence may last before it counts as death: one set of times for all processes of a Redis.

All processes that share a Redis must be given the same values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from common.errors import UsageError


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    Attributes:
        claim_ttl_s: a claim without a heartbeat for this long is abandoned.
        lease_s: a collector that does not renew its lease for this long has lost it.
    """

    claim_ttl_s: float = 20.0
    lease_s: float = 15.0

    @property
    def heartbeat_s(self) -> float:
        """Between two heartbeats of a consumer: three may be missed."""
        return self.claim_ttl_s / 4

    @property
    def upkeep_s(self) -> float:
        """Between two looks of the collector at what was abandoned or lost."""
        return self.claim_ttl_s / 4

    @property
    def unbalanced_s(self) -> float:
        """Counters and lists must disagree this long before lists are searched: a moment is only a race."""
        return self.claim_ttl_s * 0.75


def timing(environment: Mapping[str, str] | None = None) -> Timing:
    """The times that `PROMPTMILL_CLAIM_TTL` and `PROMPTMILL_LEASE_TTL` ask for, else the defaults.

    Raises:
        UsageError: one of them is not a number of at least 1.
    """
    found = os.environ if environment is None else environment
    default = Timing()
    return Timing(
        claim_ttl_s=_seconds(found, "PROMPTMILL_CLAIM_TTL", default.claim_ttl_s),
        lease_s=_seconds(found, "PROMPTMILL_LEASE_TTL", default.lease_s),
    )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name) or ""
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 3600.0:  # noqa: PLR2004  # an hour
        raise UsageError(f"{name} is {text!r}: give seconds, from 1 to 3600")
    return value
