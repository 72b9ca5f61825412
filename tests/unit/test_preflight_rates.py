"""From measured requests to rates, knees and hours."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from common.records import Verdict
from consumers.client.health import Health, HealthState
from consumers.client.info import Dialect, ServerInfo
from consumers.client.outcome import FailureKind
from ops.preflight.forecast import forecast
from ops.preflight.rates import (
    batch_of,
    curve_point,
    estimate,
    knee_of,
    mean_point,
    quantile,
    rate_at,
    steady_rate,
)
from ops.preflight.values import Answer, Batch, Curve, CurvePoint, ServerFacts


def answer(began: float, took: float, tokens: int | None = 100, **more) -> Answer:
    return Answer(began=began, took=took, tokens=tokens, verdict=Verdict.OK, **more)


def queued(slots: int, in_flight: int, rounds: int, length: float = 1.0) -> list[Answer]:
    """Requests of one length at a server of so many slots, each sent as one before it ends."""
    answers: list[Answer] = []
    free = [0.0] * slots
    sent = [0.0] * in_flight
    for _ in range(rounds * in_flight):
        began = min(sent)
        sent.remove(began)
        start = max(began, min(free))
        free.remove(min(free))
        free.append(start + length)
        sent.append(start + length)
        answers.append(answer(began, start + length - began))
    return answers


def test_mean_point_counts_who_was_in_flight_on_average():
    # Two requests for 1 s, one of them goes on alone for another: 1.5 in flight over 2 s.
    assert mean_point([answer(0, 1, 50), answer(0, 2, 150)]) == (1.5, 100.0)


def test_mean_point_without_data():
    assert mean_point([]) is None
    assert mean_point([answer(0, 1, None)]) is None


@pytest.mark.parametrize("in_flight", [1, 4, 8, 12, 16, 32, 64])
def test_the_steady_rate_is_the_servers_own_whatever_waits_in_its_queue(in_flight):
    slots = 8
    rate = steady_rate(queued(slots, in_flight, rounds=3), in_flight, slots)
    assert rate == pytest.approx(100 * min(slots, in_flight))


def test_the_steady_rate_of_requests_of_many_lengths():
    random = Random(1)
    took = [random.uniform(0.2, 3.0) for _ in range(60)]
    free, answers = [0.0] * 4, []
    for seconds in took:
        began = min(free)
        free.remove(began)
        free.append(began + seconds)
        answers.append(answer(began, seconds, round(100 * seconds)))
    assert steady_rate(answers, 4) == pytest.approx(400, rel=0.01)


def test_no_steady_rate_without_a_second_round():
    assert steady_rate([answer(0, 1), answer(0, 1)], 2) is None
    assert steady_rate([], 2) is None


@pytest.mark.parametrize(
    ("points", "in_flight", "rate"),
    [
        ([(1.0, 100.0)], 10, 1000.0),
        # A step of 10 ms and 1 ms for each request in it.
        ([(1.0, 1 / 0.011), (4.0, 4 / 0.014)], 20, 20 / 0.030),
        ([(1.0, 1 / 0.011), (2.0, 2 / 0.012), (4.0, 4 / 0.014)], 48, 48 / 0.058),
        # Faster together than alone is noise, not a law.
        ([(1.0, 90.0), (4.0, 400.0)], 8, 8 / ((1 / 90 + 4 / 400) / 2)),
    ],
)
def test_a_rate_is_extrapolated_along_the_cost_of_a_step(points, in_flight, rate):
    assert rate_at(points, in_flight) == pytest.approx(rate)


def test_a_server_that_is_full_at_once_stays_at_its_rate():
    rate = rate_at([(1.0, 100.0), (4.0, 100.0), (8.0, 90.0)], 100)
    assert rate is not None
    assert 85 < rate < 110


def test_no_rate_from_nothing():
    assert rate_at([], 10) is None
    assert rate_at([(1.0, 0.0)], 10) is None


def points(*rates: tuple[int, float]) -> list[CurvePoint]:
    return [CurvePoint(in_flight=n, tokens_per_s=rate, requests=1) for n, rate in rates]


@pytest.mark.parametrize(
    ("rates", "knee"),
    [
        ([(1, 100), (8, 700), (16, 1200), (32, 1210), (64, 1190)], 16),
        ([(1, 100), (8, 800), (16, 1600)], 16),
        ([(1, 100)], 1),
        ([(16, 1200), (1, 1199)], 1),
        ([(1, 100), (8, 94), (16, 90)], 1),
        ([(1, 0), (8, 0)], None),
        ([], None),
    ],
)
def test_the_knee_is_the_fewest_that_reach_nearly_the_best(rates, knee):
    assert knee_of(points(*rates)) == knee


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3], 0.5, 3), ([1, 2, 3, 4], 0.5, 2), (list(range(1, 101)), 0.95, 95), ([1, 2], 1, 2)],
)
def test_quantiles(values, share, expected):
    assert quantile(values, share) == expected


def test_a_level_of_a_sweep():
    failed = Answer(began=0, took=1, failure=FailureKind.TIMEOUT)
    point = curve_point([*queued(2, 2, 3), failed], 2)
    assert (point.requests, point.failures, point.p50_s) == (7, 1, 1.0)
    assert point.tokens_per_s == pytest.approx(200)
    assert point.accept_length is None


def test_a_batch_adds_up_over_servers():
    batch = batch_of(
        {
            "a": [answer(0, 1, 100, accept_length=3.0), Answer(began=0, took=1, failure=FailureKind.TIMEOUT)],
            "b": [answer(0, 2, 300, accept_length=2.0), answer(0, 1, None)],
        }
    )
    assert (batch.asked, batch.judged) == (4, 3)
    assert batch.failures == {"timeout": 1}
    assert batch.mean_tokens == 200
    assert batch.accept_length == 2.5
    assert batch.rates == {"a": (1.0, 100.0), "b": (1.0, 150.0)}


def test_hours_from_rates():
    found = estimate(completions=902_087, tokens_each=1820, rates=[3000.0] * 7, rests_on="x")
    assert found is not None
    assert found.wall_s == pytest.approx(902_087 * 1820 / 21_000)
    assert found.server_hours == pytest.approx(7 * found.wall_s / 3600)
    assert estimate(completions=1, tokens_each=1, rates=[], rests_on="x") is None


INFO = ServerInfo(dialect=Dialect.SGLANG, model="m", effective_running=10)
SERVER = ServerFacts(
    url="a", health=Health(HealthState.READY), info=INFO, canary=Answer(began=0, took=1.0, tokens=50)
)


def predicted(**changes):
    wanted = {
        "servers": [SERVER],
        "batch": None,
        "curves": [],
        "completions": 100,
        "expected_tokens": None,
        "max_tokens": 4096,
        "concurrency": 0,
    }
    return forecast(**(wanted | changes))


def test_one_canary_alone_gives_bounds_and_says_so():
    found = predicted()
    assert (found.tokens_per_s, found.tokens_each) == (500, 4096)
    assert found.at_best
    assert found.at_most
    assert "one request alone" in found.rests_on


def test_a_batch_gives_length_and_slope():
    batch = Batch(asked=8, verdicts={"ok": 8}, mean_tokens=1000.0, rates={"a": (4.0, 160.0)})
    found = predicted(batch=batch)
    # 20 ms and 25 ms a step at 1 and 4: 35 ms at 10.
    assert found.tokens_per_s == pytest.approx(10 / 0.035)
    assert found.tokens_each == 1000
    assert not found.at_best
    assert not found.at_most
    assert "4.0 in flight, extrapolated" in found.rests_on


def test_a_sweep_goes_before_a_batch_and_a_users_word_before_the_canarys():
    curve = Curve(url="a", points=points((1, 50), (8, 390), (16, 400)), knee=8)
    batch = Batch(asked=8, verdicts={"ok": 8}, mean_tokens=1000.0, rates={"a": (4.0, 160.0)})
    found = predicted(curves=[curve], batch=batch, expected_tokens=1820.0)
    assert (found.tokens_per_s, found.tokens_each) == (390, 1820)
    assert "knee (8 in flight)" in found.rests_on
    assert "1,820" in found.rests_on


def test_what_a_server_does_not_run_brings_no_rate():
    assert predicted(concurrency=64).tokens_per_s == 500
    assert predicted(concurrency=4).tokens_per_s == 200


def test_servers_that_are_down_are_left_out():
    down = ServerFacts(url="b", health=Health(HealthState.UNREACHABLE))
    assert predicted(servers=[SERVER, down]).servers == 1
    assert predicted(servers=[down]) is None


def test_no_input_no_estimate():
    assert predicted(completions=None) is None


def test_a_report_goes_through_json():
    found = predicted()
    assert msgspec.json.decode(msgspec.json.encode(found))["server_hours"] > 0
