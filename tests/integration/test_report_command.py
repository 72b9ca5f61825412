import contextlib
import json
import os
import stat
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from support.report_runs import letters, made_up, write

from common.parts import part_name
from common.storage import open_storage
from ops.cli import main


class Tables(HTMLParser):
    """The page's tables as rows of cells, by caption."""

    def __init__(self, text):
        super().__init__()
        self.found, self._in, self._caption, self._rows = {}, None, "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self._rows.append([])
        if tag in ("th", "td"):
            self._rows[-1].append("")
        if tag in ("th", "td", "caption"):
            self._in = tag

    def handle_endtag(self, tag):
        if tag == self._in:
            self._in = None
        if tag == "table":
            self.found[self._caption] = self._rows
            self._rows, self._caption = [], ""

    def handle_data(self, data):
        if self._in == "caption":
            self._caption += data
        elif self._in:
            self._rows[-1][-1] += data


def report(*arguments, cwd):
    """The command, as typed in the folder `cwd`."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "sets" / "nightly", made_up(1200), dead=letters(9))


def test_a_finished_run_becomes_a_page_with_its_figures(run, tmp_path):
    done = report(run, cwd=tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    page = tmp_path / "nightly-report.html"
    assert done.stdout == "nightly-report.html: 1,200 completions of run nightly\n"
    text = page.read_text()
    tables = Tables(text).found
    verdicts = {row[0].strip(): row[1] for row in tables["Verdicts"][1:]}
    assert sum(int(count.replace(",", "")) for count in verdicts.values()) == 1200
    servers = tables["Tokens spent and speed by server"]
    assert servers[-1][:2] == ["all", "1,200"]
    assert len(servers) == 9
    expected = sum(record.usage.prompt_tokens for record in made_up(1200))
    assert servers[-1][servers[0].index("prompt tokens")] == f"{expected:,}"
    assert "too_long: the first 5 of 6" in tables
    assert "<b>1,209</b> accepted" in text
    assert "✓ holds" in text
    assert "ab" * 32 in text
    assert "Be kind.\nBe brief." in text


def test_it_is_a_command_of_its_own_process(run, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", "report", run, "--to", "page.html"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


def test_a_page_can_be_read_by_its_owner_alone_and_replaces_the_one_before(run, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("old")
    assert report(run, "--to", target, cwd=tmp_path).exit_code == 0
    assert target.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "sets"]


def test_a_run_going_on_says_so_and_tells_the_time_left(tmp_path):
    run = write(tmp_path / "nightly", made_up(100), finished=False)
    assert report(run, cwd=tmp_path).exit_code == 0
    text = (tmp_path / "nightly-report.html").read_text()
    assert '<span class="state">running</span>' in text
    assert "1 h 30 min" in text
    assert "is in no part yet" in text


def test_a_run_that_has_stored_nothing_yet_has_a_page(tmp_path):
    run = write(tmp_path / "nightly", [], finished=False)
    assert report(run, cwd=tmp_path).exit_code == 0
    assert "No completion has a usable time." in (tmp_path / "nightly-report.html").read_text()


def test_counts_that_do_not_add_up_are_shown_as_such(tmp_path):
    run = write(tmp_path / "nightly", made_up(10), progress={"queued": 3})
    assert report(run, cwd=tmp_path).exit_code == 0
    assert "✗ does not hold" in (tmp_path / "nightly-report.html").read_text()


def test_damage_is_named_and_the_rest_is_shown(run, tmp_path):
    (run / part_name(0)).write_bytes(b"not a part")
    (run / part_name(1)).unlink()
    done = report(run, cwd=tmp_path)
    assert done.exit_code == 1
    assert f"{part_name(0)} in " in done.stderr
    assert f"{part_name(1)} is in the manifest" in done.stderr
    text = (tmp_path / "nightly-report.html").read_text()
    assert "What could not be read" in text
    assert "200 read are not" in text


def test_lines_that_are_no_records_cost_themselves_alone(tmp_path):
    good = made_up(20)
    torn = write(tmp_path / "nightly", [*good[:10], *[{"index": n} for n in range(30)], *good[10:]])
    done = report(torn, cwd=tmp_path)
    assert done.exit_code == 1
    assert f"{part_name(0)} line 11 is not a record" in done.stderr
    text = (tmp_path / "nightly-report.html").read_text()
    assert "and 10 more" in text
    assert "of 20 read are not" in text


def test_files_beside_the_parts_that_make_no_sense_are_named_too(run, tmp_path):
    (run / "progress.json").write_text("{")
    (run / "dead.jsonl").write_text('{"index": 1}\n')
    manifest = json.loads((run / "manifest.json").read_bytes())
    manifest["created_at"] = "lately"
    manifest["parts"][1]["records"] += 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    done = report(run, cwd=tmp_path)
    assert done.exit_code == 1
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == [
        "progress.json",
        part_name(1),
        "dead.jsonl",
    ]
    text = (tmp_path / "nightly-report.html").read_text()
    assert "Without progress.json, the manifest counts 1,209 accepted" in text
    assert "of 1,200 read are not" in text


def test_a_run_in_s3(run, tmp_path, s3_server):
    url = f"s3://{s3_server.bucket}/sets/nightly"
    storage = open_storage(url)
    for path in run.iterdir():
        (storage.create if path.name.startswith("part-") else storage.replace)(path.name, path.read_bytes())
    done = report(url, cwd=tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert url in (tmp_path / "nightly-report.html").read_text()


def test_a_sweep_is_drawn_beside(run, tmp_path):
    sweep = tmp_path / "preflight.json"
    points = [
        {"in_flight": n, "tokens_per_s": 100.0 * n / (1 + n / 16), "requests": 9} for n in (1, 8, 16, 32)
    ]
    curves = [{"url": "http://10.0.0.1:30000", "points": points, "knee": 16}]
    sweep.write_text(json.dumps({"checks": [], "curves": curves}))
    assert report(run, "--sweep", sweep, cwd=tmp_path).exit_code == 0
    assert "http://10.0.0.1:30000, knee at 16" in (tmp_path / "nightly-report.html").read_text()


@pytest.mark.parametrize("content", ["{}", "no", '{"curves": 3}', None])
def test_what_is_no_sweep_is_said_before_any_reading(run, tmp_path, content):
    sweep = tmp_path / "preflight.json"
    if content is not None:
        sweep.write_text(content)
    done = report(run, "--sweep", sweep, cwd=tmp_path)
    assert done.exit_code == 2
    assert "preflight.json" in done.stderr
    assert not (tmp_path / "nightly-report.html").exists()


def test_no_run_there_and_no_place_for_the_page(run, tmp_path):
    missing = report(tmp_path / "sets", cwd=tmp_path)
    assert missing.exit_code == 2
    assert "holds no manifest.json" in missing.stderr
    nowhere = report(run, "--to", tmp_path / "none" / "page.html", cwd=tmp_path)
    assert nowhere.exit_code == 2
    assert "cannot be written" in nowhere.stderr


def test_a_name_from_a_strange_manifest_is_no_path(tmp_path):
    run = write(tmp_path / "deep" / "r", made_up(3), manifest={"run": "../../evil"})
    done = report(run, cwd=tmp_path / "deep")
    assert done.exit_code == 0
    assert (tmp_path / "deep" / "run-report.html").exists()
