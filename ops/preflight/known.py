"""What is known against versions of SGLang, from its public issues and from reading its releases."""

from __future__ import annotations

from typing import Final

import msgspec

from consumers.client.info import Dialect, ServerInfo, version_tuple

TESTED: Final = ((0, 5, 11), (0, 5, 23))
"""The oldest and newest SGLang whose behaviour was looked into."""


class Known(msgspec.Struct, frozen=True):
    """A fault of the versions from `first` to `last`, both included.

    `drafts`: it needs speculative decoding; `family`: it was seen with models of such a name.
    """

    first: tuple[int, int, int]
    last: tuple[int, int, int]
    words: str
    remedy: str
    drafts: bool = False
    family: str = ""


_FAULTS: Final = (
    Known(
        (0, 5, 13),
        (0, 5, 15),
        "its scheduler crashes on some requests when Qwen3.5/3.6 decode speculatively "
        "(sglang issues 28312, 28431, 28484, 31249)",
        "use 0.5.16 or newer, or leave speculative decoding off",
        drafts=True,
    ),
    Known(
        (0, 5, 0),
        (0, 5, 13),
        "Qwen3.6-35B with multi-token prediction crashes after hours (sglang issue 29516)",
        "use 0.5.16 or newer",
        drafts=True,
        family="35b",
    ),
    Known(
        (0, 5, 16),
        (0, 5, 16),
        "illegal memory access near the context limit when decoding speculatively (sglang issue 34239)",
        "keep prompt and answer some hundred tokens clear of the context, or use a newer version",
        drafts=True,
    ),
    Known(
        (0, 0, 0),
        (0, 5, 12),
        "it strips answers and deletes every literal <think> in them, so texts are not exact",
        "use 0.5.13 or newer for data that must be exact",
    ),
    Known(
        (0, 5, 11),
        (0, 5, 12),
        "a request that is aborted while it waits is never forgotten, so the server does not end on SIGTERM",
        "keep --concurrency near what it runs, so that nothing waits",
    ),
)


def known_faults(info: ServerInfo) -> list[Known]:
    """What is known against this server's version, as it is set up."""
    version = version_tuple(info.version)
    if info.dialect is not Dialect.SGLANG or not version:
        return []
    return [
        fault
        for fault in _FAULTS
        if fault.first <= version <= fault.last
        and (not fault.drafts or info.speculative_algorithm)
        and fault.family in (info.model or "").lower()
    ]


def is_tested(info: ServerInfo) -> bool:
    """Whether this version's behaviour was looked into; true for engines other than SGLang."""
    version = version_tuple(info.version)
    return info.dialect is not Dialect.SGLANG or TESTED[0] <= version <= TESTED[1]
