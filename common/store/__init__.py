"""Redis, behind one package: connections, scripts, and what each role may ask of it."""

from common.store.claims import (
    Again,
    Claim,
    ClaimReply,
    ClaimStore,
    Completed,
    Dead,
    Ended,
    FinishReply,
    HandedBack,
    Outcome,
)
from common.store.connection import (
    RedisFacts,
    RedisFullError,
    RedisUnavailableError,
    async_client,
    client_from_url,
    redis_facts,
)
from common.store.runs import Admission, Counts, Part, Position, RunStore, Seal, Waiting

__all__ = [
    "Admission",
    "Again",
    "Claim",
    "ClaimReply",
    "ClaimStore",
    "Completed",
    "Counts",
    "Dead",
    "Ended",
    "FinishReply",
    "HandedBack",
    "Outcome",
    "Part",
    "Position",
    "RedisFacts",
    "RedisFullError",
    "RedisUnavailableError",
    "RunStore",
    "Seal",
    "Waiting",
    "async_client",
    "client_from_url",
    "redis_facts",
]
