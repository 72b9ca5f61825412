"""The commands that people type, as processes: `ops run`, consumers, producers, and simulated servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
from support.deployment import ROOT
from support.wait import patient, wait_for

from common.parts import iter_part_records, read_manifest
from common.records import Record
from common.storage import open_storage
from ops.verify.read import verify
from ops.verify.report import Outcome

MODULES = {
    "ops": "ops.cli",
    "producer": "producer.cli",
    "collector": "consumers.collector.cli",
    "rq": "rq.cli",
}
QUICK = {"PROMPTMILL_CLAIM_TTL": "4", "PROMPTMILL_LEASE_TTL": "2", "PROMPTMILL_FLUSH_SECONDS": "300"}


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This process's environment without settings of its own for promptmill, and with `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROMPTMILL_", "SGLANG_", "RQ_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state"), **QUICK, **more}


class Command:
    """One command at work; its words are in a file."""

    def __init__(
        self, folder: Path, *argv: object, stdin: bytes | None = None, name: str = "", **env: str
    ) -> None:
        program, *rest = (str(word) for word in argv)
        number = len(list(folder.glob("*.out")))
        self.file = folder / f"{name or program}-{number}.out"
        self.argv = [sys.executable, "-m", MODULES[program], *rest]
        with self.file.open("wb") as out:
            self.process = subprocess.Popen(
                self.argv,
                cwd=folder,
                env=environment(folder, **env),
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        if stdin is not None:
            self.process.stdin.write(stdin)
            self.process.stdin.close()
        self.seen: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.family()
        self.process.kill()
        self.process.wait()
        for process in self.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    @property
    def text(self) -> str:
        return self.file.read_text(errors="replace")

    def ends(self, code: int = 0, timeout: float = 60) -> str:
        """Wait for its end; its words."""
        try:
            found = self.process.wait(patient(timeout))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still at work after {patient(timeout)} s:\n{self.text}{self.logs()}"
            ) from None
        assert found == code, f"exit code {found}, not {code}:\n{self.text}{self.logs()}"
        return self.text

    def ended(self, within: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within)
        return self.process.poll() is not None

    def logs(self) -> str:
        """What its parts wrote, for messages of failed tests."""
        files = sorted(self.file.parent.rglob("logs/*.log"))
        return "".join(f"\n--- {file.name}\n{file.read_text()[-3000:]}" for file in files)

    def family(self) -> list[psutil.Process]:
        """Its descendants now; those of before are remembered."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self.seen[process.pid] = process
        return [process for process in self.seen.values() if alive(process)]

    def part(self, *words: str) -> psutil.Process:
        """The descendant, guard excluded, whose command line has all these words."""

        def find() -> psutil.Process | None:
            for process in self.family():
                with contextlib.suppress(psutil.Error):
                    line = process.cmdline()
                    guard = any(word.endswith("guard.py") for word in line)
                    if not guard and all(any(word in part for part in line) for word in words):
                        return process
            return None

        return wait_for(find, f"a process with {words}", 20)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def says(self, words: str, timeout: float = 30) -> None:
        wait_for(lambda: words in self.text or self._gone(words), f"{words!r} in:\n{self.text}", timeout)

    def _gone(self, words: str) -> bool:
        if self.process.poll() is not None and words not in self.text:
            raise AssertionError(f"it ended without saying {words!r}:\n{self.text}")
        return False


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Servers:
    """`ops simulate` as a process."""

    def __init__(self, folder: Path, *flags: object, count: int = 2) -> None:
        quick = ("--health-delay", "0", "--disconnect-poll", "0.1", "--port", "0", "--servers", count)
        self.command = Command(folder, "ops", "simulate", *quick, *flags, name="simulate")
        wait_for(lambda: len(self._urls()) == count, "simulated servers", 30)
        self.urls = self._urls()

    def _urls(self) -> list[str]:
        return re.findall(r"^http\S+$", self.command.text, re.MULTILINE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.command.__exit__()

    @property
    def flags(self) -> list[str]:
        """As `ops run` takes them."""
        return [word for url in self.urls for word in ("--server", url)]

    def faults(self, *faults: dict[str, Any], server: int | None = None) -> None:
        """Replace the faults of all servers, or of one."""
        for url in self.urls if server is None else [self.urls[server]]:
            self._post(f"{url}/sim/faults", list(faults))

    def as_new(self) -> Self:
        """Without faults, and with nothing counted."""
        self.faults()
        for url in self.urls:
            self._post(f"{url}/sim/reset", {})
        return self

    def stats(self, server: int = 0) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.urls[server]}/sim/stats", timeout=patient(10)) as reply:
            return json.load(reply)

    @staticmethod
    def _post(url: str, body: Any) -> None:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=patient(10)).close()


def prompts(path: Path, count: int, words: str = "Say {n}", *, start: int = 0) -> Path:
    """An input of so many prompts."""
    lines = (json.dumps({"id": f"p{n}", "prompt": words.format(n=n)}) for n in range(start, start + count))
    path.write_text("".join(line + "\n" for line in lines))
    return path


def records(place: str | Path) -> list[Record]:
    """Every record of a run's output, in order of index and sample."""
    storage = open_storage(str(place))
    found = iter_part_records(storage, read_manifest(storage))
    return sorted(found, key=lambda r: (r.index, 0 if r.sample is msgspec.UNSET else r.sample))


def progress(place: str | Path) -> dict[str, Any]:
    return json.loads(open_storage(str(place)).read("progress.json"))


def proven(place: str | Path, source: Path | None = None) -> None:
    """Every accepted prompt of the run ended exactly once."""
    report = verify(
        open_storage(str(place)),
        source=str(source) if source else None,
        here=source.parent if source else Path.cwd(),
        tick=lambda *_: None,
    )
    assert (report.outcome, report.findings) == (Outcome.PROVEN, []), report
