"""A run's output, as the tools of `ops` read it; the reading itself is `common.parts`."""

from __future__ import annotations

from common.parts import (
    DEAD_LETTERS,
    MANIFEST,
    PROGRESS,
    OutputError,
    decode_line,
    decode_record,
    iter_blocks,
    iter_dead_letters,
    iter_part_records,
    iter_parts,
    part_name,
    read_manifest,
    read_part,
)

__all__ = [
    "DEAD_LETTERS",
    "MANIFEST",
    "PROGRESS",
    "OutputError",
    "decode_line",
    "decode_record",
    "iter_blocks",
    "iter_dead_letters",
    "iter_part_records",
    "iter_parts",
    "part_name",
    "read_manifest",
    "read_part",
]
