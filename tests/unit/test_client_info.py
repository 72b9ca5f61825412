"""What servers say of themselves, and how busy they are."""

from __future__ import annotations

import pytest

from consumers.client.info import Dialect, ServerInfo, assemble, parse_server_info, version_tuple
from consumers.client.load import Load, parse_get_load, parse_loads, parse_metrics, parse_slots, read_load

SERVER_INFO = {
    "model_path": "/dev/shm/Qwen3.6-27B",
    "served_model_name": "qwen3.6-27b",
    "api_key": "canary-key",
    "admin_api_key": "canary-admin",
    "context_length": None,
    "max_running_requests": 64,
    "max_queued_requests": None,
    "max_total_num_tokens": 400_000,
    "max_req_input_len": 262_138,
    "schedule_policy": "lpm",
    "reasoning_parser": "qwen3",
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "version": "0.5.23",
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 16,
            "avg_spec_accept_length": 2.9,
            "last_gen_throughput": 900.5,
            "memory_usage": {"token_capacity": 400_000, "graph": {"decode": 1}},
        }
    ],
}
MODELS = {
    "object": "list",
    "data": [{"id": "qwen3.6-27b", "object": "model", "owned_by": "sglang", "max_model_len": 262_144}],
}


def test_sglang_in_full():
    load = Load(source="/v1/loads", running=3, max_running=99)
    assert assemble(models=MODELS, server_info=SERVER_INFO, load=load) == ServerInfo(
        dialect=Dialect.SGLANG,
        version="0.5.23",
        model="qwen3.6-27b",
        context_length=262_144,
        max_prompt_tokens=262_138,
        kv_tokens=400_000,
        effective_running=16,
        requested_running=64,
        schedule_policy="lpm",
        reasoning_parser="qwen3",
        speculative_algorithm="EAGLE",
        speculative_steps=3,
        speculative_topk=1,
        draft_tokens=4,
        reserved_tokens=4,
        accept_length=2.9,
        tokens_per_s=900.5,
        load=load,
    )


def test_no_key_of_the_dump_survives():
    assert "canary" not in repr(assemble(models=MODELS, server_info=SERVER_INFO))


def test_ranks_are_summed_and_ratios_averaged():
    states = [
        {
            "effective_max_running_requests_per_dp": 16,
            "avg_spec_accept_length": 2.0,
            "last_gen_throughput": 1.0,
        },
        {
            "effective_max_running_requests_per_dp": 16,
            "avg_spec_accept_length": 3.0,
            "last_gen_throughput": 2.0,
        },
        "nonsense",
    ]
    info = parse_server_info({"internal_states": states})
    assert (info.effective_running, info.accept_length, info.tokens_per_s) == (32, 2.5, 3.0)


@pytest.mark.parametrize(
    ("fields", "reserved"),
    [
        ({"speculative_algorithm": None, "speculative_num_draft_tokens": 4}, 0),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 5, "speculative_eagle_topk": 4}, 20),
        ({"speculative_algorithm": "EAGLE"}, 0),
    ],
)
def test_reserved_tokens(fields, reserved):
    assert parse_server_info(fields).reserved_tokens == reserved


def test_the_effective_limit_may_come_from_the_load():
    info = assemble(models=MODELS, server_info={"internal_states": []}, load=Load(source="x", max_running=20))
    assert info.effective_running == 20
    assert info.context_length == 262_144


def test_vllm():
    models = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}
    info = assemble(models=models, version={"version": "0.32.0"})
    assert info == ServerInfo(dialect=Dialect.VLLM, version="0.32.0", model="m", context_length=2048)


def test_llama_cpp():
    models = {"data": [{"id": "m.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 40_960}}]}
    props = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4, "build_info": "b7000-abc"}
    info = assemble(models=models, props=props)
    assert (info.dialect, info.model, info.context_length) == (Dialect.LLAMA_CPP, "m.gguf", 4096)
    assert (info.effective_running, info.version) == (4, "b7000-abc")


@pytest.mark.parametrize(
    "documents",
    [
        {},
        {"models": None, "server_info": None, "props": None, "version": None},
        {"models": [], "server_info": {}, "props": {}, "version": []},
        {"models": {"data": [None]}, "server_info": "x", "props": 3, "version": "y"},
        {"models": {"data": [{"id": 3, "owned_by": [], "max_model_len": "9"}]}},
        {"models": {"data": [{"owned_by": "organization-owner"}]}},
    ],
)
def test_any_field_may_be_missing_or_odd(documents):
    assert assemble(**documents) == ServerInfo()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.11", (0, 5, 11)),
        ("v0.5.13.post1", (0, 5, 13)),
        ("0.6", (0, 6, 0)),
        ("0.5.20rc1", (0, 5, 20)),
        ("b7000", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_versions(version, expected):
    assert version_tuple(version) == expected


def test_an_unknown_version_is_old():
    assert not ServerInfo().at_least(0)
    assert ServerInfo(version="0.5.20").at_least(0, 5, 20)
    assert not ServerInfo(version="0.5.9").at_least(0, 5, 20)


RANK = {
    "num_running_reqs": 16,
    "num_waiting_reqs": 3,
    "max_running_requests": 16,
    "token_usage": 0.5,
    "gen_throughput": 100.0,
    "speculative": {"accept_length": 2.5},
}


def test_v1_loads():
    expected = Load(
        source="/v1/loads",
        running=32,
        waiting=6,
        max_running=32,
        accept_length=2.5,
        tokens_per_s=200.0,
        kv_usage=0.5,
    )
    assert parse_loads({"loads": [RANK, RANK]}) == expected
    assert parse_loads({"loads": []}) is None
    assert parse_loads({"loads": [{}]}) == Load(source="/v1/loads")
    assert parse_loads(None) is None


def test_get_load_counts_the_waiting_ones_among_all():
    found = parse_get_load([{"dp_rank": 0, "num_reqs": 10, "num_waiting_reqs": 4}])
    assert found == Load(source="/get_load", running=6, waiting=4)
    assert parse_get_load({"detail": "Not Found"}) is None


def test_slots():
    found = parse_slots([{"is_processing": True}, {"is_processing": False}])
    assert found == Load(source="/slots", running=1, max_running=2)
    assert parse_slots([]) is None


SGLANG_METRICS = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="a b{}",tp_rank="0"} 12.0
sglang:num_running_reqs{model_name="a",dp_rank="1",more="x"} 4.0
sglang:num_queue_reqs{model_name="a"} 2.0
sglang:gen_throughput{model_name="a"} 812.5
sglang:token_usage{model_name="a"} 0.25
sglang:spec_accept_length{model_name="a"} 2.75
sglang:cache_hit_rate NaN
"""


def test_metrics_are_summed_over_all_labels():
    assert parse_metrics(SGLANG_METRICS) == Load(
        source="/metrics", running=16, waiting=2, accept_length=2.75, tokens_per_s=812.5, kv_usage=0.25
    )


def test_metrics_of_the_other_engines():
    vllm = (
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'
        "vllm:spec_decode_num_accepted_tokens_total 300\nvllm:spec_decode_num_drafts_total 200\n"
    )
    assert parse_metrics(vllm) == Load(source="/metrics", running=3, waiting=1, accept_length=2.5)
    llama = (
        "llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\nllamacpp:predicted_tokens_seconds 40\n"
    )
    assert parse_metrics(llama) == Load(source="/metrics", running=2, waiting=5, tokens_per_s=40.0)


@pytest.mark.parametrize("text", ["", "not metrics", "other:thing 1", "sglang:num_running_reqs", "a{ x"])
def test_metrics_that_tell_nothing(text):
    assert parse_metrics(text) is None


@pytest.mark.parametrize("path", ["/v1/loads?include=core,spec", "/get_load", "/metrics", "/slots"])
def test_nonsense_at_a_load_endpoint(path):
    for body in (b"", b"{}", b"[]", b"\xff", b'"x"', b"<html>"):
        assert read_load(path, body) is None
