"""Records into rows, chunk by chunk: in this process, or for token ids over all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Final

import msgspec

from common.parts import decode_record
from common.records import Record
from ops.export.chat import Chat
from ops.export.errors import ExportError
from ops.export.options import ExportOptions, Format
from ops.export.rows import Columnar, Lean, to_batch_line, to_conversation, to_row
from ops.export.tally import SHORT, Tally
from ops.export.tokens import tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

    from ops.export.chunks import Chunk


class Encoded(msgspec.Struct, frozen=True):
    """A chunk's rows in the form that a shard's writer takes, and their counts."""

    split: int
    shard: int
    rows: Any
    tally: Tally


def decoder_for(options: ExportOptions) -> msgspec.json.Decoder[Any]:
    """What reads lines for the wanted shape, no further than the shape needs."""
    return _DECODERS[options.format]


def encode_plain(chunk: Chunk, options: ExportOptions) -> Encoded:
    """Rows of text."""
    tally = Tally()
    read = decoder_for(options).decode
    records = [read(item) if isinstance(item, bytes) else item for item in chunk.records]
    lengths = tally.count_records(records)
    make = _SHAPES.get(options.format)
    rows = records if make is None else list(_made(make, records, tally))
    tally.count_rows(len(rows), short=sum(length < SHORT for length in lengths))
    return Encoded(chunk.split, chunk.shard, _for_writer(rows, options), tally)


def _made(make: Callable[[Any], Any], records: list[Any], tally: Tally) -> Iterator[Any]:
    for record in records:
        try:
            yield make(record)
        except ExportError as error:
            tally.leave_out(str(error), f"{record.run}/{record.id}")


def encode_tokens(chunk: Chunk, options: ExportOptions, chat: Chat) -> Encoded:
    """Rows of token ids; an answer that fails a check is counted, not written."""
    tally = Tally()
    rows: list[Any] = []
    records = [decode_record(item) for item in chunk.records]
    tally.count_records(records)
    for record in records:
        for outcome in tokenize(record, chat, options):
            row = outcome.row
            if row is None:
                if outcome.reason:
                    tally.leave_out(outcome.reason, outcome.name)
                else:
                    tally.too_long += 1
                continue
            tally.count_rows(1, short=row.masked < SHORT)
            tally.count_tokens(tokens=row.length, masked=row.masked, truncated=row.truncated)
            tally.trimmed += outcome.trimmed
            tally.normalised += outcome.normalised
            rows.append(row if options.format is Format.PARQUET else row.line())
    return Encoded(chunk.split, chunk.shard, _for_writer(rows, options), tally)


def _for_writer(rows: list[Any], options: ExportOptions) -> Any:
    """Rows as the writer of the wanted shape takes them.

    Tables are made of few rows at a time, whose text is still in the core's cache.
    """
    if options.format is not Format.PARQUET:
        return rows
    from ops.export import columns  # noqa: PLC0415 - pyarrow is an optional part

    return columns.record_table(rows) if options.tokenize is None else columns.token_table(rows)


def encode_all(
    chunks: Iterable[Chunk], options: ExportOptions, *, workers: int
) -> Generator[Encoded, None, None]:
    """Encode chunks and yield them in the same order.

    Token ids are made by `workers` processes, with a few chunks each under way: memory stays bounded.

    Raises:
        UsageError: the tokenizer cannot be used.
        ExportError: a process that makes token ids died.
    """
    if options.tokenize is None:
        for chunk in chunks:
            yield encode_plain(chunk, options)
    elif workers <= 1:
        chat = Chat(options.tokenize)
        for chunk in chunks:
            yield encode_tokens(chunk, options, chat)
    else:
        yield from _encode_in_processes(chunks, options, workers)


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_in_processes(chunks: Iterable[Chunk], options: ExportOptions, workers: int) -> Iterator[Encoded]:
    # A fresh interpreter each: forking a process with threads, ours or a tokenizer's, can hang the child.
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[Encoded]] = deque()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(options,))
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ExportError(
            "a process that makes token ids died, maybe for want of memory: run again with fewer --workers; "
            "it goes on where it was"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Worker(msgspec.Struct, frozen=True):
    options: ExportOptions
    chat: Any


_worker: list[_Worker] = []
"""What a worker process is set up with; empty in any other process."""


def _start(options: ExportOptions) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker[:] = [_Worker(options, Chat(options.tokenize or ""))]


def _work(chunk: Chunk) -> Encoded:
    return encode_tokens(chunk, _worker[0].options, _worker[0].chat)


_DECODERS: Final[dict[Format, msgspec.json.Decoder[Any]]] = {
    Format.JSONL: msgspec.json.Decoder(Lean),
    Format.PARQUET: msgspec.json.Decoder(Columnar),
    Format.SHAREGPT: msgspec.json.Decoder(Record),
    Format.OPENAI_BATCH: msgspec.json.Decoder(Record),
}
_SHAPES: Final[dict[Format, Callable[[Any], Any]]] = {
    Format.JSONL: to_row,
    Format.SHAREGPT: to_conversation,
    Format.OPENAI_BATCH: to_batch_line,
}
