"""What must be true of a run's output: the input file against the parts read back, by id and by content."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from support.world import RUN, World

from common.errors import PromptmillError
from common.parts import iter_dead_letters, iter_lines, read_manifest
from common.records import Progress, Record
from common.storage import Storage

CANARY = "canary-prompt-77d1"
LONG = "much too long "
HARD_WORDS = (
    "plain",
    "ünïcode 🙂",
    "quotes \"'\\",
    "tab\tnew\nline",
    "\u2028",
    "<|im_end|>",
    "  spaces  ",
    "漢字",
)


def prompt_text(number: int) -> str:
    """A prompt whose first words no other has; the simulated servers quote them."""
    return f"{number:07d}-{hashlib.sha256(b'%d' % number).hexdigest()[:12]} {CANARY} {HARD_WORDS[number % 8]}"


def write_input(path: Path, count: int, *, hopeless: int = 0) -> Path:
    """So many prompts; the last `hopeless` of them fit no server."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            text = prompt_text(number)
            if number >= count - hopeless:
                text += LONG * 2000
            file.write(
                json.dumps({"id": f"id-{number}", "prompt": text}, ensure_ascii=number % 2 == 0) + "\n"
            )
    return path


@dataclass
class Ends:
    """What came of every prompt."""

    records: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        """Whether every prompt has one end, with its own content."""
        return not (self.lost or self.doubled or self.wrong)


def read_ends(storage: Storage, count: int, run: str = RUN) -> Ends:
    """Read all parts and dead letters back."""
    ends, seen = Ends(), Counter[int]()
    decode = msgspec.json.Decoder(Record).decode
    manifest = read_manifest(storage)
    listed = {row.key: row for row in manifest.parts}
    for info in storage.list("part-"):
        data = storage.read(info.name)
        row = listed.pop(info.name, None)
        if row is None or row.sha256 != hashlib.sha256(data).hexdigest():
            ends.wrong.append(f"{info.name} is not as the manifest says")
            continue
        lines = [line for block in iter_lines(data, name=info.name) for line in block]
        if len(lines) != row.records:
            ends.wrong.append(f"{info.name} has {len(lines)} records, the manifest says {row.records}")
        for line in lines:
            record = decode(line)
            seen[record.index] += 1
            ends.wrong += what_is_wrong(record, run)
    ends.wrong += [f"{name} is in the manifest alone" for name in listed]
    for letter in iter_dead_letters(storage):
        seen[letter.index] += 1
        ends.dead[letter.index] = letter.reason.value
    ends.records = seen.total() - len(ends.dead)
    ends.lost = [number for number in range(count) if not seen[number]]
    ends.doubled = [number for number, times in seen.items() if times > 1]
    if (manifest.accepted, manifest.completed, manifest.dead) != (count, ends.records, len(ends.dead)):
        ends.wrong.append(f"manifest: {manifest.accepted} {manifest.completed} {manifest.dead}")
    if not manifest.finished_at:
        ends.wrong.append("the manifest says that the run goes on")
    return ends


def what_is_wrong(record: Record, run: str = RUN) -> list[str]:
    """Where a record is not the answer to its prompt."""
    number, text = record.index, prompt_text(record.index)
    problems = []
    if record.id != f"id-{number}" or record.run != run:
        problems.append(f"{number}: id {record.id}, run {record.run}")
    if [message.content for message in record.messages] != [text]:
        problems.append(f"{number}: messages {record.messages}")
    if text[:20] not in (record.response.content or "") + (record.response.reasoning_content or ""):
        problems.append(f"{number}: answer to something else")
    return problems


class Watcher:
    """Samples counts, progress and parts while a run goes on, from a thread of its own."""

    def __init__(self, world: World, storage: Storage, *, every_s: float = 0.1) -> None:
        self.world = world
        self.storage = storage
        self.every_s = every_s
        self.samples = 0
        self.broken: list[str] = []
        self.second_finishes = 0
        self._parts: dict[str, tuple[int, str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        looked = 0.0
        while not self._stop.wait(self.every_s):
            self._look_at_counts()
            if time.monotonic() - looked > 1.0:
                looked = time.monotonic()
                self._look_at_output()

    def _look_at_counts(self) -> None:
        counts = self.world.counts()
        if counts is None:
            return
        self.samples += 1
        self.second_finishes = max(self.second_finishes, counts.other.get("second_finishes", 0))
        if not counts.balanced or counts.stored > counts.completed:
            self.broken.append(f"counts: {counts}")

    def _look_at_output(self) -> None:
        try:
            raw = self.storage.read("progress.json")
            names = [info.name for info in self.storage.list("part-")]
            fresh = [name for name in names if name not in self._parts]
            gone = set(self._parts) - set(names)
            for name in fresh:
                data = self.storage.read(name)
                self._parts[name] = (len(data), hashlib.sha256(data).hexdigest())
        except PromptmillError:
            return
        if gone:
            self.broken.append(f"parts gone: {gone}")
        progress = msgspec.json.decode(raw, type=Progress)
        if not progress.balanced or progress.stored > progress.completed:
            self.broken.append(f"progress: {progress}")

    def changed_parts(self) -> list[str]:
        """Parts that are not any more what they were when first seen."""
        return [
            name
            for name, (_, digest) in self._parts.items()
            if hashlib.sha256(self.storage.read(name)).hexdigest() != digest
        ]


def leaks(world: World, secrets: tuple[str, ...]) -> list[str]:
    """Where a secret or a prompt can be read that should not be there."""
    found = []
    places: dict[str, Any] = {"logs": world.text_of_logs(), "ps": world.command_lines()}
    found += [f"{name}: {secret}" for name, text in places.items() for secret in secrets if secret in text]
    client = world.store.client
    for key in client.scan_iter(count=1000):
        name = key.decode()
        if name.startswith("rq:job:") or name.endswith(":results"):
            continue  # the job itself, and completions that wait for a part
        dump = client.dump(key) or b""
        found += [f"redis {name}: {secret}" for secret in secrets if secret.encode() in dump + key]
    return found
