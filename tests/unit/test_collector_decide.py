"""When a part is due, what its bytes are, and what progress says."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from common.records import Fingerprint
from common.settings import GenerationSettings, RunSettings
from common.store.runs import Counts
from consumers.collector.decide import (
    MOST_PARTS,
    Pending,
    Sample,
    part_bytes,
    part_due,
    parts_due,
    progress_of,
    rates,
    run_over,
)

OPEN = Counts(accepted=100, completed=10, dead=0, queued=80, in_flight=10, stored=0)
SETTLED = Counts(accepted=10, completed=9, dead=1, queued=0, in_flight=0, stored=9)


@pytest.mark.parametrize(
    ("pending", "counts", "ended", "due"),
    [
        (Pending(0, None), SETTLED, True, False),
        (Pending(49, 1.0), OPEN, True, False),
        (Pending(50, 1.0), OPEN, False, True),
        (Pending(1, 300.0), OPEN, False, True),
        (Pending(1, 299.9), OPEN, False, False),
        (Pending(1, 0.0), SETTLED, True, True),
        # Nothing is queued for the moment, but the producer has not come to the end of its input.
        (Pending(1, 0.0), SETTLED, False, False),
        (Pending(1, 0.0), msgspec.structs.replace(SETTLED, in_flight=1), True, False),
        (Pending(1, 0.0), msgspec.structs.replace(SETTLED, queued=1), True, False),
    ],
)
def test_a_part_is_due_when_it_is_full_or_old_or_the_last(pending, counts, ended, due):
    assert part_due(pending, counts, ended=ended, batch_size=50, flush_s=300.0) is due


def test_as_many_parts_at_once_as_are_full_within_a_bound():
    assert [parts_due(Pending(n, 0.0), 50) for n in (1, 49, 50, 149, 10**6)] == [1, 1, 1, 2, MOST_PARTS]


@pytest.mark.parametrize(
    ("pending", "counts", "ended", "over"),
    [
        (Pending(0, None), SETTLED, True, True),
        (Pending(0, None), SETTLED, False, False),
        (Pending(1, 0.0), SETTLED, True, False),
        (Pending(0, None), msgspec.structs.replace(SETTLED, stored=8), True, False),
        (Pending(0, None), msgspec.structs.replace(SETTLED, queued=1), True, False),
        (Pending(0, None), msgspec.structs.replace(SETTLED, in_flight=1), True, False),
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
