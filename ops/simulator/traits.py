"""How engines and their versions differ on the wire. One place knows version numbers: this one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from ops.simulator.settings import ServerSettings

_EFFORTS: Final = ("none", "low", "medium", "high")
_EFFORTS_0_5_12: Final = (*_EFFORTS, "max")
_EFFORTS_0_5_16: Final = (*_EFFORTS_0_5_12, "minimal", "xhigh")
_EFFORTS_0_5_23: Final = (*_EFFORTS_0_5_16, "ultra")


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The wire conventions of one engine version.

    Attributes:
        empty_content: what `content` is when there is no text.
        strips: whether thinking and answer come stripped, and every `<think>` is deleted.
        reasoning_field: the message field that holds thinking.
        tool_calls_key: whether `tool_calls` is present though there are none.
        completion_details: whether usage has `completion_tokens_details`.
        cached_zero: whether cached tokens are reported when there were none.
        old_spec_names: whether `meta_info` uses the first names of the speculation counters.
        weight_versions: whether `metadata` tells which weights made which tokens.
        sparse_loads: whether `/v1/loads` has only the sections that were asked for, under an ISO time.
        drains_healthy: whether a server that drains calls itself healthy and fails every new request.
    """

    empty_content: str | None = ""
    strips: bool = False
    reasoning_field: str = "reasoning_content"
    tool_calls_key: bool = False
    completion_details: bool = False
    cached_zero: bool = False
    return_meta_info: bool = False
    spec_details: bool = False
    token_ids: bool = False
    old_spec_names: bool = False
    old_retractions: bool = False
    load_totals: bool = False
    ready_route: bool = False
    get_load_route: bool = False
    wide_model_info: bool = False
    plain_generate_errors: bool = False
    weight_versions: bool = False
    sparse_loads: bool = False
    drains_healthy: bool = False
    zombie_streams: bool = False
    leaks_aborted_rids: bool = False
    old_mamba_flag: bool = False
    reasoning_efforts: tuple[str, ...] = _EFFORTS_0_5_16


def version_tuple(version: str) -> tuple[int, ...]:
    """The numbers of a version: `0.5.11.post1` is `(0, 5, 11, 1)`."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _sglang(version: tuple[int, ...]) -> Traits:
    efforts: tuple[str, ...] = _EFFORTS_0_5_23 if version >= (0, 5, 23) else _EFFORTS_0_5_16
    if version < (0, 5, 16):
        efforts = _EFFORTS_0_5_12 if version >= (0, 5, 12) else _EFFORTS
    return Traits(
        empty_content=None if version < (0, 5, 13) else "",
        strips=version < (0, 5, 13),
        tool_calls_key=version < (0, 5, 21),
        completion_details=version >= (0, 5, 23),
        cached_zero=version >= (0, 5, 21),
        return_meta_info=version >= (0, 5, 13),
        spec_details=version >= (0, 5, 20),
        token_ids=version >= (0, 5, 18),
        old_spec_names=version < (0, 5, 12),
        old_retractions=version < (0, 5, 12),
        load_totals=version < (0, 5, 12),
        ready_route=version >= (0, 5, 20),
        get_load_route=version < (0, 5, 23),
        wide_model_info=version >= (0, 5, 23),
        plain_generate_errors=version >= (0, 5, 23),
        weight_versions=version >= (0, 5, 23),
        sparse_loads=version >= (0, 5, 23),
        zombie_streams=(0, 5, 18) <= version < (0, 5, 20),
        leaks_aborted_rids=version < (0, 5, 13),
        old_mamba_flag=version < (0, 5, 14),
        reasoning_efforts=efforts,
    )


def traits_of(settings: ServerSettings) -> Traits:
    """The wire conventions of the engine and version that `settings` name."""
    if settings.dialect == "vllm":
        return Traits(
            empty_content=None,
            reasoning_field="reasoning",
            completion_details=True,
            cached_zero=True,
            drains_healthy=True,
        )
    if settings.dialect == "llamacpp":
        return Traits(empty_content="", strips=True, cached_zero=True)
    return _sglang(version_tuple(settings.engine_version))
