"""What a server says about itself, from whichever endpoints it answers.

Every field is optional: servers differ by dialect and version. The whole dump is never kept or shown, because
SGLang's holds the API keys in clear: only the named fields below leave this module.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from consumers.client.fields import as_dict, as_int, as_list, as_str, first_int, mean, sum_floats, sum_ints
from consumers.client.load import Load


class Dialect(StrEnum):
    """Which engine answers."""

    SGLANG = "sglang"
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    UNKNOWN = "unknown"


_OWNERS: Final = {"sglang": Dialect.SGLANG, "vllm": Dialect.VLLM, "llamacpp": Dialect.LLAMA_CPP}


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as far as it told.

    `effective_running` is how many requests it really runs at once over all its ranks, `requested_running`
    what its command line asked for. `reserved_tokens` is kept free for drafts: prompt + reserved + max tokens
    must fit into `context_length`. `max_prompt_tokens` is the longest prompt its cache can hold.
    """

    dialect: Dialect = Dialect.UNKNOWN
    version: str | None = None
    model: str | None = None
    context_length: int | None = None
    max_prompt_tokens: int | None = None
    kv_tokens: int | None = None
    effective_running: int | None = None
    requested_running: int | None = None
    max_queued: int | None = None
    schedule_policy: str | None = None
    reasoning_parser: str | None = None
    speculative_algorithm: str | None = None
    speculative_steps: int | None = None
    speculative_topk: int | None = None
    draft_tokens: int | None = None
    reserved_tokens: int = 0
    accept_length: float | None = None
    tokens_per_s: float | None = None
    load: Load | None = None

    def at_least(self, *version: int) -> bool:
        """Whether the version is known and not older than `version`, for example `at_least(0, 5, 20)`."""
        return version_tuple(self.version) >= version


class ModelCard(msgspec.Struct, frozen=True):
    """The first model of `/v1/models`."""

    id: str | None = None
    owner: str | None = None
    context_length: int | None = None

    @property
    def dialect(self) -> Dialect:
        """The engine that the card names as owner."""
        return _OWNERS.get(self.owner or "", Dialect.UNKNOWN)


def version_tuple(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version: `0.5.13.post1` is `(0, 5, 13)`; empty where there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(part) for part in found.groups(default="0")) if found else ()


def parse_models(document: Any) -> ModelCard:
    """Read `/v1/models`. The context that llama.cpp gives is the one of training: no limit, not taken."""
    cards = as_list(as_dict(document).get("data"))
    card = as_dict(cards[0]) if cards else {}
    return ModelCard(as_str(card.get("id")), as_str(card.get("owned_by")), as_int(card.get("max_model_len")))


def looks_like_server_info(document: Any) -> bool:
    """Whether a document is SGLang's dump of itself, and not some other server's answer at that path."""
    found = as_dict(document)
    return "internal_states" in found or "max_total_num_tokens" in found or "speculative_algorithm" in found


def parse_server_info(document: Any) -> ServerInfo:
    """Read SGLang's `/server_info` (of old `/get_server_info`)."""
    top = as_dict(document)
    states = [as_dict(state) for state in as_list(top.get("internal_states"))]
    memory = as_dict(states[0].get("memory_usage")) if states else {}
    algorithm = as_str(top.get("speculative_algorithm"))
    steps, topk = as_int(top.get("speculative_num_steps")), as_int(top.get("speculative_eagle_topk"))
    drafts = as_int(top.get("speculative_num_draft_tokens"))
    return ServerInfo(
        dialect=Dialect.SGLANG,
        version=as_str(top.get("version")),
        model=as_str(top.get("served_model_name")) or as_str(top.get("model_path")),
        context_length=as_int(top.get("context_length")),
        max_prompt_tokens=as_int(top.get("max_req_input_len")),
        kv_tokens=first_int(top, "max_total_num_tokens") or first_int(memory, "token_capacity"),
        effective_running=sum_ints(states, "effective_max_running_requests_per_dp"),
        requested_running=as_int(top.get("max_running_requests")),
        max_queued=as_int(top.get("max_queued_requests")),
        schedule_policy=as_str(top.get("schedule_policy")),
        reasoning_parser=as_str(top.get("reasoning_parser")),
        speculative_algorithm=algorithm,
        speculative_steps=steps,
        speculative_topk=topk,
        draft_tokens=drafts,
        reserved_tokens=max((steps or 0) * (topk or 0), drafts or 0) if algorithm else 0,
        accept_length=mean(states, "avg_spec_accept_length"),
        tokens_per_s=sum_floats(states, "last_gen_throughput"),
    )


def parse_props(document: Any) -> ServerInfo:
    """Read llama.cpp's `/props`: its context is per slot, and a slot is a running request."""
    top = as_dict(document)
    defaults = as_dict(top.get("default_generation_settings"))
    slots = as_int(top.get("total_slots"))
    return ServerInfo(
        dialect=Dialect.LLAMA_CPP,
        version=as_str(top.get("build_info")),
        model=as_str(top.get("model_alias")) or as_str(top.get("model_path")),
        context_length=first_int(defaults, "n_ctx") or first_int(top, "n_ctx"),
        effective_running=slots,
        requested_running=slots,
    )


def looks_like_props(document: Any) -> bool:
    """Whether a document is llama.cpp's `/props`."""
    found = as_dict(document)
    return "default_generation_settings" in found or "total_slots" in found


def parse_version(document: Any) -> str | None:
    """Read vLLM's `/version`."""
    return as_str(as_dict(document).get("version"))


def assemble(
    *,
    models: Any = None,
    server_info: Any = None,
    props: Any = None,
    version: Any = None,
    load: Load | None = None,
) -> ServerInfo:
    """Put together what the endpoints said; `None` for one that gave nothing.

    The card of `/v1/models` has the last word on the model's name and context: SGLang's dump has the context
    only where a flag gave it.
    """
    card = parse_models(models)
    if looks_like_server_info(server_info):
        base = parse_server_info(server_info)
    elif looks_like_props(props):
        base = parse_props(props)
    else:
        named = parse_version(version)
        dialect = card.dialect if card.owner in _OWNERS else Dialect.UNKNOWN
        base = ServerInfo(dialect=dialect, version=named)
    effective = base.effective_running or (load.max_running if load else None)
    return msgspec.structs.replace(
        base,
        model=card.id or base.model,
        context_length=card.context_length or base.context_length,
        effective_running=effective,
        accept_length=base.accept_length or (load.accept_length if load else None),
        tokens_per_s=base.tokens_per_s or (load.tokens_per_s if load else None),
        load=load,
    )
