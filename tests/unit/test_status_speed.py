"""Rates and forecasts."""

from __future__ import annotations

import pytest

from ops.status.speed import LEAST_SPAN_S, Meter, Rate, forecast, whole_run


def test_a_forecast_is_what_is_left_over_the_pace_with_a_spread_that_narrows_with_evidence():
    few, many = forecast(1000, Rate(10, 0, 25)), forecast(1000, Rate(10, 0, 10_000))
    assert few.seconds == many.seconds == 100
    assert (few.low, few.high) == pytest.approx((100 / 1.4, 100 / 0.6))
    assert (many.low, many.high) == pytest.approx((100 / 1.02, 100 / 0.98))


def test_a_forecast_on_next_to_nothing_is_wide_but_not_endless():
    assert forecast(10, Rate(0.1, 0, 1)).high == pytest.approx(1000)
    assert forecast(10, Rate(0.1, 0, 0)).high == pytest.approx(1000)


def test_nothing_left_takes_no_time_and_no_pace_gives_no_forecast():
    assert forecast(0, None).seconds == 0
    assert forecast(5, None) is None
    assert forecast(5, Rate(0.0, 0.0, 0)) is None


def test_the_whole_runs_rate():
    assert whole_run(100, 2000, 50.0) == Rate(2.0, 40.0, 100.0)
    assert whole_run(100, 2000, 0.0) is None
    assert whole_run(100, 2000, -5.0) is None


def test_a_meter_says_nothing_before_it_has_watched_a_while():
    meter = Meter()
    assert meter.rate() is None
    meter.add(0.0, 0, 0)
    meter.add(LEAST_SPAN_S - 1, 9, 90)
    assert meter.rate() is None
    meter.add(LEAST_SPAN_S, 20, 200)
    assert meter.rate() == Rate(2.0, 20.0, 20.0)


def test_a_meter_looks_back_one_minute():
    meter = Meter()
    for second in range(200):
        meter.add(float(second), min(second, 100) * 3, 0)
    assert meter.rate().completions == 0
    meter.add(200.0, 360, 0)
    assert meter.rate() == Rate(1.0, 0.0, 60.0)


def test_a_meter_bears_counts_that_fall_and_clocks_that_stand():
    meter = Meter()
    meter.add(0.0, 500, 500)
    meter.add(0.0, 900, 900)
    meter.add(20.0, 10, 10)
    assert meter.rate() == Rate(0.0, 0.0, 0.0)
