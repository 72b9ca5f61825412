"""The time as records and RQ's keys hold it."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from common.store.runs import iso_now


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_767_225_599_999_999_999, "2025-12-31T23:59:59.999999Z"),
        (1_767_225_600_000_000_000, "2026-01-01T00:00:00.000000Z"),
        (1_767_225_600_000_001_999, "2026-01-01T00:00:00.000001Z"),
        (1_767_225_599_000_000_000, "2025-12-31T23:59:59.000000Z"),
        (253_402_300_799_000_000_000, "9999-12-31T23:59:59.000000Z"),
    ],
)
def test_it_is_written_to_the_microsecond(
    monkeypatch: pytest.MonkeyPatch, nanoseconds: int, text: str
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds)
    assert iso_now() == text


def test_it_is_the_time_in_utc() -> None:
    before = dt.datetime.now(dt.UTC)
    found = dt.datetime.fromisoformat(iso_now())
    assert found.tzinfo == dt.UTC
    assert before.replace(microsecond=0) <= found <= dt.datetime.now(dt.UTC)
