"""How busy a server is, from whichever load endpoint it has."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Final

import msgspec

from consumers.client.fields import as_dict, as_float, as_list, decode, mean, sum_floats, sum_ints


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A server's load at one moment, summed over its ranks. `source` is the endpoint that told.

    Figures from `/metrics` may be old: SGLang refreshes its gauges every 40 decode steps only.
    """

    source: str
    running: int | None = None
    waiting: int | None = None
    max_running: int | None = None
    accept_length: float | None = None
    tokens_per_s: float | None = None
    kv_usage: float | None = None


def parse_loads(document: Any) -> Load | None:
    """Read SGLang's `/v1/loads`."""
    ranks = [as_dict(rank) for rank in as_list(as_dict(document).get("loads"))]
    if not ranks:
        return None
    return Load(
        source="/v1/loads",
        running=sum_ints(ranks, "num_running_reqs"),
        waiting=sum_ints(ranks, "num_waiting_reqs"),
        max_running=sum_ints(ranks, "max_running_requests"),
        accept_length=mean([as_dict(rank.get("speculative")) for rank in ranks], "accept_length"),
        tokens_per_s=sum_floats(ranks, "gen_throughput"),
        kv_usage=mean(ranks, "token_usage"),
    )


def parse_get_load(document: Any) -> Load | None:
    """Read the old `/get_load` of SGLang, a list of ranks whose `num_reqs` counts the waiting ones too."""
    ranks = [as_dict(rank) for rank in as_list(document)]
    total = sum_ints(ranks, "num_reqs")
    if total is None:
        return None
    waiting = sum_ints(ranks, "num_waiting_reqs") or 0
    return Load(source="/get_load", running=max(0, total - waiting), waiting=waiting)


def parse_slots(document: Any) -> Load | None:
    """Read llama.cpp's `/slots`: every slot says whether it is at work; its queue is not told."""
    slots = [as_dict(slot) for slot in as_list(document)]
    busy = [slot["is_processing"] for slot in slots if isinstance(slot.get("is_processing"), bool)]
    return Load(source="/slots", running=sum(busy), max_running=len(busy)) if busy else None


_SAMPLE: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)", re.MULTILINE)


def parse_metrics(text: str) -> Load | None:
    """Read a Prometheus text of any of the three engines, summing over all labels."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for name, number in _SAMPLE.findall(text):
        value = _number(number)
        if value is not None:
            values[name].append(value)
    for names in _METRICS:
        if names["running"] in values:
            return _from_metrics(values, names)
    return None


_METRICS: Final[tuple[dict[str, str], ...]] = (
    {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "rate": "sglang:gen_throughput",
        "kv": "sglang:token_usage",
        "accept": "sglang:spec_accept_length",
    },
    {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv": "vllm:kv_cache_usage_perc",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "drafts": "vllm:spec_decode_num_drafts_total",
    },
    {
        "running": "llamacpp:requests_processing",
        "waiting": "llamacpp:requests_deferred",
        "rate": "llamacpp:predicted_tokens_seconds",
    },
)


def _from_metrics(values: dict[str, list[float]], names: dict[str, str]) -> Load:
    def total(what: str) -> float | None:
        found = values.get(names.get(what, ""))
        return sum(found) if found else None

    waiting, rate = total("waiting"), total("rate")
    usage, accept = values.get(names.get("kv", "")), values.get(names.get("accept", ""))
    length = sum(accept) / len(accept) if accept else None
    accepted, drafts = total("accepted"), total("drafts")
    if accepted is not None and drafts:
        length = 1 + accepted / drafts
    return Load(
        source="/metrics",
        running=int(total("running") or 0),
        waiting=None if waiting is None else int(waiting),
        accept_length=length or None,
        tokens_per_s=rate,
        kv_usage=max(usage) if usage else None,
    )


def _number(text: str) -> float | None:
    try:
        return as_float(float(text))
    except ValueError:
        return None


def read_load(path: str, body: bytes) -> Load | None:
    """Read the answer of the load endpoint at `path`; `None` where it tells nothing."""
    if path == "/metrics":
        return parse_metrics(body.decode("utf-8", "replace"))
    document = decode(body)
    if path == "/get_load":
        return parse_get_load(document)
    return parse_slots(document) if path == "/slots" else parse_loads(document)
