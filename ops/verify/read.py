"""Reads an output back, part by part, and holds it against its manifest and its input."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from common.errors import ObjectMissingError
from common.parts import (
    DEAD_LETTERS,
    MANIFEST,
    PROGRESS,
    OutputError,
    decode_line,
    decode_record,
    iter_dead_letters,
    iter_lines,
    iter_parts,
    part_name,
    read_manifest,
)
from common.records import Fingerprint, Manifest, PartRow, Progress
from common.settings import RunSettings
from common.storage import Storage
from ops.verify.check import Checker, check_counts, check_numbering
from ops.verify.findings import SHOWN, Findings, Kind
from ops.verify.inputs import Input, OtherInputError, Tick, find_input, fingerprint_of, open_input
from ops.verify.report import Outcome, Report

PARTS: Final = "reading the parts"
AHEAD: Final = 2
_OWN: Final = frozenset({MANIFEST, PROGRESS, DEAD_LETTERS})


class UnusableManifestError(OutputError):
    """The manifest does not say what a run's manifest says."""


def verify(storage: Storage, *, source: str | None, here: Path, tick: Tick) -> Report:
    """Verify the run whose output is in `storage`.

    Args:
        storage: the run's output, `<output>/<run>`.
        source: the input to compare with; if `None`, a file of its name and content in `here`, if any.
        here: where that file may lie.
        tick: told of progress.

    Raises:
        RunNotFoundError: there is no run's output.
        StorageError: it cannot be read, or its manifest cannot be understood.
        InputError: the input cannot be read.
    """
    manifest = read_manifest(storage)
    settings, fingerprint = _settings(storage, manifest)
    found = source
    if found is None and (path := find_input(manifest, here)) is not None:
        found = str(path)
    return _Verification(storage, manifest, settings, fingerprint, tick).run(found)


def _settings(storage: Storage, manifest: Manifest) -> tuple[RunSettings, Fingerprint]:
    try:
        return msgspec.convert(manifest.settings, RunSettings), fingerprint_of(manifest)
    except msgspec.ValidationError as error:
        raise UnusableManifestError(
            f"{MANIFEST} in {storage.url} is not one that this version can check: {error}"
        ) from error


class _Verification:
    """One pass over one output."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        settings: RunSettings,
        fingerprint: Fingerprint,
        tick: Tick,
    ) -> None:
        self.storage = storage
        self.manifest = manifest
        self.settings = settings
        self.lines = fingerprint.lines
        self.samples = settings.generation.samples
        self.tick = tick
        self.notes: list[str] = []
        self.lost = 0

    def run(self, source: str | None) -> Report:
        findings = Findings()
        progress = self._progress(findings)
        with contextlib.ExitStack() as open_files:
            input_ = None
            if source is not None:
                try:
                    input_ = open_files.enter_context(open_input(source, self.manifest, self.tick))
                except OtherInputError as error:
                    findings.add(Kind.INPUT, str(error))
            return self._check(progress, input_, findings)

    def _check(self, progress: Progress | None, input_: Input | None, findings: Findings) -> Report:
        manifest, rows = self.manifest, self.manifest.parts
        expected = input_.expected(self.settings.generation, self.tick) if input_ else None
        checker = Checker(
            manifest.run,
            lines=self.lines,
            samples=self.samples,
            rows=rows,
            expected=expected,
            findings=findings,
        )
        finished = manifest.finished_at is not None and (progress is None or progress.state == "finished")
        if finished and progress is None:
            findings.add(Kind.MANIFEST, f"{PROGRESS} is missing, though the run is finished")
        check_numbering(rows, findings)
        begun = time.perf_counter()
        self._read_parts(checker, findings)
        seconds = time.perf_counter() - begun
        self._read_letters(checker, findings)
        unlisted = self._look_around(findings, finished=finished)
        missing, first = checker.missing()
        if finished and missing:
            self._name_missing(checker, missing, first, input_, findings)
        tallies = checker.tallies()
        check_counts(manifest, progress, tallies, self.lines * self.samples, findings, finished=finished)
        outcome = Outcome.WRONG if findings else Outcome.PROVEN if finished else Outcome.UNFINISHED
        return Report(
            run=manifest.run,
            output=self.storage.url,
            outcome=outcome,
            state=_state(progress, finished=finished),
            units=self.lines * self.samples,
            samples=self.samples,
            missing=missing,
            parts=len(rows),
            parts_unlisted=unlisted,
            input=input_.source.name if input_ else None,
            tallies=tallies,
            findings=findings.all(),
            notes=self.notes,
            seconds=round(seconds, 3),
        )

    def _progress(self, findings: Findings) -> Progress | None:
        try:
            return msgspec.json.decode(self.storage.read(PROGRESS), type=Progress)
        except ObjectMissingError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            findings.add(Kind.MANIFEST, f"{PROGRESS} cannot be understood: {error}")
            return None

    def _read_parts(self, checker: Checker, findings: Findings) -> None:
        rows = self.manifest.parts
        numbers = {row.key: number for number, row in enumerate(rows)}
        self.lost = sum(row.records for row in rows)

        def damaged(error: OutputError) -> None:
            findings.add(Kind.PART, str(error))

        self.tick(PARTS, 0, len(rows))
        for row, data in iter_parts(self.storage, rows, ahead=AHEAD, skip=damaged):
            number = numbers[row.key]
            try:
                self._read_part(row, data, number, checker)
            except OutputError as error:
                damaged(error)
            self.tick(PARTS, number + 1, len(rows))

    def _read_part(self, row: PartRow, data: bytes, part: int, checker: Checker) -> None:
        """Take a part's records; a line that is none of them costs that line alone."""
        at = 0
        for lines in iter_lines(data, name=row.key):
            self.lost -= len(lines)
            for line in lines:
                at += 1
                try:
                    record = decode_line(decode_record, line, key=row.key, number=at)
                except OutputError as error:
                    checker.findings.add(Kind.RECORD, str(error))
                    continue
                checker.record(record, part, at)
        if at != row.records:
            raise OutputError(f"{row.key} holds {at:,} records, the manifest says {row.records:,}")

    def _read_letters(self, checker: Checker, findings: Findings) -> None:
        try:
            for letter in iter_dead_letters(self.storage):
                checker.letter(letter)
        except OutputError as error:
            findings.add(Kind.DEAD_LETTER, str(error))

    def _look_around(self, findings: Findings, *, finished: bool) -> int:
        """Name what the manifest does not list; returns how many parts are newer than it."""
        listed = {row.key for row in self.manifest.parts}
        newer = 0
        for name in self._names():
            if name in listed or name in _OWN:
                continue
            if not finished and name == part_name(len(listed) + newer):
                newer += 1
            elif name.startswith("part-"):
                findings.add(Kind.UNLISTED, f"{name} is in the output, but not in the manifest")
            elif len(self.notes) < SHOWN:
                self.notes.append(f"{name} is no part of the run")
        return newer

    def _names(self) -> Iterator[str]:
        return (info.name for info in self.storage.list())

    def _name_missing(
        self, checker: Checker, total: int, first: list[int], input_: Input | None, findings: Findings
    ) -> None:
        ids = input_.ids(unit // self.samples for unit in first) if input_ else {}
        for unit in first:
            findings.add(Kind.MISSING, f"{checker.name(unit, ids)} has neither a record nor a dead letter")
        findings.count(Kind.MISSING, total - len(first))
        if self.lost > 0:
            self.notes.append(
                f"{self.lost:,} records of parts that are missing or damaged could not be read; "
                "prompts that ended nowhere may be among them"
            )


def _state(progress: Progress | None, *, finished: bool) -> str:
    if progress is None:
        return "not begun"
    # Between the last progress file and the last manifest the run is not over.
    return "ending" if progress.state == "finished" and not finished else progress.state
