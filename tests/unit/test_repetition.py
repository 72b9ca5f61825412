"""The loop detector: finds loops of every kind, leaves ordinary texts alone, costs little."""

from __future__ import annotations

from random import Random

import pytest
from support.loops import loops
from support.ordinary_texts import generated, library_docstrings, library_sources, prose

from consumers.quality.repetition import Loop, find_loop


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_loop_is_found(seed):
    missed = [kind for kind, text in loops(seed) if find_loop(text, cut=True) is None]

    assert missed == []


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_texts_are_left_alone_whole_or_cut_anywhere(seed):
    random = Random(seed)
    wrong = []
    for kind, text in generated(seed):
        part = text[: random.randint(len(text) // 3, len(text))]
        wrong += [(kind, found) for found in (find_loop(text, cut=False), find_loop(part, cut=True)) if found]

    assert wrong == []


def test_the_standard_library_is_left_alone():
    texts = [*library_docstrings(), *library_sources(300, Random(11))]
    finished = [found for text in texts if (found := find_loop(text, cut=False))]
    cut = [found for text in texts if (found := find_loop(text, cut=True))]

    assert finished == []
    assert len(cut) <= len(texts) // 300  # test data in it may itself loop


def test_the_unit_and_its_repeats_are_measured():
    found = find_loop("Some words before. " + "And again. " * 100, cut=True)

    assert found == Loop("exact", period=11, length=found.length)
    assert found.repeats == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("text", "cut", "kind"),
    [
        ("ha " * 200, True, "exact"),
        ("ha " * 199, True, None),  # 597 bytes: one short of the bar
        ("ha " * 200, False, None),  # a model that stops by itself may laugh for so long
        ("ha " * 600, False, "exact"),
        ("x" * 255 + "y" + "z" * 44, True, None),
        (("x" * 255 + "y" + "z" * 44) * 3, True, "exact"),
        (("b" + "a" * 500) * 4, True, "exact"),
        ("=" * 80 + "\n" + "word " * 10, True, None),
        ("", True, None),
    ],
)
def test_bars(text, cut, kind):
    found = find_loop(text, cut=cut)

    assert (found and found.kind) == kind


def test_a_unit_that_repeats_inside_itself_is_found_by_its_own_period():
    unit = "ha " * 30 + "What? " + "ho " * 30 + "No, nothing at all. "
    found = find_loop(unit * 12, cut=False)

    assert found is not None
    assert found.period == len(unit)


@pytest.mark.parametrize(
    ("line", "is_loop"),
    [
        (lambda n: f"Step {n}: I should check the result once more, carefully. ", True),
        (lambda n: f"Only {500 - n} of the 500 boxes are still to be checked by hand.\n", True),
        (lambda n: f"Step {n}: I should add {n * n} to the result once more, carefully. ", False),
        (lambda n: f"Step {n}: the dice that I have thrown shows {(n * 7919) % 13 % 6}. ", False),
        (lambda n: f"{n}, ", False),
        (lambda n: f"7 x {n} = {7 * n}\n", False),
        (lambda n: f"Zeile {n}: {10**30 + n} steht in der langen Tabelle hier.\n", False),
    ],
)
def test_a_counter_is_a_loop_only_when_nothing_else_is_new(line, is_loop):
    found = find_loop("".join(line(n) for n in range(100)), cut=True)

    assert (found is not None) is is_loop
    assert found is None or found.kind == "counter"


def test_a_cycle_of_sentences_is_found_but_not_a_refrain():
    random = Random(3)
    few = [prose(random, 300).split(". ")[0] + ". " for _ in range(6)]
    cycle = "".join(random.choice(few) for _ in range(120))
    song = "".join(prose(random, 150) + "\n    And home, boys, home, said the lantern.\n" for _ in range(40))

    found = find_loop(prose(random, 2_000) + cycle, cut=True)

    assert found is not None
    assert found.kind == "cycle"
    assert find_loop(song, cut=True) is None


def test_a_loop_that_ended_long_before_the_end_is_not_reported():
    random = Random(4)

    assert find_loop("And again. " * 100 + prose(random, 4_000), cut=True) is None
    assert find_loop("And again. " * 100 + prose(random, 100), cut=True) is not None
