"""How often the loop detector is wrong, and what the gate costs: `python tests/bench/quality_rates.py`.

Prints, by kind of text, how many of them were called looping, then CPU time by size.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.loops import loops  # noqa: E402  # after the path is set
from support.ordinary_texts import generated, library_docstrings, library_sources, prose  # noqa: E402  # the same

from common.records import Response, Usage  # noqa: E402  # the same
from consumers.quality.repetition import find_loop  # noqa: E402  # the same
from consumers.quality.verdict import judge  # noqa: E402  # the same

SEEDS = 40


def false_positives() -> None:
    """Ordinary texts, whole as the model ended them, and cut at a random place."""
    seen: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for seed in range(SEEDS):
        random = Random(seed)
        texts = [*generated(seed), *(("library", text) for text in library_sources(150, random))]
        texts += [("docstrings", text) for text in library_docstrings()]
        for kind, text in texts:
            part = text[: random.randint(len(text) // 3, len(text))]
            for name, found in (
                (kind, find_loop(text, cut=False)),
                (f"{kind}, cut", find_loop(part, cut=True)),
            ):
                seen[name] += 1
                wrong[name] += found is not None
    for name, number in sorted(seen.items()):
        print(f"  {name:24} {wrong[name]:4} of {number:6}")
    print(f"  {'all':24} {wrong.total():4} of {seen.total():6} = {wrong.total() / seen.total():.4%}")


def true_positives() -> None:
    """Loops of every kind after 500 to 2,500 words of prose."""
    seen: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for seed in range(SEEDS):
        for kind, text in loops(seed):
            seen[kind] += 1
            found[kind] += find_loop(text, cut=True) is not None
    for kind, number in seen.items():
        print(f"  {kind:24} {found[kind]:4} of {number:6}")
    print(f"  {'all':24} {found.total():4} of {seen.total():6} = {found.total() / seen.total():.2%}")


def best(action: Callable[[], object], times: int) -> float:
    """The least CPU time of `times` calls, in microseconds."""
    least = float("inf")
    for _ in range(times):
        begun = time.process_time_ns()
        action()
        least = min(least, time.process_time_ns() - begun)
    return least / 1_000


def cost() -> None:
    """CPU time of `judge` by size, for a thinking trace of 70 % and an answer of 30 %."""
    random = Random(1)
    source = next(text for text in library_sources(400, random) if len(text) == 60_000) * 2
    usage = Usage(completion_tokens=1_800)
    for kilobytes in (1, 7, 16, 120):
        size = kilobytes * 1_000
        for name, text in (
            ("prose", prose(random, size)),
            ("prose, not ASCII", prose(random, size - 20) + " — “no”"),
            ("code", source[:size]),
            ("loop", ("And so I check it again. " * size)[:size]),
        ):
            response = Response(reasoning_content=text[: size * 7 // 10], content=text[size * 7 // 10 :])
            spent = best(lambda response=response: judge(response, "stop", usage, thinking=True), 200)
            print(f"  {kilobytes:4} KB {name:18} {spent:8.0f} us  {spent / kilobytes:6.1f} us/KB")


if __name__ == "__main__":
    print("Ordinary texts called looping:")
    false_positives()
    print("Loops found:")
    true_positives()
    print("CPU time of judge:")
    cost()
