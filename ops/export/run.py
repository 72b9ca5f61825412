"""One export from start to end: check, select, order, encode, write, judge, publish."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from contextlib import closing
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from common.errors import UsageError
from common.storage import open_storage
from ops.export.card import CARD, Report, SplitInfo, make_card
from ops.export.chat import Chat
from ops.export.chunks import SplitQueue
from ops.export.destination import WorkFolder, open_destination
from ops.export.encode import decoder_for, encode_all, usable_cores
from ops.export.errors import ExportError
from ops.export.merge import find_winners
from ops.export.options import ExportOptions, Format, check_options
from ops.export.select import HEADS, Census, Selection, Splitter
from ops.export.shards import Shards, write_durably
from ops.export.sources import Source, iter_source, iter_source_lines, open_source
from ops.export.spill import Buckets, Shuffler
from ops.export.tally import Tally, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ops.export.chunks import Chunk
    from ops.export.merge import Winners
    from ops.export.select import Head

_LAYOUT: Final = 2
"""Rises when the same options would give other bytes."""
_TEXT_PER_STORED: Final = 8
"""How much larger than its parts a run's text is taken to be, at most, when spilling it."""

Block: TypeAlias = "tuple[list[str], list[Any]]"
"""Some records, and before them their ids."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How an export ended."""

    url: str
    rows: int
    splits: list[SplitInfo]
    tally: Tally
    census: Census
    kept_shards: int = 0
    already: bool = False


def export(
    outputs: Sequence[str],
    destination: str,
    options: ExportOptions,
    *,
    workers: int | None = None,
    scratch: Path | None = None,
) -> Summary:
    """Export the outputs of one or more runs.

    Killed at any point, it publishes nothing, and goes on where it was when called again.

    Args:
        outputs: each the folder or S3 prefix of one run.
        destination: a folder or S3 prefix for the data set.
        options: what the data set is to be like.
        workers: processes that make token ids; as many as there are cores by default.
        scratch: where an export to S3 is made first.

    Raises:
        UsageError: the options, the tokenizer or the destination cannot be used.
        GapsError: a run is not whole, and gaps are not allowed.
        OutputError: a part is missing or damaged, and gaps are not allowed.
        ExportError: the data set would be unfit to learn from, or a record cannot be exported.
    """
    check_options(options)
    if options.format is Format.PARQUET:
        _require("pyarrow", "export")
    place = open_destination(destination, scratch=scratch)
    sources = [
        open_source(number, open_storage(url), allow_gaps=options.allow_gaps)
        for number, url in enumerate(outputs)
    ]
    fingerprint = _fingerprint(sources, options)
    there = place.published()
    if there == fingerprint:
        shutil.rmtree(place.work, ignore_errors=True)
        return Summary(url=place.url, rows=0, splits=[], tally=Tally(), census=Census(), already=True)
    if there is not None:
        raise UsageError(f"{place.url} holds another export: name a place that is empty")
    work = WorkFolder(place.work)
    try:
        work.resume(fingerprint)
        shards = Shards(work.path, options)
        kept = shards.kept
        census = _fill(shards, work.path, sources, options, workers=workers or usable_cores())
        report = Report(
            fingerprint=fingerprint,
            options=options,
            sources=sources,
            splits=_splits(shards, options),
            tally=shards.tally,
            census=census,
        )
        write_durably(shards.tree / CARD, make_card(report))
        place.publish(shards.tree)
        work.remove()
    except OSError as error:
        raise ExportError(
            f"the export could not be written in {work.path}: {error.strerror or error}; make room or put it "
            "right, and run it again: it goes on where it was"
        ) from error
    finally:
        work.close()
    return Summary(
        url=place.url,
        rows=report.tally.rows,
        splits=report.splits,
        tally=report.tally,
        census=census,
        kept_shards=kept,
    )


def _fill(
    shards: Shards, work: Path, sources: list[Source], options: ExportOptions, *, workers: int
) -> Census:
    """Make every shard that is not there yet, judge the whole, and return what was read."""
    census = Census()
    winners = None
    if len(sources) > 1:
        winners = find_winners(sources, options.verdicts, Buckets(work / "merge", _index_bytes(sources)))
    chunks = _chunks(_records(work, sources, options, winners, census), options, shards)
    _write(chunks, options, shards, workers)
    _judge(shards.tally, options, done=True)
    return census


def _judge(tally: Tally, options: ExportOptions, *, done: bool) -> None:
    check(tally, tokens=options.tokenize is not None, allow_short=options.allow_short, done=done)


def _write(chunks: Iterator[Chunk], options: ExportOptions, shards: Shards, workers: int) -> None:
    so_far = shards.tally
    try:
        with closing(encode_all(chunks, options, workers=workers)) as made:
            for encoded in made:
                so_far.add(encoded.tally)
                if shards.add(encoded):
                    _judge(so_far, options, done=False)
        shards.close()
    finally:
        shards.abandon()


def _records(
    work: Path, sources: list[Source], options: ExportOptions, winners: Winners | None, census: Census
) -> Iterator[Block]:
    """The selected records in their final order: as lines, or decoded where that is of use."""
    if options.shuffle is None and options.tokenize is None:
        for source in sources:
            selection = Selection(source, options, winners=winners, census=census)
            for records in iter_source(source, decoder_for(options), skip=selection.skip):
                taken = list(compress(records, selection.chosen(records)))
                yield [record.id for record in taken], taken
            selection.finish()
        return
    # Token ids are made in other processes and shuffling goes by way of files: both from whole lines.
    blocks = _lines(sources, options, winners, census)
    if options.shuffle is None:
        for heads, lines in blocks:
            yield [head.id for head in heads], lines
        return
    shuffler = Shuffler(Buckets(work / "shuffle", _text_bytes(sources)), options.shuffle)
    for heads, lines in blocks:
        for head, line in zip(heads, lines, strict=True):
            shuffler.add(f"{head.sample}:{head.id}", line)
    for line in shuffler.drain():
        yield [HEADS.decode(line).id], [line]


def _lines(
    sources: list[Source], options: ExportOptions, winners: Winners | None, census: Census
) -> Iterator[tuple[list[Head], list[bytes]]]:
    for source in sources:
        selection = Selection(source, options, winners=winners, census=census)
        for block in iter_source_lines(source, HEADS, skip=selection.skip):
            taken = list(compress(block, selection.chosen([head for _, head in block])))
            yield [head for _, head in taken], [line for line, _ in taken]
        selection.finish()


def _chunks(blocks: Iterator[Block], options: ExportOptions, shards: Shards) -> Iterator[Chunk]:
    """Group records by shard; those of finished shards are passed over."""
    splitter = Splitter(options.split)
    queues = [SplitQueue(split, options.shard_size, shards.has) for split in range(len(options.split))]
    for ids, records in blocks:
        for split, its in splitter.divide(ids, records):
            yield from queues[split].add(its)
    for queue in queues:
        yield from queue.rest()


def _splits(shards: Shards, options: ExportOptions) -> list[SplitInfo]:
    found = []
    for split, name in enumerate(options.split_names):
        notes = [note for _, note in shards.files(split)]
        rows = sum(note.tally.rows for note in notes)
        size = sum(note.bytes or 0 for note in notes)
        if rows:
            found.append(SplitInfo(name, len(notes), rows, size))
    return found


def _fingerprint(sources: Sequence[Source], options: ExportOptions) -> str:
    """What makes two exports the same. Whether a bad one may be published is no part of that."""
    inputs = [(source.digest, source.storage.url) for source in sources]
    parts = [_LAYOUT, msgspec.structs.replace(options, allow_short=False), inputs]
    if options.format is Format.PARQUET:
        parts.append(importlib.metadata.version("pyarrow"))
    if options.tokenize is not None:
        parts.append(Chat(options.tokenize).digest)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _text_bytes(sources: Sequence[Source]) -> int:
    sizes = (info.size for source in sources for info in source.storage.list("part-"))
    return sum(sizes) * _TEXT_PER_STORED


def _index_bytes(sources: Sequence[Source]) -> int:
    return sum(row.records for source in sources for row in source.manifest.parts) * 256


def _require(package: str, extra: str) -> None:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            f"this needs the optional part {package}: pip install 'promptmill[{extra}]'"
        ) from None
