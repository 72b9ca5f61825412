"""What an export is asked for, and how its flags are read. Pure."""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import accumulate
from typing import Final

import msgspec

from common.errors import UsageError
from common.records import Verdict

SPLIT_NAMES: Final = ("train", "validation", "test")
DEFAULT_SHARD: Final = 10_000


class Format(StrEnum):
    """The shapes that an export can have."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    SHAREGPT = "sharegpt"
    OPENAI_BATCH = "openai-batch"

    @property
    def suffix(self) -> str:
        """The end of a shard's name, which `datasets` tells the format by."""
        return "parquet" if self is Format.PARQUET else "jsonl"


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every choice that changes what an export holds; two exports with equal ones have equal bytes.

    The order of `verdicts` is their rank when several records answer the same prompt. `shard_size` counts
    records, 0 puts a split into one file. `max_length` counts tokens, and matters with `tokenize` alone.
    """

    format: Format
    verdicts: tuple[Verdict, ...] = (Verdict.OK,)
    split: tuple[float, ...] = (1.0,)
    shuffle: int | None = None
    shard_size: int = DEFAULT_SHARD
    tokenize: str | None = None
    max_length: int | None = None
    allow_gaps: bool = False
    allow_short: bool = False

    @property
    def split_names(self) -> tuple[str, ...]:
        """The names of the splits, in the order of their shares."""
        return SPLIT_NAMES[: len(self.split)]


def check_options(options: ExportOptions) -> ExportOptions:
    """Return `options` if they can be carried out together.

    Raises:
        UsageError: they cannot.
    """
    if options.shard_size < 0:
        raise UsageError("--shard-size counts records: give 0 (one file per split) or more")
    if options.tokenize is None:
        if options.max_length is not None:
            raise UsageError("--max-length cuts token sequences: it needs --tokenize")
    elif options.format not in {Format.JSONL, Format.PARQUET}:
        raise UsageError(
            f"--tokenize makes rows of token ids: give --format jsonl or parquet, not {options.format}"
        )
    if options.max_length is not None and options.max_length < 1:
        raise UsageError("--max-length must be at least 1 token")
    return options


def parse_verdicts(text: str) -> tuple[Verdict, ...]:
    """Read `ok,truncated` or `all`.

    Raises:
        UsageError: a name is not a verdict, or comes twice.
    """
    if text.strip() == "all":
        return tuple(Verdict)
    names = [name.strip() for name in text.split(",")]
    known = ", ".join(Verdict)
    try:
        verdicts = tuple(Verdict(name) for name in names)
    except ValueError:
        wrong = next(name for name in names if name not in set(Verdict))
        raise UsageError(f"--verdict: {wrong!r} is not a verdict; there are {known}, or all") from None
    if len(set(verdicts)) < len(verdicts):
        raise UsageError("--verdict: a verdict is named twice")
    return verdicts


def parse_split(text: str) -> tuple[float, ...]:
    """Read `0.99/0.01` (train/validation) or `0.98/0.01/0.01` (train/validation/test).

    Raises:
        UsageError: the shares are not one to three positive numbers that add up to 1.
    """
    try:
        shares = tuple(float(share) for share in text.split("/"))
    except ValueError:
        shares = ()
    usable = 1 <= len(shares) <= len(SPLIT_NAMES) and all(0 < share <= 1 for share in shares)
    if not usable or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise UsageError(
            f"--split {text}: give one to three shares (train/validation/test) that add up to 1, "
            "such as 0.99/0.01"
        )
    return shares


def cuts_of(split: tuple[float, ...]) -> tuple[int, ...]:
    """The points between splits on a scale of 64 bits."""
    return tuple(int(share * 2**64) for share in accumulate(split[:-1]))
