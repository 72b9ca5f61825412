"""A quick look over the input."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard

from common.errors import InputError, UsageError
from ops.preflight.ask import jobs_from
from ops.preflight.cli import parse_levels
from ops.preflight.survey import HEAD, KEPT, completions_each, survey, thinned
from producer.source import Source


def lines(count: int, size: int = 20) -> bytes:
    return b"".join(json.dumps({"id": f"p{n}", "prompt": "x" * size}).encode() + b"\n" for n in range(count))


def look(tmp_path, data: bytes, *, name: str = "p.jsonl", clock=None):
    path = tmp_path / name
    path.write_bytes(data)
    more = {} if clock is None else {"clock": clock}
    return survey(Source(name=name, path=str(path)), seconds=5.0, **more)


def runs_out_after(looks: int):
    """A clock that has passed the time at its so-manyeth look."""
    times = iter([0.0] * (looks + 1) + [1e9] * 1000)
    return lambda: next(times)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_small_input_is_known_whole(tmp_path, pack):
    suffix = {bytes: "", gzip.compress: ".gz"}.get(pack, ".zst")
    found = look(tmp_path, pack(lines(50)), name=f"p.jsonl{suffix}")
    assert (found.lines, found.exact, found.invalid_total) == (50, True, 0)
    assert len(found.sample) == 50
    assert found.mean_bytes == 20


def test_blank_lines_and_a_byte_order_mark_do_not_count(tmp_path):
    found = look(tmp_path, b"\xef\xbb\xbf" + lines(3) + b"\n  \n" + lines(2).rstrip(b"\n"))
    assert (found.lines, found.invalid_total) == (5, 0)


def test_an_empty_input_has_no_prompts(tmp_path):
    found = look(tmp_path, b"\n\n")
    assert (found.lines, found.sample, found.mean_bytes) == (0, [], 0.0)


def test_a_large_input_is_sampled_evenly_with_its_longest_line(tmp_path):
    long = json.dumps({"id": "long", "prompt": "y" * 5000}).encode() + b"\n"
    found = look(tmp_path, lines(10_000) + long + lines(9_999))
    assert (found.lines, found.exact) == (20_000, True)
    assert KEPT / 2 <= len(found.sample) <= KEPT
    thirds = [sum(a <= p.index < a + 6_667 for p in found.sample) for a in (0, 6_667, 13_334)]
    assert min(thirds) > 0.8 * max(thirds)
    assert found.longest[0].id == "long"


def test_every_line_at_the_head_is_parsed(tmp_path):
    data = lines(5_000).splitlines(keepends=True)
    data[HEAD - 1] = b"{broken\n"
    found = look(tmp_path, b"".join(data))
    assert found.invalid_total == 1
    assert found.invalid[0].startswith(f"line {HEAD}:")


def test_what_there_was_no_time_for_is_sampled_by_seeking(tmp_path):
    first, last = lines(20_000, 100), lines(20_000, 300)
    found = look(tmp_path, first + last, clock=runs_out_after(1))
    assert not found.exact
    assert 0.5 * 40_000 < found.lines < 2 * 40_000
    share = sum(len(p.messages[0].content) == 300 for p in found.sample) / len(found.sample)
    assert share == pytest.approx(len(last) / (len(first) + len(last)), abs=0.12)


def test_a_bad_line_far_down_is_found_by_its_place(tmp_path):
    found = look(tmp_path, lines(20_000, 100) + b"{broken}\n" * 200_000, clock=runs_out_after(1))
    assert found.invalid_total > 0
    assert found.invalid[0].startswith("near byte ")


def test_a_compressed_input_that_is_not_read_whole_is_counted_by_its_bytes(tmp_path):
    data = b"".join(
        json.dumps({"prompt": f"{n} " + str(hash((n, 7))) * 20}).encode() + b"\n" for n in range(30_000)
    )
    found = look(tmp_path, gzip.compress(data), name="p.jsonl.gz", clock=runs_out_after(2))
    assert not found.exact
    assert 20_000 < found.lines < 45_000


def test_damaged_data_is_an_error(tmp_path):
    with pytest.raises(InputError):
        look(tmp_path, gzip.compress(lines(5000))[:-200], name="p.jsonl.gz")


def test_turns_per_prompt(tmp_path):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 2
    found = look(tmp_path, json.dumps({"messages": turns}).encode() + b"\n" + lines(1))
    assert completions_each(found.sample, "last") == 1
    assert completions_each(found.sample, "all") == 1.5
    assert completions_each([], "all") == 1


@pytest.mark.parametrize(
    ("count", "expected"), [(3, [0, 3, 6]), (10, list(range(10))), (99, list(range(10))), (0, [0])]
)
def test_thinned(count, expected):
    assert thinned(list(range(10)), count) == expected


def test_thinned_of_nothing():
    assert thinned([], 3) == []


@pytest.mark.parametrize(
    ("count", "expected"), [(2, ["a", "b"]), (3, ["a", "b", "c"]), (5, ["a", "b", "c", "a", "b"]), (0, [])]
)
def test_prompts_are_taken_evenly_or_again(count, expected):
    assert jobs_from(["a", "b", "c"], count) == expected


@pytest.mark.parametrize(
    ("text", "levels"),
    [(None, []), ("", []), ("1,8,16", [1, 8, 16]), (" 64, 8,8 ", [8, 64]), ("4096", [4096])],
)
def test_levels(text, levels):
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["0", "1,", "a", "1;2", "5000", "-1", "1.5", "²"])
def test_levels_that_are_none(text):
    with pytest.raises(UsageError, match="1,8,16,32"):
        parse_levels(text)
