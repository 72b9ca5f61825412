"""How a launch flag is spelled, by SGLang's version: a version refuses every name it does not know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Version(NamedTuple):
    """A release of SGLang; suffixes such as `.post1` or `rc2` change no flag and are dropped."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        """The version as people write it."""
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST: Final = Version(0, 5, 11)
"""The oldest version whose flags are known here."""


class Renamed(msgspec.Struct, frozen=True):
    """A flag with an old and a new name.

    Versions from `since` know the new name; versions from `gone` refuse the old one.
    """

    old: str
    new: str
    since: Version
    gone: Version

    def at(self, version: Version) -> str:
        """The name to use for `version`: the new one as soon as there is one."""
        return self.new if version >= self.since else self.old


STATE_STRATEGY: Final = Renamed(
    old="--mamba-scheduler-strategy",
    new="--mamba-radix-cache-strategy",
    since=Version(0, 5, 14),
    gone=Version(0, 5, 19),
)
GRAPH_BATCH: Final = Renamed(
    old="--cuda-graph-max-bs",
    new="--cuda-graph-max-bs-decode",
    since=Version(0, 5, 14),
    gone=Version(0, 5, 19),
)
RENAMED: Final = (STATE_STRATEGY, GRAPH_BATCH)

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[.+a-z-].*)?", re.IGNORECASE)


def parse_version(text: str) -> Version:
    """Read a version such as `0.5.14`, `v0.5.14` or `0.5.14.post1`.

    Raises:
        UsageError: it is no version, or one older than any whose flags are known.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no SGLang version: give it as in --sglang-version 0.5.14")
    version = Version(*(int(number) for number in found.groups()))
    if version < OLDEST:
        raise UsageError(
            f"SGLang {version} is older than {OLDEST}, the oldest whose flags are known: update it"
        )
    return version


def check_flags(arguments: Sequence[str], version: Version) -> None:
    """Refuse arguments that `version` would not start with.

    Raises:
        UsageError: a flag bears a name that this version does not know; the message has the right one.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]
        for renamed in RENAMED:
            if flag == renamed.old and version >= renamed.gone:
                raise UsageError(f"SGLang {version} refuses {flag}: it is called {renamed.new} now")
            if flag == renamed.new and version < renamed.since:
                raise UsageError(
                    f"SGLang {version} does not know {flag} yet: it is called {renamed.old} there"
                )
