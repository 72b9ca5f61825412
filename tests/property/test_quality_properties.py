"""What holds of the quality gate for any text."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.loops import loops
from support.ordinary_texts import generated, library_sources

from common.records import Response, Speculation, Usage, Verdict
from common.settings import QualitySettings
from consumers.quality import apply, check, judge, repetition
from consumers.quality.boilerplate import fingerprint
from consumers.quality.guard import PauseServer
from consumers.quality.repetition import find_loop

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)
PIECES = st.lists(
    st.sampled_from(["</think>", "<think>", "`", "```", "\n", '"', "\ufffd", "\x00", " a ", "12", "."]),
    max_size=40,
).map("".join)
TEXTS = st.none() | ANY_TEXT | PIECES | st.builds(lambda text, n: text * n, ANY_TEXT, st.integers(2, 60))
COUNTS = st.dictionaries(st.sampled_from([*Verdict, "new"]), st.integers(0, 300))


OPTIONS = st.fixed_dictionaries(
    {
        "thinking": st.booleans(),
        "max_tokens": st.none() | st.integers(1, 9_999),
        "repeats": st.integers(0, 600),
        "matched_stop": st.none() | st.integers() | st.text(max_size=20),
        "speculation": st.none()
        | st.builds(Speculation, accept_length=st.none() | st.floats(), accept_rate=st.none() | st.floats()),
        "accept_max": st.none() | st.floats(),
    }
)


@given(
    response=st.builds(Response, content=TEXTS, reasoning_content=TEXTS),
    finish=st.sampled_from(["stop", "length", "abort", "tool_calls", "repetition", "", "other"]),
    usage=st.builds(Usage, completion_tokens=st.none() | st.integers(0, 9_999)),
    options=OPTIONS,
)
def test_any_completion_gets_one_verdict_always_the_same(response, finish, usage, options):
    judged = judge(response, finish, usage, **options)

    assert judged.verdict in Verdict
    assert judged == judge(response, finish, usage, **options)
    assert fingerprint(response) == fingerprint(response)


@given(before=st.text(max_size=200), unit=st.text(min_size=1, max_size=120))
def test_a_loop_of_any_unit_is_found(before, unit):
    repeats = 2_000 // len(unit.encode()) + 12
    text = before + unit * repeats

    assert find_loop(text, cut=True) is not None
    assert find_loop(text, cut=False) is not None


@given(st.integers(), st.integers(300, 3_000))
def test_words_that_never_come_twice_are_no_loop(seed, count):
    random = Random(seed)
    words = {"".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(count)}

    assert find_loop(" ".join(words), cut=True) is None
    assert find_loop("\n".join(words), cut=True) is None


@given(verdict=st.sampled_from(Verdict), tries=st.integers(1, 20), retries=st.integers(0, 10))
def test_no_verdict_is_retried_for_ever(verdict, tries, retries):
    settings = QualitySettings(retries=retries)
    assume(tries > retries)

    assert type(apply(verdict, tries, settings)).__name__ in {"Keep", "Reject"}


@given(by_server=st.dictionaries(st.sampled_from("abcdefg"), COUNTS, max_size=7))
def test_the_guard_answers_any_window_and_blames_only_servers_it_was_told_of(by_server):
    window = {}
    for counts in by_server.values():
        for verdict, number in counts.items():
            window[verdict] = window.get(verdict, 0) + number
    found = check(window, by_server, QualitySettings())

    if found is not None:
        assert 0 < found.share <= 1
        assert found.sentence.endswith(".")
    if isinstance(found, PauseServer):
        assert found.server in by_server


REPEATED = st.builds(
    lambda before, unit, repeats, after: before + unit * repeats + after,
    st.text(max_size=400),
    st.text(min_size=1, max_size=400),
    st.integers(1, 40),
    st.text(max_size=600),
)


@given(text=REPEATED, spoilt=st.none() | st.integers(0, 16_000), cut=st.booleans())
def test_the_quick_look_for_loops_misses_none_that_the_search_finds(text, spoilt, cut):
    if spoilt is not None:
        text = f"{text[:spoilt]}#{text[spoilt:]}"

    assert_as_without_quick_look(text, cut=cut)


@pytest.mark.parametrize("seed", range(3))
def test_the_quick_look_changes_nothing_for_real_texts_and_loops(seed):
    texts = [
        *generated(seed),
        *loops(seed),
        *(("source", text) for text in library_sources(40, Random(seed))),
    ]
    for _, text in texts:
        for cut in (False, True):
            assert_as_without_quick_look(text, cut=cut)


def assert_as_without_quick_look(text: str, *, cut: bool) -> None:
    quick = find_loop(text, cut=cut)
    with patch.object(repetition, "_may_repeat", return_value=True):
        assert quick == find_loop(text, cut=cut)
