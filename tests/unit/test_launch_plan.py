import shlex

import msgspec
import pytest

from common.errors import UsageError
from ops.launch.plan import LaunchSettings, plan, state_cache_gib
from ops.launch.spelling import Version, parse_version
from ops.launch.traits import Traits, traits_of

# The public configuration of the model this tool was made for, cut down to what decides flags.
QWEN = {
    "text_config": {
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
    }
}
SETTINGS = LaunchSettings(model="/dev/shm/Qwen3.6-27B", served_name="qwen3.6-27b", gpus=("0", "1"))


def replaced(**changes):
    return msgspec.structs.replace(SETTINGS, **changes)


def argv(version="0.5.23", traits=None, **changes):
    return plan(replaced(**changes), parse_version(version), traits or traits_of(QWEN))[0].server.argv


def value(arguments, flag):
    return arguments[arguments.index(flag) + 1]


def test_the_whole_line_for_the_oldest_version():
    first, second = plan(SETTINGS, parse_version("0.5.11"), traits_of(QWEN))
    assert first.server.shell() == (
        "CUDA_VISIBLE_DEVICES=0 python3 -m sglang.launch_server --model-path /dev/shm/Qwen3.6-27B "
        "--served-model-name qwen3.6-27b --host 127.0.0.1 --port 30000 --reasoning-parser qwen3 "
        "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --mamba-scheduler-strategy extra_buffer --max-mamba-cache-size 240 "
        "--max-running-requests 48 --cuda-graph-max-bs 48 --schedule-policy lpm --enable-metrics "
        "--enable-cache-report"
    )
    assert second.server.env == {"CUDA_VISIBLE_DEVICES": "1"}
    assert second.url == "http://127.0.0.1:30001"


@pytest.mark.parametrize(
    ("version", "strategy", "graph"),
    [
        ("0.5.11", "--mamba-scheduler-strategy", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--mamba-scheduler-strategy", "--cuda-graph-max-bs"),
        ("0.5.14", "--mamba-radix-cache-strategy", "--cuda-graph-max-bs-decode"),
        ("v0.5.18", "--mamba-radix-cache-strategy", "--cuda-graph-max-bs-decode"),
        ("0.5.20rc1", "--mamba-radix-cache-strategy", "--cuda-graph-max-bs-decode"),
        ("0.6.0", "--mamba-radix-cache-strategy", "--cuda-graph-max-bs-decode"),
    ],
)
def test_flags_are_spelled_as_the_version_wants_them(version, strategy, graph):
    arguments = argv(version)
    assert value(arguments, strategy) == "extra_buffer"
    assert value(arguments, graph) == "48"
    both = {"--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"}
    assert both & set(arguments) == {strategy}


@pytest.mark.parametrize(
    ("version", "flag", "right"),
    [
        ("0.5.20", "--cuda-graph-max-bs=64", "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"),
        ("0.5.12", "--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"),
    ],
)
def test_a_flag_the_version_refuses_is_refused_before_the_start(version, flag, right):
    with pytest.raises(UsageError, match=right):
        argv(version, server_arguments=(flag,))


def test_an_old_flag_is_let_through_while_the_server_still_takes_it():
    assert "--cuda-graph-max-bs" in argv("0.5.18", server_arguments=("--cuda-graph-max-bs", "64"))


@pytest.mark.parametrize("flag", ["--api-key", "--admin-api-key=secret"])
def test_a_key_never_reaches_the_command_line(flag):
    with pytest.raises(UsageError, match="SGLANG_API_KEY"):
        argv(server_arguments=(flag, "secret"))


@pytest.mark.parametrize("flag", ["--port", "--model-path=/x", "--config"])
def test_arguments_that_the_plan_sets_itself_are_refused(flag):
    with pytest.raises(UsageError, match="own option"):
        argv(server_arguments=(flag, "1"))


def test_every_gpu_gets_its_port_and_consumer():
    plans = plan(replaced(gpus=("3", "GPU-ab"), consumers=True, base_port=31000), Version(0, 5, 23), Traits())
    assert [one.server.env["CUDA_VISIBLE_DEVICES"] for one in plans] == ["3", "GPU-ab"]
    assert [value(one.server.argv, "--port") for one in plans] == ["31000", "31001"]
    assert [one.consumer.env for one in plans if one.consumer] == [
        {
            "RQ_WORKER_CLASS": "consumers.GenerationWorker",
            "SGLANG_URL": f"http://127.0.0.1:{port}",
            "PROMPTMILL_METRICS_ADDRESS": f"127.0.0.1:{metrics}",
        }
        for port, metrics in ((31000, 9400), (31001, 9401))
    ]
    assert plans[0].consumer
    assert plans[0].consumer.argv == ("rq", "worker", "completions")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": ()}, "no GPU"),
        ({"gpus": ("0", "0")}, "named twice"),
        ({"base_port": 65535}, "do not exist"),
        ({"base_port": 0}, "do not exist"),
    ],
)
def test_impossible_places_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        argv(**changes)


def test_a_plain_model_gets_neither_state_cache_nor_speculation():
    arguments = argv(traits=traits_of({"num_hidden_layers": 4}), mtp=False)
    assert not [flag for flag in arguments if "mamba" in flag or "speculative" in flag]


def test_without_a_prefix_cache_a_request_needs_one_slot():
    arguments = argv(server_arguments=("--disable-radix-cache",))
    assert value(arguments, "--max-mamba-cache-size") == "48"
    assert "--mamba-radix-cache-strategy" not in arguments


def test_the_state_cache_size_can_be_given_or_left_to_the_server():
    assert value(argv(state_cache_size=96), "--max-mamba-cache-size") == "96"
    assert "--max-mamba-cache-size" not in argv(state_cache_size=0)


def test_the_state_cache_needs_what_was_measured_for_this_model():
    for running, dtype, gib in (
        (32, None, 41),
        (48, "float32", 62),
        (48, "bfloat16", 32),
        (64, "bfloat16", 42),
    ):
        settings = replaced(max_running_requests=running, state_dtype=dtype)
        assert state_cache_gib(settings, traits_of(QWEN)) == pytest.approx(gib, abs=0.7)
    assert state_cache_gib(SETTINGS, Traits()) is None


@pytest.mark.parametrize(
    ("text", "message"), [("new", "no SGLang version"), ("0.5.9", "older"), ("0.5", "no SGLang")]
)
def test_versions_that_cannot_be_planned_for_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_version(text)


def test_a_printed_line_means_the_same_to_a_shell():
    settings = replaced(
        model="/models/it's mine", server_arguments=("--json-model-override-args", '{"a": "$HOME"}')
    )
    server = plan(settings, Version(0, 5, 23), Traits())[0].server
    _, *words = shlex.split(server.shell())
    assert tuple(words) == server.argv
