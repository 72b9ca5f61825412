import pytest

from common.errors import UsageError
from ops.launch.cli import _drain_timeout
from ops.launch.machine import gpus_of
from ops.launch.reason import reason
from ops.launch.supervisor import Policy, restart_delay

OUT_OF_MEMORY = """\
[2026-01-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 3000, in run_scheduler_process
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 62.00 GiB.
[2026-01-01 10:00:01] Received sigquit from a child process. It usually means the child failed.
""".splitlines()


@pytest.mark.parametrize(
    ("lines", "code", "told"),
    [
        (
            OUT_OF_MEMORY,
            137,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 62.00 GiB. (signal 9)",
        ),
        (
            ["usage: x", "x: error: unrecognized arguments: --old"],
            2,
            "x: error: unrecognized arguments: --old (exit code 2)",
        ),
        (["ValueError: extra_buffer is needed", ""], 1, "ValueError: extra_buffer is needed (exit code 1)"),
        (
            ["[t] token_to_kv_pool_allocator memory leak detected!"],
            137,
            "token_to_kv_pool_allocator memory leak detected! (signal 9)",
        ),
        (["loading", "halfway", " "], 1, "halfway (exit code 1)"),
        ([], 143, "nothing in its log (signal 15)"),
    ],
)
def test_the_reason_is_what_a_person_would_point_at(lines, code, told):
    assert reason(lines, exit_code=code) == told


def test_a_key_is_not_repeated():
    assert "s3cret" not in reason(["ValueError: bad api_key='s3cret'"], exit_code=1, secrets=["s3cret", ""])


def test_a_reason_is_short():
    assert len(reason(["x" * 100_000], exit_code=1)) < 600


def test_restarts_wait_longer_each_time_up_to_a_bound():
    policy = Policy(first_delay=5, longest_delay=300)
    assert [restart_delay(deaths, policy) for deaths in (1, 2, 3, 7, 8, 10_000)] == [5, 10, 20, 300, 300, 300]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0,2", "0 2"), ("0-3", "0 1 2 3"), (" 1 , 5-6", "1 5 6"), ("GPU-a,MIG-b", "GPU-a MIG-b")],
)
def test_gpus_are_named_by_number_range_or_id(text, gpus):
    assert gpus_of(text) == tuple(gpus.split())


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "0,1;rm"])
def test_what_names_no_gpu_is_refused(text):
    with pytest.raises(UsageError, match="names no GPU"):
        gpus_of(text)


def test_all_gpus_are_those_this_process_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert gpus_of("all") == ("4", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of("all") == ()


def test_a_consumer_gets_longer_than_its_drain(monkeypatch):
    monkeypatch.delenv("PROMPTMILL_DRAIN_TIMEOUT", raising=False)
    assert _drain_timeout(360) == 360
    monkeypatch.setenv("PROMPTMILL_DRAIN_TIMEOUT", "900")
    assert _drain_timeout(360) == 960
    monkeypatch.setenv("PROMPTMILL_DRAIN_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="seconds"):
        _drain_timeout(360)
