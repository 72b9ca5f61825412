"""Finding loops: a text that, towards its end, says the same thing over and over.

Three kinds are looked for, in this order:

- `exact`: one unit, from a single character to whole pages, again and again;
- `counter`: the same, but for numbers that count up or down evenly (`Step 41: check again. Step 42: ...`);
- `cycle`: a handful of sentences or lines in changing order.

Ordinary text repeats itself too: tables, code, lists, refrains. What tells it apart is news. A table's rows
carry other words or numbers that do not merely count; a loop carries none. The bars are lower for a text that
was cut off than for one that the model ended by itself, because a model in a loop seldom finds its way out.

All work is on UTF-8 bytes, since byte searches run in C and bytes per token vary little between scripts. The
time is linear in the text, and an ordinary text costs only a few byte searches.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Final, Literal

import msgspec

LoopKind = Literal["exact", "counter", "cycle"]

_ANCHOR: Final = 32
_LONGEST_ANCHOR: Final = 512
_CLIMBS: Final = 5
_LONG_UNIT: Final = 256
_DIGITS: Final = b"0123456789"
_ASCII: Final = bytes(range(0x80))
_NUMBER: Final = re.compile(rb"[0-9]+")
_WORD: Final = re.compile(rb"[A-Za-z]{2,}")
_COUNTER_WINDOW: Final = 16_384
_COUNTER_WORDS: Final = 5
_COUNTER_WIDE_BYTES: Final = 30
_LONGEST_NUMBER: Final = 18
_CYCLE_WINDOWS: Final = (3_072, 6_144, 24_576)
_CYCLE_LEAST_COUNT: Final = 4
_SENTENCE_BYTES: Final = 20
_SENTENCE_WORDS: Final = 3
_ROUGH_STOPS: Final = bytes.maketrans(b".?!", b"\n\n\n")
_WIDE_STOPS: Final = tuple(stop.encode() for stop in "。！？")  # noqa: RUF001  # Chinese and Japanese stops


class Loop(msgspec.Struct, frozen=True):
    """A loop that was found. Sizes are in bytes of UTF-8; a cycle's period is that of all its sentences."""

    kind: LoopKind
    period: int
    length: int

    @property
    def repeats(self) -> float:
        """How many times the unit stands there."""
        return self.length / self.period


class _Bar(msgspec.Struct, frozen=True):
    """How much of a loop it takes to be called one."""

    length: int
    repeats: int
    repeats_of_long: int
    counter_length: int
    counter_repeats: int
    cycle_length: int
    cycle_share: float


_CUT: Final = _Bar(
    length=600,
    repeats=5,
    repeats_of_long=3,
    counter_length=2_000,
    counter_repeats=8,
    cycle_length=3_000,
    cycle_share=0.5,
)
_FINISHED: Final = _Bar(
    length=1_600,
    repeats=10,
    repeats_of_long=6,
    counter_length=4_000,
    counter_repeats=20,
    cycle_length=5_000,
    cycle_share=0.75,
)


class _Run(msgspec.Struct, frozen=True):
    """A stretch in which every byte equals the one a period earlier."""

    start: int
    stop: int
    period: int

    @property
    def length(self) -> int:
        return self.stop - self.start


def find_loop(text: str, *, cut: bool) -> Loop | None:
    """Return the loop that `text` ends in, or `None`.

    A few closing words after the loop, up to a tenth of the text, do not hide it.

    Args:
        text: a thinking trace or an answer.
        cut: whether the text was cut off rather than ended by the model; a loop is then believed sooner.
    """
    bar = _CUT if cut else _FINISHED
    if len(text) * 4 < bar.length:
        return None
    data = text.encode("utf-8", "surrogatepass")
    if len(data) < bar.length:
        return None
    return _exact(data, bar) or _counter(data, bar) or _cycle(data, bar, wide=not text.isascii())


def _exact(data: bytes, bar: _Bar) -> Loop | None:
    run = _run_near_end(data, bar.length, bar.repeats, bar.repeats_of_long)
    return Loop("exact", run.period, run.length) if run else None


def _run_near_end(data: bytes, length: int, repeats: int, repeats_of_long: int) -> _Run | None:
    """Look for a long enough periodic stretch at the end and at a few places just before it."""
    size = len(data)
    slack = max(400, size // 10)
    if not _may_repeat(data, size - slack, length):
        return None
    for back in sorted({0, 100, 400, slack // 2, slack}):
        end = size - back
        if end < length:
            break
        run = _climb(data, end, length, repeats, repeats_of_long)
        if run is not None and run.stop >= size - slack:
            return run
    return None


def _may_repeat(data: bytes, at: int, length: int) -> bool:
    """Whether a stretch of `length` bytes that repeats three times or more can reach up to `at` or beyond.

    It would hold one of the few words looked for here, and hold it twice; an ordinary text has each but once.
    """
    for stop in range(max(at, _ANCHOR), len(data) + 1, length - _ANCHOR):
        start = stop - _ANCHOR
        word = data[start:stop]
        if data.find(word) < start or data.find(word, start + 1) >= 0:
            return True
    return False


def _climb(data: bytes, end: int, length: int, repeats: int, repeats_of_long: int) -> _Run | None:
    """Find the period around `end` from short to long.

    The last bytes before `end` are searched for further up; the distance is a period. Where its stretch is
    too short, it may be a small repetition inside a larger unit (`ha ha ha. What? ha ha ha. What?`): the
    place where it begins is then what recurs, and is searched for in turn.
    """
    at, width = end - _ANCHOR, _ANCHOR
    for _ in range(_CLIMBS):
        before = data.rfind(data[at : at + width], 0, at + width - 1)
        if before < 0:
            return None
        run = _extend(data, before, at, width)
        least = repeats_of_long if run.period >= _LONG_UNIT else repeats
        if run.length >= length and run.length >= least * run.period:
            return run
        if run.start == 0:
            return None
        at = run.start - 1
        width = min(max(_ANCHOR, run.period + 2), _LONGEST_ANCHOR, end - at)
    return None


def _extend(data: bytes, before: int, at: int, width: int) -> _Run:
    """Widen two equal stretches of `width` bytes, at `before` and `at`, as far as they stay equal."""
    left = 0
    step = 64
    while step:
        low = before - left - step
        if low >= 0 and data[low : before - left] == data[at - left - step : at - left]:
            left += step
            step *= 2
        else:
            step //= 2
    size = len(data)
    first, second = before + width, at + width
    right = 0
    step = 64
    while step:
        high = second + right + step
        if high <= size and data[first + right : first + right + step] == data[second + right : high]:
            right += step
            step *= 2
        else:
            step //= 2
    return _Run(before - left, second + right, at - before)


def _counter(data: bytes, bar: _Bar) -> Loop | None:
    """Find a unit that repeats but for numbers, when those do nothing but count."""
    tail = data[-_COUNTER_WINDOW:]
    if len(tail) < bar.counter_length:
        return None
    plain = tail.translate(None, _DIGITS)
    # A place that counts has a number in all rows of the unit but one.
    if len(tail) - len(plain) < bar.counter_repeats - 1 or len(plain) < bar.counter_length:
        return None
    run = _run_near_end(plain, bar.counter_length, bar.counter_repeats, bar.counter_repeats)
    if run is None or not _says_something(plain[run.stop - 2 * run.period : run.stop]):
        return None
    return Loop("counter", run.period, run.length) if _only_counts(tail, run) else None


def _says_something(twice: bytes) -> bool:
    """Whether a unit, given twice, is a sentence rather than a row of figures or a line of a times table."""
    # The first and the last word may be halves: a period begins anywhere.
    if len(set(_WORD.findall(twice)[1:-1])) >= _COUNTER_WORDS:
        return True
    return len(twice.translate(None, _ASCII)) >= 2 * _COUNTER_WIDE_BYTES


def _only_counts(tail: bytes, run: _Run) -> bool:
    """Whether the numbers in each place of the unit go up or down by a fixed step, some by more than 0.

    `run` is in offsets of the text without digits, so a number's place in the unit is its offset there,
    modulo the period.
    """
    columns: dict[int, list[tuple[int, bytes]]] = {}
    digits = 0
    for match in _NUMBER.finditer(tail):
        offset = match.start() - digits - run.start
        digits += match.end() - match.start()
        # The numbers at both borders may be cut, or belong to what comes before and after.
        if 0 < offset < run.length:
            row, place = divmod(offset, run.period)
            columns.setdefault(place, []).append((row, match.group()))
    rows = run.length // run.period
    steps = [_step(column, rows) for column in columns.values()]
    return None not in steps and any(steps)


def _step(column: list[tuple[int, bytes]], rows: int) -> int | None:
    """The fixed step of one column of numbers, or `None` where it has gaps or does not merely count."""
    if len(column) < rows - 1 or column[-1][0] - column[0][0] != len(column) - 1:
        return None
    values = [value for _, value in column]
    if all(value == values[0] for value in values):
        return 0
    if any(len(value) > _LONGEST_NUMBER for value in values):
        return None
    numbers = [int(value) for value in values]
    step = numbers[1] - numbers[0]
    return step if all(b - a == step for a, b in pairwise(numbers)) else None


def _cycle(data: bytes, bar: _Bar, *, wide: bool) -> Loop | None:
    """Find a few sentences that keep coming back in any order."""
    for window in _CYCLE_WINDOWS:
        tail = data[-window:]
        if len(tail) < bar.cycle_length:
            return None
        loop = _cycle_in(tail, bar, wide=wide)
        if loop is not None:
            return loop
        if len(data) * 4 <= window * 5:
            return None
    return None


def _cycle_in(tail: bytes, bar: _Bar, *, wide: bool) -> Loop | None:
    if wide:
        for stop in _WIDE_STOPS:
            if stop in tail:
                tail = tail.replace(stop, b"\n")
    # A rough cut first, cheap enough for every text: most lines and sentences of an ordinary one are new.
    rough = tail.translate(_ROUGH_STOPS).split(b"\n")
    if len(set(rough)) * 2 > len(rough):
        return None
    chunks = tail.replace(b". ", b"\n").replace(b"? ", b"\n").split(b"\n")
    counts = Counter(chunk.strip() for chunk in chunks)
    known = {
        chunk: count
        for chunk, count in counts.items()
        if count >= _CYCLE_LEAST_COUNT and len(chunk) >= _SENTENCE_BYTES and _is_sentence(chunk)
    }
    covered = sum(len(chunk) * count for chunk, count in known.items())
    if covered < bar.cycle_share * len(tail):
        return None
    return Loop("cycle", sum(len(chunk) for chunk in known), covered)


def _is_sentence(chunk: bytes) -> bool:
    """Whether a line is language: several words, or a script without spaces, mostly letters."""
    text = chunk.decode("utf-8", "ignore")
    if text.isascii() and text.count(" ") < _SENTENCE_WORDS - 1:
        return False
    return sum(char.isalpha() or char.isspace() for char in text) * 5 >= len(text) * 4
