"""The status screen fits whatever terminal it gets, and what matters most is on it."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from support.statuses import LONG_SERVER, consumer, run, status

from ops.screen import words
from ops.screen.layout import screen
from ops.screen.tables import bars, choose, progress
from ops.status.notices import Level, Notice, notices
from ops.status.values import Minute, Pause, State

SENTENCE = (
    "The quality guard paused the run: 31 % of the last 500 completions were looping, the limit is 20 %; "
    "check the sampling settings (greedy decoding loops) and the model's files; or go on as it is with "
    "`ops resume --accept`."
)
STOPPED = run(state=State.PAUSED, paused=[Pause(scope="*", sentence=SENTENCE, samples=["a", "b", "c"])])
MANY = {f"verdict_{n}": 1000 - n for n in range(12)}


def lines(shown, width=80, height=24, **more):
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False, force_terminal=False)
    console.print(screen(shown, width=width, height=height, **more))
    return console.file.getvalue().splitlines()


def text(*args, **kwargs):
    return "\n".join(lines(*args, **kwargs))


@pytest.mark.parametrize(
    "shown",
    [
        status(),
        status(consumers=0),
        status(consumers=1),
        status(consumers=100),
        status(STOPPED),
        status(STOPPED, consumers=100, suspended=True, collector=False, stock_workers=["w"] * 9),
        status(run(verdicts=MANY, dead_by_reason={**MANY}, missing=3)),
        status(run(state=State.FINISHED, active=False, eta_s=0.0, rate_per_s=None)),
        status(run(run="x" * 64, rate_per_s=None, whole_run_rate_per_s=None, eta_s=None)),
        status(run(), run(run="y" * 64), consumers=40),
        status(*(run(run=f"r{n}") for n in range(60)), consumers=40),
        status(run(total=0, accepted=0, completed=0, stored=0, dead=0, queued=0, in_flight=0)),
    ],
)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 15), (160, 50), (120, 24), (250, 70)])
def test_it_fits_the_terminal(shown, width, height):
    said = notices(shown)
    found = lines(shown, width, height, said=said, footer="12:34:56 UTC   q ends this screen")
    assert len(found) <= height
    assert max(map(len, found)) <= width
    assert found[0].startswith("run")


def test_at_80_by_24_seven_servers_and_all_that_matters_are_on_it():
    shown = status()
    found = text(shown, said=notices(shown), footer="q ends")
    assert "run main  451,123 of 902,087  50.0%  running" in found
    assert "902,087 = 450,000 completed + 1,123 dead + 450,628 queued + 336 in flight" in found
    assert "last minute 12.3 completions/s, 24,568 tokens/s" in found
    assert "whole run 11.9/s, 23,900 tokens/s; 10 h 08 min left (9 h 26 min to 10 h 50 min)" in found
    assert "stored 449,500 in 899 parts; 500 waiting (3.5 MB, oldest 42 s); Redis 1.2 GB" in found
    for number in range(7):
        assert f"10.0.0.{number}:30000" in found
    assert "7 consumers" in found
    assert "336 of 336" in found
    assert "truncated_thinking" in found
    assert "q ends" in found


def test_a_wide_screen_shows_the_whole_equation_and_bars_side_by_side():
    found = lines(status(), 160, 50)
    assert any(line.startswith("accepted 902,087 = completed 450,000") for line in found)
    assert any("verdicts" in line and "dead letters" in line for line in found)
    assert any("done/s" in line for line in found)


def test_without_a_height_everything_is_shown():
    console = Console(file=io.StringIO(), width=100)
    console.print(screen(status(consumers=100), width=100))
    assert console.file.getvalue().count("10.0.0.") == 100


def test_a_pause_is_on_the_screen_in_full_even_when_it_is_small():
    shown = status(STOPPED, consumers=100)
    found = " ".join(text(shown, 80, 24, said=notices(shown)).split())
    assert SENTENCE in found
    assert "Look at prompts a, b, c." in found


def test_of_too_many_consumers_those_with_trouble_come_first_and_the_rest_is_summed_up():
    good = [consumer(number) for number in range(98)]
    down = consumer(98, state="waiting for server", in_flight=0)
    failing = consumer(99, last_minute=Minute(1.0, 2000.0, 17))
    shown = status()
    shown = msgspec.structs.replace(shown, consumers=[*good, failing, down])
    found = text(shown)
    assert "10.0.0.98:30000" in found
    assert "10.0.0.99:30000" in found
    assert "working" in found
    assert "100 consumers" in found
    shown_ones, rest = choose(shown.consumers, 5)
    assert shown_ones[:2] == [down, failing]
    assert (len(shown_ones), len(rest)) == (4, 96)


def test_a_long_server_name_gives_way_and_numbers_stay():
    shown = msgspec.structs.replace(
        status(), consumers=[consumer(0, server=LONG_SERVER, state="waiting for server")]
    )
    row = next(line for line in lines(shown) if "gpu-node" in line)
    assert "waiting for server" in row
    assert "48 of 48" in row
    assert row.rstrip().endswith("0")


def test_text_from_elsewhere_is_not_taken_for_markup():
    shown = status(run(verdicts={"[bold]x[/bold]": 1}))
    found = text(shown, said=[Notice(Level.BAD, "paused: [red]not red[/red]")])
    assert "[red]not red[/red]" in found
    assert "[bold]x[/bold]" in found


def test_several_runs_share_one_screen():
    found = text(status(run(), run(run="other", state=State.NO_SERVER)))
    assert "main" in found
    assert "waiting for a server" in found
    assert "450,628 queued" in found


def test_of_too_many_runs_the_rest_is_counted():
    found = lines(status(*(run(run=f"r{n}") for n in range(60))), 80, 24)
    assert "r8" in found[9]
    assert found[10].startswith("... 51 more")


def test_a_long_run_name_gives_way_and_numbers_stay():
    found = lines(status(run(run="y" * 64), run()), 80, 24)
    assert "450,000" in found[1]
    assert found[1].startswith("yyy")


def test_where_there_is_room_for_one_line_a_tally_takes_one():
    found = lines(status(STOPPED, consumers=100), 80, 24, said=notices(status(STOPPED)), footer="q")
    assert "dead letters  too_long 1,000, server_fault 123" in found


def test_the_phase_stands_in_place_of_the_state():
    assert "50.0%  draining: jobs in flight get 120 s" in text(
        status(), phase="draining: jobs in flight get 120 s"
    )


@pytest.mark.parametrize(
    ("share", "width", "cells"), [(0.0, 10, 0), (0.001, 10, 0), (0.55, 10, 5), (0.999, 10, 9), (1.0, 10, 10)]
)
def test_the_bar_is_full_only_at_the_end(share, width, cells):
    bar = progress(share, width)
    assert len(bar.plain) == width
    assert bar.spans[0].end - bar.spans[0].start == cells if cells else True


def test_bars_show_even_the_smallest_share_and_sum_up_what_is_past_the_most():
    found = [line.plain for line in bars("verdicts", {"ok": 100_000, "empty": 1}, width=60, most=8)]
    assert "▏" in found[2]
    assert found[2].rstrip().endswith("1")
    found = [line.plain for line in bars("v", MANY, width=60, most=4)]
    assert len(found) == 5
    assert found[-1].startswith("9 others")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 00 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations(seconds, said):
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.5 KB"),
        (12_345_678, "12 MB"),
        (1.2e9, "1.2 GB"),
        (5e15, "5,000 TB"),
    ],
)
def test_sizes(number, said):
    assert words.size(number) == said


def test_rates_have_three_digits_at_least():
    assert [words.rate(x) for x in (0.123, 1.26, 99.94, 12_345.6)] == ["0.12", "1.3", "99.9", "12,346"]


def test_the_pace_of_all_runs_is_said_to_be_that():
    assert words.speed(run(rate_of_all_runs=True)).endswith("(all runs)")
    assert words.speed(run(rate_per_s=None)) == "no pace known yet"
    assert words.eta(run(eta_s=None)) == "time left unknown"
    assert words.eta(run(eta_s=0.0)) == "nothing left to do"


def test_dead_letters_that_cannot_be_retried_are_not_said_to_be():
    assert words.what_helps("r", ["invalid_line"]).startswith("mend the lines")
    assert words.what_helps("r", ["invalid_line", "timeout"]) == "`ops retry r` queues them again"
