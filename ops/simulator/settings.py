"""What one simulated server is: its engine, its limits, its speed, and how long its answers are."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Dialect = Literal["sglang", "vllm", "llamacpp"]

DEFAULT_VERSIONS: Final[dict[Dialect, str]] = {"sglang": "0.5.23", "vllm": "0.32.0", "llamacpp": "b6900"}


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated server. Times are in seconds of the simulated server unless said otherwise.

    Attributes:
        dialect: the engine whose wire format is spoken.
        version: the engine's version; empty means the newest that the dialect knows.
        slots: requests that really run at once (the "effective" limit).
        requested_slots: the limit that the launch flag asked for; shown in `/server_info`, default `slots`.
        context: context length in tokens.
        context_flag: whether the context length was given as a flag (it adds one kind of refusal).
        kv_tokens: tokens that the cache holds; a prompt longer than this is refused.
        median_tokens: median of the lognormal output length, thinking included.
        sigma: spread of that length's logarithm.
        thinking_share: part of the output that is thinking, on average.
        tokens_per_s: speed of one slot.
        slowdown: a slot's speed is divided by `1 + slowdown * (others running)` when its request starts.
        time_scale: how many simulated seconds pass in one real second.
        instant: answer at once: no slots, no queue, no waiting.
        accept_length: mean tokens accepted per verification step; 0 turns speculative decoding off.
        keepalive_s: real seconds until an idle connection is closed.
        disconnect_poll_s: real seconds between two looks at whether the client of a request is still there.
        zombie_streams: whether a stream whose client left runs on to its end; `None`: as the version does.
        health_delay_s: real seconds that `/health` takes; `None`: as the dialect does.
        health_timeout_s: real seconds after which `/health` of a stuck server says 503.
        max_queued: waiting requests beyond which the server says 503; `None` is unbounded.
        seed: makes another fleet of answers and of random faults.
    """

    dialect: Dialect = "sglang"
    version: str = ""
    model: str = "qwen3.6-27b"
    slots: int = 48
    requested_slots: int | None = None
    context: int = 65_536
    context_flag: bool = False
    kv_tokens: int = 1_000_000
    reasoning_parser: bool = True
    thinking: bool = True
    median_tokens: float = 1400.0
    sigma: float = 0.7
    thinking_share: float = 0.6
    tokens_per_s: float = 75.0
    prefill_tokens_per_s: float = 8000.0
    slowdown: float = 0.0
    time_scale: float = 1.0
    instant: bool = False
    accept_length: float = 3.1
    draft_tokens: int = 4
    keepalive_s: float = 5.0
    disconnect_poll_s: float = 4.0
    zombie_streams: bool | None = None
    health_delay_s: float | None = None
    health_timeout_s: float = 20.0
    max_queued: int | None = None
    api_key: str | None = None
    metrics: bool = True
    cache_report: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no server could have."""
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, not {self.slots}")
        positive = (self.time_scale, self.tokens_per_s, self.prefill_tokens_per_s, self.median_tokens)
        if min(positive) <= 0:
            raise ValueError(
                "time_scale, tokens_per_s, prefill_tokens_per_s and median_tokens must be above 0"
            )
        if not 0 <= self.thinking_share < 1:
            raise ValueError(f"thinking_share must be in [0, 1), not {self.thinking_share}")

    @property
    def engine_version(self) -> str:
        """The version that the server reports."""
        return self.version or DEFAULT_VERSIONS[self.dialect]

    @property
    def speculative(self) -> bool:
        """Whether the server decodes speculatively."""
        return self.accept_length > 0 and self.dialect == "sglang"

    @property
    def reserved_tokens(self) -> int:
        """Tokens of the context that speculative decoding keeps for itself."""
        return self.draft_tokens if self.speculative else 0

    @property
    def health_delay(self) -> float:
        """Real seconds that `/health` takes: a probe generates a token on SGLang, never under a second."""
        if self.health_delay_s is not None:
            return self.health_delay_s
        return 1.0 if self.dialect == "sglang" else 0.0


def instant_settings(**changes: Any) -> ServerSettings:
    """A server for benches and tests: answers at once, probes at once, notices a lost client at once."""
    base = ServerSettings(instant=True, health_delay_s=0.0, disconnect_poll_s=0.1)
    return msgspec.structs.replace(base, **changes)
