"""An input of only those prompts that an earlier run did not answer well: it repairs a set cheaply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

import msgspec

from common.errors import InputError
from common.log import get_logger
from common.missing import Missing
from producer.lines import read_lines
from producer.parse import Prompt, derived_id, parse_line
from producer.source import Source, open_source

log = get_logger("producer")


def missing_lines(source: Source, missing: Missing, *, max_line: int) -> Iterator[bytes]:
    """The lines of `source` whose prompt is in `missing`, each with its id written out.

    A line without an id is known by its place in its file, which it loses here.
    """
    for index, raw in enumerate(read_lines(source, max_line=max_line)):
        if raw.raw is None:
            continue
        prompt = parse_line(raw.raw, line=raw.number, index=index)
        if isinstance(prompt, Prompt) and prompt.id in missing:
            yield with_id(raw.raw, prompt, index) + b"\n"


def with_id(raw: bytes, prompt: Prompt, index: int) -> bytes:
    """The line with its derived id in it; as it is where it has one of its own."""
    if prompt.id != derived_id(index):
        return raw.strip()
    fields = _FIELDS.decode(raw)
    return msgspec.json.encode({**fields, "id": prompt.id})


_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Lines:
    """Lines as a stream, so that they are copied like standard input."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.count = 0

    def read(self, size: int) -> bytes:
        """About `size` bytes, whole lines; empty at the end."""
        block, have = [], 0
        for line in self._lines:
            block.append(line)
            have += len(line)
            self.count += 1
            if have >= size:
                break
        return b"".join(block)


def top_up(source: Source, missing: Missing, *, spool: Path, max_line: int) -> Source:
    """Write the prompts that are missing to a file in `spool` and return it as the input.

    The same earlier output gives the same file, so a run of it can be taken up again.

    Raises:
        InputError: nothing is missing, or the file cannot be written.
    """
    lines = _Lines(missing_lines(source, missing, max_line=max_line))
    made = open_source("-", spool=spool, stream=cast("BinaryIO", lines))
    if lines.count == 0:
        raise InputError(f"nothing of {source.name} is missing: the earlier run answered every prompt of it")
    log.info("top_up", missing=lines.count, answered=missing.answered)
    return Source(name=source.name, path=made.path)
