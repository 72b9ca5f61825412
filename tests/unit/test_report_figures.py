import json
import random

import msgspec
import pytest
from support.report_runs import made_up

from common.records import DeadLetter, DeadReason
from ops.report.gather import MOST_NAMES, OTHERS, Gathered, Letters, Row
from ops.report.histogram import LogHistogram
from ops.report.reader import MOST, clip
from ops.report.samples import Samples, rank
from ops.report.scale import clock, duration, number, share, short, ticks, time_ticks
from ops.report.timeline import MOST_BUCKETS, WIDTHS, Timeline, wider


def gathered(records, *, samples=2, **bounds):
    decode = msgspec.json.Decoder(Row).decode
    found = Gathered(Samples(samples), **bounds)
    for line in map(msgspec.json.encode, records):
        found.add(decode(line), line)
    return found


def test_a_histogram_knows_its_quantiles_to_a_few_percent_and_the_rest_exactly():
    rng = random.Random(3)
    values = sorted(int(rng.lognormvariate(7, 1)) for _ in range(5000))
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    assert histogram.count == 5000
    assert (histogram.least, histogram.most) == (values[0], values[-1])
    assert histogram.mean == pytest.approx(sum(values) / 5000)
    for at in (0.05, 0.5, 0.95):
        assert histogram.quantile(at) == pytest.approx(values[int(5000 * at) - 1], rel=0.05)
    assert sum(histogram.coarse(4).values()) + histogram.zeros == 5000


def test_a_histogram_takes_zeros_and_extremes_and_leaves_out_what_is_no_number():
    histogram = LogHistogram()
    assert histogram.quantile(0.5) is None
    assert histogram.mean is None
    for value in (0, 0, 5e-324, 1e308, float("nan"), float("inf"), -1):
        histogram.add(value)
    assert histogram.count == 4
    assert histogram.zeros == 2
    assert len(histogram.bins) == 2
    assert histogram.quantile(0.5) == 0


def test_bins_begin_at_powers_of_two():
    histogram = LogHistogram()
    for value in (1, 2, 4, 1023, 1024):
        histogram.add(value)
    assert histogram.coarse(16) == {0: 1, 1: 1, 2: 1, 9: 1, 10: 1}


def test_requests_fill_the_buckets_that_they_were_in_flight_in():
    timeline = Timeline()
    timeline.add("a", "ok", 10.5, 13.25, tokens=275, accept_length=3.0)
    track = timeline.servers["a"]
    assert timeline.span == (10, 13)
    assert track.held.values(10, 13) == [0.5, 1, 1, 0.25]
    assert track.tokens.values(10, 13) == pytest.approx([50, 100, 100, 25])
    assert track.ended.values(10, 13) == [0, 0, 0, 1]
    assert timeline.verdicts["ok"].values(10, 13) == [1, 0, 0, 0]
    assert timeline.rates(track.held) == [1, 1, 1, 1]


def test_a_request_that_took_no_time_counts_where_it_was():
    timeline = Timeline()
    timeline.add("a", "ok", 7.0, 7.0, tokens=5)
    assert timeline.servers["a"].tokens.values(7, 7) == [5]


def test_widths_nest_so_that_buckets_merge_whole():
    width = 1
    for _ in range(30):
        assert wider(width) % width == 0
        assert wider(width) > width
        width = wider(width)
    assert wider(WIDTHS[-1]) == 2 * 86_400


def test_a_long_run_has_wide_buckets_and_loses_nothing():
    timeline = Timeline()
    for number_ in range(3000):
        timeline.add("a", "ok", 100.0 * number_, 100.0 * number_ + 40, tokens=10)
    first, last = timeline.span
    assert last - first < MOST_BUCKETS
    assert sum(timeline.servers["a"].held.values(first, last)) == pytest.approx(3000 * 40)
    assert sum(timeline.servers["a"].tokens.values(first, last)) == pytest.approx(3000 * 10)
    assert sum(timeline.verdicts["ok"].values(first, last)) == 3000


def test_the_same_samples_come_out_however_the_records_come_in():
    records = made_up(400)
    shuffled = random.Random(9).sample(records, len(records))
    one, two = gathered(records), gathered(shuffled)
    for verdict, count in one.verdicts.items():
        chosen = [sample.index for sample in one.samples.of(verdict)]
        assert chosen == [sample.index for sample in two.samples.of(verdict)]
        assert len(chosen) == min(2, count)
        assert chosen == sorted(chosen)


def test_samples_are_spread_over_the_run():
    chosen = sorted(range(100_000), key=lambda index: rank(index, 0))[:100]
    for quarter in range(4):
        assert 10 < sum(quarter * 25_000 <= index < (quarter + 1) * 25_000 for index in chosen) < 40


def test_samples_of_one_prompt_stand_apart_and_doubles_do_no_harm():
    record = msgspec.structs.replace(made_up(1)[0], sample=1)
    assert rank(0, 0) != rank(0, 1)
    found = gathered([record, record, msgspec.structs.replace(record, sample=0)], samples=3)
    assert [sample.sample for sample in found.samples.of(record.verdict)] == [0, 1, 1]


def test_no_samples_is_a_number_of_samples():
    assert gathered(made_up(5), samples=0).samples.of("ok") == []


def test_tokens_add_up_by_server_and_by_kind():
    records = made_up(300)
    found = gathered(records)
    total = found.total
    assert total.completions == found.records == 300
    assert total.prompt == sum(record.usage.prompt_tokens for record in records)
    assert total.thinking == sum(record.usage.reasoning_tokens for record in records)
    assert total.output == sum(record.usage.completion_tokens for record in records)
    assert total.bad == sum(record.verdict != "ok" for record in records)
    assert found.attempts.total() == found.finish_reasons.total() == 300


def test_earlier_turns_count_and_missing_counts_are_no_zeros():
    line = json.loads(msgspec.json.encode(made_up(1)[0]))
    line["usage"] = {"prompt_tokens": 1, "completion_tokens": 10, "reasoning_tokens": None}
    line["turns"] = [{"usage": {"prompt_tokens": 2, "completion_tokens": 20, "reasoning_tokens": 15}}]
    bare = {**line, "index": 1, "turns": [], "usage": {}}
    del bare["speculation"]
    found = gathered([line, bare])
    assert (found.total.thinking, found.total.answer, found.total.unsplit) == (15, 5, 10)
    assert found.total.prompt == 3
    assert found.without_usage == 1
    assert (found.output_tokens.count, found.output_tokens.total) == (1, 30)
    assert found.total.accepts == 1


@pytest.mark.parametrize(
    ("started_at", "latency"),
    [("", 1.0), ("soon", 1.0), ("1970-01-01T00:00:00Z", 1.0), ("2026-01-05T08:00:00Z", 1e300)],
)
def test_a_time_that_cannot_be_is_counted_and_left_out(started_at, latency):
    record = msgspec.structs.replace(made_up(1)[0], started_at=started_at, latency_s=latency)
    found = gathered([record], earliest=1.7e9, latest=1.9e9)
    assert found.untimed == found.records == 1
    assert found.timeline.first is None


def test_names_without_end_are_lumped_together():
    records = [msgspec.structs.replace(made_up(1)[0], index=n, server=f"s{n}") for n in range(MOST_NAMES + 9)]
    found = gathered(records)
    assert len(found.servers) == MOST_NAMES + 1
    assert found.servers[OTHERS].completions == 9


def test_dead_letters_are_counted_with_the_first_few_shown():
    letters = Letters()
    for index in range(9):
        letters.add(DeadLetter(index=index, id="x", reason=DeadReason.TIMEOUT, last_error="slow", attempts=5))
    assert letters.counts == {"timeout": 9}
    assert [letter.index for letter in letters.examples["timeout"]] == [0, 1, 2, 3, 4]


def test_a_long_text_is_cut_at_white_space_and_nothing_is_lost_in_between():
    words = "word " * 100_000
    shown, rest, left = clip(words)
    assert shown.endswith(" ")
    assert shown + rest == words[:MOST]
    assert left == len(words) - MOST
    assert clip("short") == ("short", "", 0)
    shown, rest, left = clip("x" * 5000)
    assert (shown + rest, left) == ("x" * 5000, 0)


@pytest.mark.parametrize("most", [1e-9, 0.37, 1, 3, 7.5, 99, 100, 101, 12345, 1e15])
def test_axes_end_at_a_round_number_above_the_highest(most):
    steps = ticks(most)
    assert steps[0] == 0
    assert most * 0.999 <= steps[-1] <= most * 2
    assert 3 <= len(steps) <= 7


def test_an_axis_without_values_is_an_axis():
    assert ticks(0) == [0, 1]


@pytest.mark.parametrize("span", [1, 7, 300, 7200, 86_400, 30 * 86_400, 900 * 86_400])
def test_times_on_an_axis_are_round_and_few(span):
    begin = 1_767_600_123
    found = time_ticks(begin, begin + span)
    assert len(found) <= 11
    assert all(begin <= moment <= begin + span for moment in found)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (short(999.6), "1k"),
        (short(1_234_567), "1.23M"),
        (short(0), "0"),
        (short(0.25), "0.25"),
        (number(None), "\u2013"),
        (number(1234.5), "1,234"),
        (share(0, 0), "\u2013"),
        (share(1, 1_000_000), "< 0.01 %"),
        (share(1, 3), "33.3 %"),
        (duration(None), "\u2013"),
        (duration(59.4), "59.4 s"),
        (duration(59.8), "1 min"),
        (duration(61), "1 min 1 s"),
        (duration(21_600), "6 h"),
        (duration(200_000), "2 d 7 h"),
        (clock(0, 10), "00:00:00"),
        (clock(0, 10_000), "00:00"),
        (clock(0, 1e6), "01 Jan"),
    ],
)
def test_numbers_in_words(shown, expected):
    assert shown == expected
