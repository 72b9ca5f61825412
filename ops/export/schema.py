"""The columns of exported rows, as plain data: declared in a data set's card and in its Parquet files.

A type is a name, a dictionary (a struct), or a list of one type (a list of it).
"""

from __future__ import annotations

from typing import Any, Final

_RESPONSE: Final = {"role": "string", "content": "string", "reasoning_content": "string"}
_USAGE: Final = {"prompt_tokens": "int64", "completion_tokens": "int64", "reasoning_tokens": "int64"}
_MESSAGE: Final = {
    "role": "string",
    "content": "string",
    "name": "string",
    "tool_calls": "string",
    "tool_call_id": "string",
    "content_parts": "string",
}
_TURN: Final = {
    "position": "int64",
    "response": _RESPONSE,
    "finish_reason": "string",
    "usage": _USAGE,
    "verdict": "string",
}

ROW: Final[dict[str, Any]] = {
    "id": "string",
    "run": "string",
    "index": "int64",
    "sample": "int64",
    "messages": [_MESSAGE],
    "response": _RESPONSE,
    "turns": [_TURN],
    "finish_reason": "string",
    "verdict": "string",
    "usage": _USAGE,
    "model": "string",
    "server": "string",
    "params": "string",
    "attempts": "int64",
    "started_at": "string",
    "latency_s": "float64",
    "speculation": {"accept_length": "float64", "accept_rate": "float64", "verify_steps": "int64"},
    "metadata": "string",
}

TOKENS: Final[dict[str, Any]] = {
    "id": "string",
    "run": "string",
    "index": "int64",
    "sample": "int64",
    "turn": "int64",
    "verdict": "string",
    "truncated": "bool",
    "input_ids": ["int32"],
    "loss_mask": ["int8"],
}

CONVERSATION: Final[dict[str, Any]] = {
    "id": "string",
    "conversations": [{"role": "string", "content": "string", "reasoning_content": "string"}],
}
"""A plain conversation; with tools or names in play, the columns are left for `datasets` to find out."""


def features(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns as a data set card declares them, so that `datasets` need not guess from the first rows."""
    return [{"name": name, **_feature(kind)} for name, kind in fields.items()]


def _feature(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        return {"list": features(kind[0]) if isinstance(kind[0], dict) else kind[0]}
    return {"struct": features(kind)} if isinstance(kind, dict) else {"dtype": kind}
