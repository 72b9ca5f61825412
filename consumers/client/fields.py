"""Reading JSON from servers, where any field may be absent, null or of another type than promised."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def decode(body: bytes) -> Any:
    """The JSON value of `body`, or `None` where it is no JSON (a body of `null` says as little)."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def as_dict(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """`value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def as_str(value: Any) -> str | None:
    """`value` if it is text with something in it."""
    return value if isinstance(value, str) and value else None


def as_int(value: Any) -> int | None:
    """`value` if it is a whole number; `true` is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def as_float(value: Any) -> float | None:
    """`value` if it is a finite number; `true` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def first_int(source: dict[str, Any], *names: str) -> int | None:
    """The first of `names` that holds a whole number: servers rename fields between versions."""
    return next((found for name in names if (found := as_int(source.get(name))) is not None), None)


def sum_ints(rows: list[dict[str, Any]], name: str) -> int | None:
    """The sum of a whole number over a server's ranks; `None` where no rank gives it."""
    found = [number for row in rows if (number := as_int(row.get(name))) is not None]
    return sum(found) if found else None


def sum_floats(rows: list[dict[str, Any]], name: str) -> float | None:
    """The sum of a rate over a server's ranks; `None` where no rank gives it."""
    found = [number for row in rows if (number := as_float(row.get(name))) is not None]
    return sum(found) if found else None


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a ratio over a server's ranks; `None` where no rank gives it."""
    found = [number for row in rows if (number := as_float(row.get(name))) is not None]
    return sum(found) / len(found) if found else None
