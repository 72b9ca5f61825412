"""docs/logs.md against the code: every event is in the table, and nothing else is."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import NamedTuple

from support.deployment import ROOT

PACKAGES = ("common", "producer", "consumers", "ops")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
LOGGERS = ("log", "_log", "logger")
TABLE = "| event | component | level | when | fields |"
ANY = "..."
SECRET = {
    "prompt",
    "prompts_text",
    "messages",
    "content",
    "text",
    "answer",
    "response",
    "key",
    "password",
    "url",
}


class Event(NamedTuple):
    name: str
    component: str
    level: str


def events():
    """Every event that the code can log, with its fields."""
    found = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            component = component_of(tree)
            for call in ast.walk(tree):
                if is_log(call):
                    for name in names_of(call.args[0], path):
                        fields = found[Event(name, component, call.func.attr)]
                        fields.update(word.arg or ANY for word in call.keywords)
    return found


def component_of(tree):
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.args and getattr(call.func, "id", "") == "get_logger":
            return call.args[0].value
    return "ops"  # a logger that was handed over: only `ops launch` does that


def is_log(node):
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in LEVELS
    ):
        return False
    owner = node.func.value
    return getattr(owner, "id", getattr(owner, "attr", "")) in LOGGERS


def names_of(argument, path):
    if isinstance(argument, ast.IfExp):
        return [*names_of(argument.body, path), *names_of(argument.orelse, path)]
    assert isinstance(argument, ast.Constant), (
        f"{path}:{argument.lineno}: an event's name stands where it is logged"
    )
    return [argument.value]


def rows():
    _, _, table = (ROOT / "docs" / "logs.md").read_text().partition(TABLE)
    for line in table.strip().splitlines()[1:]:
        name, component, level, when, fields = (cell.strip() for cell in line.strip("|").split("|"))
        yield (
            Event(name.strip("`"), component, level),
            when,
            {field.strip("` ") for field in fields.split(",")} - {""},
        )


def test_the_table_has_every_event_with_its_component_level_and_fields_and_no_other():
    written = {event: fields for event, _, fields in rows()}
    assert written == dict(events())


def test_the_table_is_in_order_and_says_when():
    listed = [(event, when) for event, when, _ in rows()]
    assert [event for event, _ in listed] == sorted({event for event, _ in listed})
    assert all(when.endswith(".") and len(when) < 130 for _, when in listed)


def test_no_event_has_a_field_for_what_must_not_be_logged():
    named = {field for fields in events().values() for field in fields}
    assert not named & SECRET


def test_an_event_about_a_prompt_names_it():
    known = events()
    for name in ("dead_letter", "attempt_failed", "verdict_retry"):
        (fields,) = [fields for event, fields in known.items() if event.name == name]
        assert {"job", "id"} <= fields
