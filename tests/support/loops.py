"""Texts that end in a loop, as models do: after honest prose, of any period, exact, drifting or shuffled."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PERIODS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 400)


def stock(random: Random) -> list[str]:
    """Made-up words."""
    return ["".join(random.choices(LETTERS, k=random.randint(2, 9))) for _ in range(3_000)]


def unit(random: Random, words: list[str], count: int) -> str:
    """Sentences of `count` words, about as many tokens."""
    pieces: list[str] = []
    while count > 0:
        length = min(count, random.randint(5, 18))
        pieces.append(" ".join(random.choices(words, k=length)).capitalize() + ". ")
        count -= length
    return "".join(pieces)


def chinese(random: Random, count: int) -> str:
    """A sentence of `count` Chinese characters."""
    return "".join(chr(random.randint(0x4E00, 0x8FFF)) for _ in range(count)) + "。"


def loops(seed: int) -> Iterator[tuple[str, str]]:
    """(kind, text) for every kind of loop; each text was cut off, after 500 to 2,500 words of prose."""
    random = Random(seed)
    words = stock(random)
    before = unit(random, words, random.randint(500, 2_500))
    for period in PERIODS:
        body = unit(random, words, period)
        repeats = max(5, 300 // period + 1)
        cut = random.randint(0, len(body) - 1)
        yield f"period of {period} words", before + (body * repeats)[: len(body) * repeats - cut]
    body = unit(random, words, 12)
    first = random.randint(1, 90)
    yield "counter", before + "".join(f"Step {n}: {body}" for n in range(first, first + 60))
    yield "two counters", before + "".join(f"{n}. {body}({n - 1} of 99) " for n in range(1, 50))
    few = [unit(random, words, random.randint(8, 14)) for _ in range(8)]
    yield "shuffled sentences", before + "".join(random.choice(few) for _ in range(120))
    yield (
        "now and then a new word",
        before
        + "".join(random.choice(words) + " " + body if random.random() < 0.2 else body for _ in range(60)),
    )
    yield (
        "reworded opening",
        before
        + "".join(
            f"Wait, {random.choice(words)} {random.choice(words)}. {unit_of_50}"
            for unit_of_50 in [unit(random, words, 50)] * 12
        ),
    )
    yield "one character", before + random.choice("!a. \n-0") * 1_000
    yield "one Chinese character", before + "好" * 300
    yield "Chinese sentence", before + chinese(random, 20) * 20
    few = [chinese(random, 14) for _ in range(6)]
    yield "shuffled Chinese", before + "".join(random.choice(few) for _ in range(150))
    said = chinese(random, 20)
    yield "Chinese counter", before + "".join(f"第{n}步:{said}" for n in range(1, 60))  # Chinese
    yield "closing words", before + unit(random, words, 15) * 30 + "So the answer is 4, and that is all."
