"""Which sampling values each engine takes, and in which words it refuses others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from ops.simulator.settings import Dialect


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The range of one value.

    Attributes:
        rule: the engine's words for it.
        open: whether `low` itself is refused.
        also: a value that is taken though it is out of the range.
        names_parameter: whether vLLM adds the parameter's name to its words.
    """

    name: str
    rule: str
    low: float = -math.inf
    high: float = math.inf
    open: bool = False
    also: float | None = None
    names_parameter: bool = False

    def holds(self, value: float) -> bool:
        """Whether the engine takes the value."""
        if value == self.also:
            return True
        return value <= self.high and (value > self.low if self.open else value >= self.low)


_TOP_P: Final = Limit(name="top_p", rule="must be in (0, 1]", low=0, high=1, open=True, names_parameter=True)
_SHARED: Final = (
    _TOP_P,
    Limit(name="min_p", rule="must be in [0, 1]", low=0, high=1),
    Limit(name="presence_penalty", rule="must be in [-2, 2]", low=-2, high=2),
    Limit(name="frequency_penalty", rule="must be in [-2, 2]", low=-2, high=2),
)
_SGLANG: Final = (
    Limit(name="temperature", rule="must be a non-negative finite number", low=0),
    *_SHARED,
    Limit(name="repetition_penalty", rule="must be in (0, 2] (1.0 = no penalty)", low=0, high=2, open=True),
    Limit(name="top_k", rule="must be -1 (disable) or at least 1", low=1, also=-1),
    # 0 is taken: the answer is empty and "cut off".
    Limit(name="max_tokens", rule="must be at least 0", low=0),
)
_VLLM: Final = (
    Limit(name="temperature", rule="must be non-negative", low=0, names_parameter=True),
    Limit(name="temperature", rule="must be in [0, 2]", low=0, high=2, names_parameter=True),
    *_SHARED,
    Limit(name="repetition_penalty", rule="must be greater than zero", low=0, open=True),
    Limit(name="top_k", rule="must be 0 (disable), or at least 1", low=0, also=-1, names_parameter=True),
    Limit(name="max_tokens", rule="must be at least 1", low=1, names_parameter=True),
)


def limits_of(dialect: Dialect) -> tuple[Limit, ...]:
    """The ranges that an engine checks, in its order. llama.cpp is taken to check as SGLang does."""
    return _VLLM if dialect == "vllm" else _SGLANG
