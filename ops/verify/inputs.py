"""The input that an output is held against: found, compared with the manifest, and read."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from common.errors import InputError
from common.jobs import MAX_LINE_BYTES
from common.records import Fingerprint, Manifest
from common.settings import GenerationSettings
from ops.verify.expected import Expected
from producer.chunks import InputFile
from producer.scan import ScanReport, describe_change, read_prompts, scan
from producer.source import Source, open_source

READ: Final = "reading the input"
COMPARE: Final = "preparing the comparison"

Tick = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class OtherInputError(InputError):
    """The input is not the one that the run was made from."""


def fingerprint_of(manifest: Manifest) -> Fingerprint:
    """The input's fingerprint as the manifest has it.

    Raises:
        msgspec.ValidationError: it has none.
    """
    return msgspec.convert(manifest.input, Fingerprint)


def find_input(manifest: Manifest, folder: Path) -> Path | None:
    """A file in `folder` that has the name and the content of the run's input, or `None`."""
    name = str(manifest.input.get("name", ""))
    path = folder / name
    if not name or Path(name).name != name or not path.is_file():
        return None
    digest = hashlib.sha256()
    try:
        with InputFile(Source(name=name, path=str(path))) as file:
            if not file.compressed and file.state.size != manifest.input.get("bytes"):
                return None
            for _ in file.chunks(0, digest):
                pass
    except InputError:
        return None
    return path if digest.hexdigest() == manifest.input.get("sha256") else None


@contextlib.contextmanager
def open_input(name: str, manifest: Manifest, tick: Tick) -> Iterator[Input]:
    """Read an input once and see that it is the run's.

    Raises:
        OtherInputError: its fingerprint is another.
        InputError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="promptmill-verify-") as folder:
        spool = Path(folder)
        source = open_source(name, spool=spool)
        report = scan(
            source,
            spill=spool,
            progress=lambda done, size: tick(READ, done, size),
            keep_invalid=0,
            max_line=MAX_LINE_BYTES,
        )
        found, wanted = report.fingerprint, fingerprint_of(manifest)
        if found != wanted:
            raise OtherInputError(
                f"{name} is not the input of run {manifest.run}: its SHA-256 is {found.sha256}, the manifest "
                f"says {wanted.sha256}. {describe_change(wanted, found)}"
            )
        yield Input(source, report)


class Input(msgspec.Struct, frozen=True):
    """An input whose fingerprint is the run's."""

    source: Source
    report: ScanReport

    def expected(self, generation: GenerationSettings, tick: Tick) -> Expected:
        """What it says that each record must hold."""
        expected = Expected(generation)
        total = self.report.fingerprint.lines
        with read_prompts(self.source, self.report) as reader:
            for number, item in enumerate(reader):
                expected.add(item)
                if number % 1000 == 0:
                    tick(COMPARE, number, total)
        return expected

    def ids(self, indices: Iterable[int]) -> dict[int, str]:
        """The ids of a few prompts by index."""
        wanted = set(indices)
        found: dict[int, str] = {}
        if not wanted:
            return found
        with read_prompts(self.source, self.report) as reader:
            for item in reader:
                if item.index in wanted:
                    found[item.index] = item.id
                    if len(found) == len(wanted):
                        break
        return found
