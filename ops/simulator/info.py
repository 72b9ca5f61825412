"""What a server tells of itself: models, settings, load, metrics, as each engine and version has it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ops.simulator.refusals import longest_prompt

if TYPE_CHECKING:
    from ops.simulator.settings import ServerSettings
    from ops.simulator.traits import Traits

_PARAMS_27B = 27_000_000_000


class LoadNow(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a server at one moment, and its totals."""

    running: int = 0
    waiting: int = 0
    limit: int = 0
    used_tokens: int = 0
    tokens_per_s: float = 0.0
    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unix_time: float = 0.0
    started_at: float = 0.0


def model_card(settings: ServerSettings, started_at: float) -> dict[str, Any]:
    """One model as `/v1/models` lists it."""
    card: dict[str, Any] = {"id": settings.model, "object": "model", "created": int(started_at)}
    if settings.dialect == "llamacpp":
        return {**card, "owned_by": "llamacpp", "meta": {"n_ctx_train": 262_144, "n_params": _PARAMS_27B}}
    owner = "sglang" if settings.dialect == "sglang" else "vllm"
    length = {"max_model_len": settings.context}
    if settings.dialect == "sglang":
        return {**card, "owned_by": owner, "root": settings.model, "parent": None, **length}
    root = f"/models/{settings.model}"
    return {**card, "owned_by": owner, "root": root, "parent": None, **length, "permission": [_permission()]}


def _permission() -> dict[str, Any]:
    """What vLLM adds to a model: OpenAI's permissions of old."""
    return {
        "id": "modelperm-b31006059cca32f8",
        "object": "model_permission",
        "created": 0,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def models(settings: ServerSettings, started_at: float) -> dict[str, Any]:
    """`/v1/models`."""
    return {"object": "list", "data": [model_card(settings, started_at)]}


def model_info(settings: ServerSettings, traits: Traits) -> dict[str, Any]:
    """SGLang's `/model_info`."""
    path = f"/models/{settings.model}"
    info: dict[str, Any] = {
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": True,
        "has_audio_understanding": False,
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
    }
    if traits.wide_model_info:
        info["served_model_name"] = settings.model
        info["load_format"] = "auto"
        info["reasoning_parser"] = _parser(settings)
        info["tool_call_parser"] = None
        info["disaggregation_mode"] = "null"
    return info


def _parser(settings: ServerSettings) -> str | None:
    return "qwen3" if settings.reasoning_parser else None


def server_info(settings: ServerSettings, traits: Traits, load: LoadNow) -> dict[str, Any]:
    """SGLang's `/server_info`. Like the real one, it holds the API key in clear, in two places."""
    requested = settings.slots if settings.requested_slots is None else settings.requested_slots
    speculative = settings.speculative
    mamba = "mamba_scheduler_strategy" if traits.old_mamba_flag else "mamba_radix_cache_strategy"
    graph = 1.2 if traits.old_mamba_flag else {"decode": 1.2}
    state: dict[str, Any] = {
        "last_gen_throughput": round(load.tokens_per_s, 3),
        "memory_usage": {
            "weight": 51.2,
            "kvcache": 9.6,
            "token_capacity": settings.kv_tokens,
            "graph": graph,
        },
        "effective_max_running_requests_per_dp": load.limit,
        "api_key": settings.api_key,
    }
    if speculative:
        state["avg_spec_accept_length"] = settings.accept_length
    info: dict[str, Any] = {
        "model_path": f"/models/{settings.model}",
        "served_model_name": settings.model,
        "api_key": settings.api_key,
        "admin_api_key": None,
        "context_length": settings.context if settings.context_flag else None,
        "max_running_requests": requested,
        "max_queued_requests": settings.max_queued,
        "max_total_num_tokens": settings.kv_tokens,
        "max_req_input_len": longest_prompt(settings),
        "schedule_policy": "lpm",
        "mem_fraction_static": 0.85,
        "max_mamba_cache_size": load.limit * 5,
        "mamba_full_memory_ratio": 0.9,
        "mamba_ssm_dtype": "float32",
        mamba: "extra_buffer",
        "disable_radix_cache": False,
        "page_size": 1,
        "reasoning_parser": _parser(settings),
        "tool_call_parser": None,
        "speculative_algorithm": "EAGLE" if speculative else None,
        "speculative_num_steps": settings.draft_tokens - 1 if speculative else None,
        "speculative_eagle_topk": 1 if speculative else None,
        "speculative_num_draft_tokens": settings.draft_tokens if speculative else None,
        "enable_metrics": settings.metrics,
        "enable_cache_report": settings.cache_report,
        "weight_version": "default",
        "internal_states": [state],
        "version": settings.engine_version,
    }
    if traits.old_mamba_flag:
        info["cuda_graph_max_bs"] = 256
    else:
        info["cuda_graph_config"] = {"decode": {"max_bs": 256}}
    if traits.wide_model_info:
        info["status"] = "ready"
        info["frontend"] = "python"
        info["startup_time"] = {"load_weight": 41.3, "kv_cache_allocation": 1.2, "scheduler_e2e": 95.0}
    return info


def loads(
    settings: ServerSettings, traits: Traits, load: LoadNow, include: frozenset[str] = frozenset({"all"})
) -> dict[str, Any]:
    """SGLang's `/v1/loads`, with the sections in `include`; without drafts there is none of them."""
    rank: dict[str, Any] = {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_used_tokens": load.used_tokens,
        "num_total_tokens": load.used_tokens,
        "max_total_num_tokens": settings.kv_tokens,
        "max_running_requests": load.limit,
        "token_usage": round(min(1.0, load.used_tokens / settings.kv_tokens), 4),
        "gen_throughput": round(load.tokens_per_s, 3),
        "cache_hit_rate": 0.08,
        "utilization": round(load.running / load.limit, 4),
        "memory": {"weight_gb": 51.2, "kv_cache_gb": 9.6, "token_capacity": settings.kv_tokens},
        "queues": {"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }
    if traits.sparse_loads:
        return _sparse_loads(settings, load, rank, include)
    if settings.speculative:
        rank["speculative"] = _accepted(settings)
    document: dict[str, Any] = {
        "timestamp": load.unix_time,
        "version": settings.engine_version,
        "loads": [rank],
    }
    if traits.load_totals:
        total = load.running + load.waiting
        rank["num_total_reqs"] = total
        document["dp_rank_count"] = 1
        document["aggregate"] = {"total_running_reqs": load.running, "total_waiting_reqs": load.waiting}
    return document


def _accepted(settings: ServerSettings) -> dict[str, Any]:
    rate = (settings.accept_length - 1) / (max(2, settings.draft_tokens) - 1)
    return {"accept_length": settings.accept_length, "accept_rate": round(rate, 4)}


def _sparse_loads(
    settings: ServerSettings, load: LoadNow, core: dict[str, Any], include: frozenset[str]
) -> dict[str, Any]:
    rank = {
        "timestamp": load.unix_time,
        **core,
        "num_waiting_uncached_tokens": 0,
        "num_active_tokens": load.used_tokens,
        "num_prealloc_ready_tokens": 0,
    }
    for section in ("memory", "queues"):
        if not include & {section, "all"}:
            del rank[section]
    if settings.speculative and include & {"spec", "all"}:
        rank["speculative"] = _accepted(settings)
    return {
        "timestamp": datetime.fromtimestamp(load.unix_time, UTC).isoformat(),
        "version": settings.engine_version,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [rank],
    }


def get_load(load: LoadNow) -> list[dict[str, Any]]:
    """SGLang's old `/get_load`: `num_reqs` counts the waiting ones too."""
    total = load.running + load.waiting
    rank = {"dp_rank": 0, "num_reqs": total, "num_waiting_reqs": load.waiting, "num_tokens": load.used_tokens}
    return [rank]


def props(settings: ServerSettings, load: LoadNow) -> dict[str, Any]:
    """llama.cpp's `/props`."""
    return {
        "default_generation_settings": {
            "n_ctx": settings.context,
            "params": {"temperature": 0.8, "top_k": 40},
        },
        "total_slots": load.limit,
        "model_alias": settings.model,
        "model_path": f"/models/{settings.model}.gguf",
        "modalities": {"vision": False, "audio": False},
        "build_info": settings.engine_version,
    }


def slots(settings: ServerSettings, load: LoadNow) -> list[dict[str, Any]]:
    """llama.cpp's `/slots`."""
    return [
        {
            "id": number,
            "n_ctx": settings.context,
            "speculative": False,
            "is_processing": number < load.running,
        }
        for number in range(load.limit)
    ]


def metrics(settings: ServerSettings, load: LoadNow) -> str:
    """The Prometheus text of the engine."""
    if settings.dialect == "vllm":
        names: dict[str, float] = {
            "vllm:num_requests_running": load.running,
            "vllm:num_requests_waiting": load.waiting,
            "vllm:kv_cache_usage_perc": min(1.0, load.used_tokens / settings.kv_tokens),
            "vllm:prompt_tokens_total": load.prompt_tokens,
            "vllm:generation_tokens_total": load.completion_tokens,
        }
        labels = f'engine="0",model_name="{settings.model}"'
    elif settings.dialect == "llamacpp":
        names = {
            "llamacpp:requests_processing": load.running,
            "llamacpp:requests_deferred": load.waiting,
            "llamacpp:predicted_tokens_seconds": load.tokens_per_s,
            "llamacpp:prompt_tokens_total": load.prompt_tokens,
            "llamacpp:tokens_predicted_total": load.completion_tokens,
        }
        labels = ""
    else:
        names = _sglang_metrics(settings, load)
        labels = f'engine_type="unified",model_name="{settings.model}",pp_rank="0",tp_rank="0"'
    lines: list[str] = []
    for name, value in names.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE {name} {kind}")
        lines.append(f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}")
    return "\n".join(lines) + "\n"


def _sglang_metrics(settings: ServerSettings, load: LoadNow) -> dict[str, float]:
    names: dict[str, float] = {
        "sglang:num_running_reqs": load.running,
        "sglang:num_queue_reqs": load.waiting,
        "sglang:gen_throughput": load.tokens_per_s,
        "sglang:token_usage": min(1.0, load.used_tokens / settings.kv_tokens),
        "sglang:num_used_tokens": load.used_tokens,
        "sglang:max_total_num_tokens": settings.kv_tokens,
        "sglang:cache_hit_rate": 0.08,
        "sglang:utilization": load.running / load.limit,
        "sglang:num_retracted_reqs": 0,
        "sglang:num_paused_reqs": 0,
        "sglang:prompt_tokens_total": load.prompt_tokens,
        "sglang:generation_tokens_total": load.completion_tokens,
        "sglang:num_requests_total": load.requests,
        "sglang:num_aborted_requests_total": load.aborted,
    }
    if settings.speculative:
        names["sglang:spec_accept_length"] = settings.accept_length
    return names
