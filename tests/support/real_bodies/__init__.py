"""What real engines answered, as bytes: a tiny Qwen3 on SGLang 0.5.23 and vLLM 0.32.0.

One file an engine, an answer a name; the paths in them are shortened, `server_info` and `metrics` are cut to
what is read. `docs/real-engines.md` says how they were had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

ENGINES = ("sglang-0.5.23", "vllm-0.32.0")


class RealAnswer(NamedTuple):
    """One answer: its status and its body."""

    status: int
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def real_answers(engine: str) -> dict[str, RealAnswer]:
    """An engine's answers by name."""
    found = json.loads((Path(__file__).parent / f"{engine}.json").read_bytes())
    return {name: RealAnswer(one["status"], one["body"].encode()) for name, one in found.items()}
