"""When a part is due, what its bytes are, and what progress says."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from common.records import Fingerprint
from common.settings import GenerationSettings, RunSettings
from common.store.runs import Counts, Seal, Waiting
from consumers.collector.decide import (
    MAX_PART_BYTES,
    Sample,
    next_part,
    next_seal,
    part_bytes,
    part_due,
    progress_of,
    rates,
    run_over,
)


def waiting(count, oldest_s=0.0, seal=""):
    return Waiting(count, oldest_s, "7-0", 0, seal)


OPEN = Counts(accepted=100, completed=10, dead=0, queued=80, in_flight=10, stored=0)
SETTLED = Counts(accepted=10, completed=9, dead=1, queued=0, in_flight=0, stored=9)


@pytest.mark.parametrize(
    ("pending", "counts", "ended", "due"),
    [
        (waiting(0, None), SETTLED, True, False),
        (waiting(49, 1.0), OPEN, True, False),
        (waiting(50, 1.0), OPEN, False, True),
        (waiting(1, 300.0), OPEN, False, True),
        (waiting(1, 299.9), OPEN, False, False),
        (waiting(1, 0.0), SETTLED, True, True),
        # Nothing is queued for the moment, but the producer has not come to the end of its input.
        (waiting(1, 0.0), SETTLED, False, False),
        (waiting(1, 0.0), msgspec.structs.replace(SETTLED, in_flight=1), True, False),
        (waiting(1, 0.0), msgspec.structs.replace(SETTLED, queued=1), True, False),
    ],
)
def test_a_part_is_due_when_it_is_full_or_old_or_the_last(pending, counts, ended, due):
    assert part_due(pending, counts, ended=ended, batch_size=50, flush_s=300.0) is due


def under(seal, sizes):
    """How many records each part holds that is made of lines of these sizes."""
    found = [(f"{n}-0", b"x" * size) for n, size in enumerate(sizes)]
    counts = []
    while made := next_part(found[: seal.records], seal, len(counts)):
        part, lines = made
        assert (part.number, part.records, part.size) == (len(counts), len(lines), sum(map(len, lines)))
        assert (part.first, part.last) == (found[0][0], found[len(lines) - 1][0])
        assert lines == [line for _, line in found[: len(lines)]]
        counts.append(part.records)
        found = found[part.records :]
    return counts


@pytest.mark.parametrize(
    ("sizes", "full", "rest"),
    [
        ([], [], []),
        ([1] * 2, [], [2]),
        ([1] * 3, [3], [3]),
        ([1] * 7, [3, 3], [3, 3, 1]),
        ([6, 4, 1, 1], [2], [2, 2]),
        ([6, 5, 11, 99, 1, 1, 1], [1, 1, 1, 1, 3], [1, 1, 1, 1, 3]),
        ([11], [], [1]),
        ([11, 1], [1], [1, 1]),
    ],
)
def test_parts_are_cut_by_number_and_bytes_and_are_never_empty(sizes, full, rest):
    assert under(Seal("9-9", 3, 10, rest=False), sizes) == full
    assert under(Seal("9-9", 3, 10, rest=True), sizes) == rest


@given(st.lists(st.integers(1, 12), max_size=40), st.integers(0, 40), st.booleans())
def test_a_seal_that_reaches_further_changes_no_part_before(sizes, at, rest):
    before = under(Seal("9-9", 4, 20, rest=False), sizes[:at])
    assert under(Seal("9-9", 4, 20, rest=rest), sizes)[: len(before)] == before


def test_the_next_seal_reaches_as_far_as_completions_wait():
    assert next_seal(waiting(7), 5) == Seal("7-0", 5, MAX_PART_BYTES, rest=False)
    assert next_seal(waiting(4), 5) == Seal("7-0", 5, MAX_PART_BYTES, rest=True)
    # One that stands keeps its rule, and where it is for the rest its end.
    assert next_seal(waiting(7, seal="5-1 6 99 full"), 5) == Seal("7-0", 6, 99, rest=False)
    assert next_seal(waiting(5, seal="5-1 6 99 full"), 5) == Seal("7-0", 6, 99, rest=True)
    assert next_seal(waiting(7, seal="5-1 6 99 rest"), 5) == Seal("5-1", 6, 99, rest=True)
    old = waiting(7, seal="3 1-0 2-0 2\n4 3-0 4-0 2")
    assert next_seal(old, 5) == Seal("4-0", 5, MAX_PART_BYTES, rest=True)


def test_a_seal_is_read_as_it_is_written():
    for seal in (Seal("1700000000000-3", 500, 1 << 28, rest=False), Seal("1-0", 1, 1, rest=True)):
        assert Seal.parse(str(seal)) == seal


@pytest.mark.parametrize(
    ("pending", "counts", "ended", "over"),
    [
        (waiting(0, None), SETTLED, True, True),
        (waiting(0, None), SETTLED, False, False),
        (waiting(1, 0.0), SETTLED, True, False),
        (waiting(0, None), msgspec.structs.replace(SETTLED, stored=8), True, False),
        (waiting(0, None), msgspec.structs.replace(SETTLED, queued=1), True, False),
        (waiting(0, None), msgspec.structs.replace(SETTLED, in_flight=1), True, False),
    ],
)
def test_a_run_is_over_when_nothing_of_it_is_open(pending, counts, ended, over):
    assert run_over(pending, counts, ended=ended) is over


def test_the_same_lines_give_the_same_bytes_whatever_they_hold():
    lines = [b'{"a":1}', '{"b":"\u2028\u0085"}'.encode()]
    data = part_bytes(lines)
    assert data == part_bytes(iter(lines))
    assert zstandard.ZstdDecompressor().decompress(data, max_output_size=100) == b"\n".join(lines) + b"\n"
    # A checksum in the frame: one turned bit anywhere is noticed when it is read.
    spoiled = data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(spoiled, max_output_size=100)


def test_rates_need_two_moments_and_never_fall_below_zero():
    assert rates([]) == rates([Sample(1.0, 5, 50)]) == (None, None)
    assert rates([Sample(1.0, 5, 50), Sample(1.0, 9, 90)]) == (None, None)
    assert rates([Sample(1.0, 5, 50), Sample(2.0, 6, 60), Sample(3.0, 9, 90)]) == (2.0, 20.0)
    assert rates([Sample(1.0, 5, 50), Sample(2.0, 1, 10)]) == (0.0, 0.0)  # Redis was rebuilt meanwhile


def progress(counts, *, lines=10, samples=1, rate=None):
    settings = RunSettings(
        run="r",
        output="/o",
        input_name="p",
        fingerprint=Fingerprint("0" * 64, lines, 1),
        created_at="",
        generation=GenerationSettings(samples=samples),
    )
    return progress_of(settings, counts, at="now", state="running", rate=rate, tokens_rate=None)


def test_progress_tells_the_time_that_is_left_of_the_whole_input_all_samples_included():
    counts = Counts(accepted=8, completed=4, dead=1, queued=2, in_flight=1, stored=0)
    assert progress(counts, rate=0.5).eta_s == 10.0
    assert progress(counts, rate=0.5, samples=3).eta_s == 50.0
    assert progress(counts).eta_s is None
    assert progress(SETTLED).eta_s == 0.0


def test_progress_never_tells_more_stored_than_completed():
    told = progress(msgspec.structs.replace(SETTLED, stored=12))
    assert told.stored == told.completed == 9
    assert told.balanced
