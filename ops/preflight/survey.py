"""A quick look over the input: a sample of its prompts, its longest lines, and how many there are.

Within its time the whole file is passed over, without parsing more than a sample. What is left unread of a
plain file is sampled by seeking.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from common.jobs import MAX_LINE_BYTES
from common.records import Message
from common.settings import Regenerate
from consumers.client.turns import turns_to_generate
from producer.chunks import InputFile
from producer.lines import RawLine, split_lines
from producer.parse import InvalidLine, Prompt, parse_line
from producer.source import Source

T = TypeVar("T")

HEAD: Final = 200
"""The first lines, all of which are parsed."""

KEPT: Final = 512
"""At most so many more lines, evenly spread, are parsed."""

LONGEST: Final = 3
SHOWN_INVALID: Final = 5

_LARGEST_KEPT: Final = 1 << 20
_PLACES: Final = 32
_LINES_AT_A_PLACE: Final = 8
_BLOCK: Final = 1 << 16
_LOOK_EVERY: Final = 1 << 20
"""How many bytes pass between two looks at the clock."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What a look over the input found.

    `lines` counts those that are not blank: all of them where `exact`, else by the bytes that were read.
    `sample` is spread evenly over the input; `longest` are the longest prompts of what was read.
    """

    name: str
    lines: int
    exact: bool
    sample: list[Prompt]
    longest: list[Prompt]
    invalid: list[str] = []
    invalid_total: int = 0
    parsed: int = 0

    @property
    def mean_bytes(self) -> float:
        """UTF-8 bytes of text in a prompt, on average."""
        return sum(prompt_bytes(p.messages) for p in self.sample) / len(self.sample) if self.sample else 0.0


def prompt_bytes(messages: list[Message]) -> int:
    """The UTF-8 bytes of a conversation's text."""
    return sum(len(text.encode()) for message in messages for text in texts(message))


def texts(message: Message) -> list[str]:
    """The texts of a message, whichever way its content is put."""
    if isinstance(message.content, str):
        return [message.content]
    return [part["text"] for part in message.content or [] if part.get("type") == "text"]


def completions_each(sample: list[Prompt], regenerate: Regenerate) -> float:
    """How many turns are generated for a prompt, on average; those without one count 0."""
    if not sample:
        return 1.0
    return sum(len(turns_to_generate(p.messages, regenerate)) for p in sample) / len(sample)


def survey(source: Source, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> Survey:
    """Look over `source` for about that long.

    Raises:
        InputError: it cannot be read.
    """
    until = clock() + seconds
    sampler = _Sampler()
    with InputFile(source) as file:
        size, compressed = file.state.size, file.compressed
        whole, looked = True, 0
        for raw in split_lines(file.chunks(), max_line=MAX_LINE_BYTES):
            sampler.take(raw)
            if raw.end - looked > _LOOK_EVERY:
                looked = raw.end
                if clock() > until:
                    whole = False
                    break
        done = max(1, file.done)
    lines = sampler.lines if whole else round(sampler.lines * size / done)
    spread = sampler.kept
    if not whole and not compressed and done < size:
        far = _seek(source, done, size)
        spread = [*thinned(spread, len(far) * done // (size - done)), *far]
    return _parsed(source.name, sampler, spread, lines=lines, exact=whole)


def thinned(items: list[T], count: int) -> list[T]:
    """At most `count` of `items`, evenly spread, but one at least."""
    count = min(len(items), max(1, count))
    return [items[place * len(items) // count] for place in range(count)]


class _Sampler:
    """The first lines, lines evenly spread over all that passed, and the longest ones; in bounded memory."""

    def __init__(self) -> None:
        self.lines = 0
        self.head: list[RawLine] = []
        self.kept: list[RawLine] = []
        self.longest: list[tuple[int, int, RawLine]] = []
        self.too_long: list[str] = []
        self._stride = 1

    def take(self, raw: RawLine) -> None:
        self.lines += 1
        if raw.raw is None:
            if len(self.too_long) < SHOWN_INVALID:
                self.too_long.append(f"line {raw.number}: has more than {MAX_LINE_BYTES:,} bytes")
            return
        size = len(raw.raw)
        if len(self.longest) < LONGEST:
            heapq.heappush(self.longest, (size, -raw.number, raw))
        elif size > self.longest[0][0]:
            heapq.heapreplace(self.longest, (size, -raw.number, raw))
        if size > _LARGEST_KEPT:
            return
        if self.lines <= HEAD:
            self.head.append(raw)
        if self.lines % self._stride == 0:
            self.kept.append(raw)
            if len(self.kept) >= KEPT:
                self.kept = self.kept[1::2]
                self._stride *= 2


def _seek(source: Source, start: int, size: int) -> list[RawLine]:
    """Lines from places evenly spread over the rest of a plain file; their numbers are not known: 0."""
    found: list[RawLine] = []
    with Path(source.path).open("rb") as file:
        for place in range(_PLACES):
            file.seek(start + (size - start) * place // _PLACES)
            begun = file.tell()
            # What stands before the first newline, and after the last, is not whole.
            whole = file.read(_BLOCK).split(b"\n")[1:-1]
            found += [RawLine(0, begun, 0, line) for line in whole[:_LINES_AT_A_PLACE] if line.strip()]
    return found


def _parsed(name: str, sampler: _Sampler, spread: list[RawLine], *, lines: int, exact: bool) -> Survey:
    invalid: dict[tuple[int, int], str] = {}

    def parse(raws: list[RawLine]) -> list[Prompt]:
        prompts = []
        for raw in raws:
            item = parse_line(raw.raw or b"", line=raw.number, index=max(0, raw.number - 1))
            if isinstance(item, Prompt):
                prompts.append(item)
            else:
                invalid[raw.number, raw.offset] = _describe(item, raw)
        return prompts

    parse(sampler.head)
    return Survey(
        name=name,
        lines=lines,
        exact=exact,
        sample=parse(spread),
        longest=parse([raw for _, _, raw in sorted(sampler.longest, reverse=True)]),
        invalid=[*invalid.values(), *sampler.too_long][:SHOWN_INVALID],
        invalid_total=len(invalid) + len(sampler.too_long),
        parsed=len({(raw.number, raw.offset) for raw in (*sampler.head, *spread)}),
    )


def _describe(item: InvalidLine, raw: RawLine) -> str:
    return str(item) if raw.number else f"near byte {raw.offset:,}: {item.reason}"
