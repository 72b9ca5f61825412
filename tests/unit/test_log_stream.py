"""A log that cannot be written."""

from __future__ import annotations

import sys

import pytest
import structlog

from common.log import configure, get_logger


class Full:
    """Standard error on a full disk."""

    def isatty(self) -> bool:
        return False

    def write(self, _: str) -> None:
        raise OSError(28, "No space left on device")

    flush = write


def test_a_full_disk_under_the_log_stops_nobody(monkeypatch):
    full = Full()
    full.flush = lambda: full.write("")
    monkeypatch.setattr(sys, "stderr", full)
    try:
        configure()
        get_logger("consumer").error("job_fault", job="r-1")
    finally:
        structlog.reset_defaults()


def test_a_log_that_works_gets_its_lines(capsys: pytest.CaptureFixture[str]):
    try:
        configure()
        get_logger("consumer").error("job_fault", job="r-1")
    finally:
        structlog.reset_defaults()
    assert '"job": "r-1"' in capsys.readouterr().err
