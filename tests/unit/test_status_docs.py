"""`docs/status.md` names every field of `ops status --json`, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from common.store.look import Silent
from ops.status.values import Consumer, Memory, Minute, Pause, Queue, RunStatus, State, Status

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "status.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def fields(title: str) -> list[str]:
    """The names in the first column of a section's table."""
    rows = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize(
    ("title", "struct"), [("Top level", Status), ("A run", RunStatus), ("A consumer", Consumer)]
)
def test_every_field_has_its_row(title, struct):
    assert sorted(fields(title)) == sorted(field.name for field in msgspec.structs.fields(struct))


@pytest.mark.parametrize(
    ("title", "row", "struct"),
    [
        ("Top level", "queue", Queue),
        ("Top level", "memory", Memory),
        ("Top level", "silent", Silent),
        ("A run", "paused", Pause),
        ("A consumer", "last_minute", Minute),
    ],
)
def test_every_field_inside_a_field_is_named_in_its_row(title, row, struct):
    line = next(line for line in section(title).splitlines() if line.startswith(f"| `{row}` "))
    for field in msgspec.structs.fields(struct):
        assert f"`{field.name}`" in line


def test_every_state_is_named():
    line = next(line for line in section("A run").splitlines() if line.startswith("| `state` "))
    assert set(re.findall(r"`([a-z ]+)`", line)) == {"state", *(state.value for state in State)}
