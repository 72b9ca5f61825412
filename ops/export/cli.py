"""`ops export`."""

from __future__ import annotations

from pathlib import Path

import click

from common.errors import UsageError
from ops.export.options import DEFAULT_SHARD, ExportOptions, Format, parse_split, parse_verdicts
from ops.screen.words import counted, size


@click.command("export")
@click.argument("places", nargs=-1, required=True, metavar="RUN-OUTPUT... DEST")
@click.option(
    "--format",
    "shape",
    type=click.Choice([shape.value for shape in Format]),
    default=Format.JSONL.value,
    show_default=True,
    help="The shape of the rows.",
)
@click.option(
    "--verdict",
    "verdicts",
    default="ok",
    show_default=True,
    help="Verdicts to take, such as ok,truncated, or all. Where several runs answered a prompt, the verdict "
    "named first wins, among equals the run given last.",
)
@click.option(
    "--split", default="1", show_default=True, help="Shares of train/validation/test, such as 0.99/0.01."
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle; the same seed gives the same order.")
@click.option(
    "--shard-size",
    type=int,
    default=DEFAULT_SHARD,
    show_default=True,
    help="Records per file; 0 puts each split into one file.",
)
@click.option(
    "--tokenize",
    metavar="TOKENIZER",
    help="Make input_ids and loss_mask with this tokenizer, a folder or a name on the Hugging Face hub.",
)
@click.option(
    "--max-length", type=click.IntRange(1), metavar="TOKENS", help="Cut rows of token ids to this length."
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Processes that make token ids. [default: one a core]",
)
@click.option(
    "--scratch",
    type=click.Path(path_type=Path),
    help="Where an export to S3 is made first. [default: the system's temporary folder]",
)
@click.option(
    "--allow-gaps", is_flag=True, help="Export what there is of a run that is not finished or not whole."
)
@click.option("--allow-short", is_flag=True, help="Export though many answers have fewer than 16 tokens.")
def export_command(
    *,
    places: tuple[str, ...],
    shape: str,
    verdicts: str,
    split: str,
    shuffle: int | None,
    shard_size: int,
    tokenize: str | None,
    max_length: int | None,
    workers: int | None,
    scratch: Path | None,
    allow_gaps: bool,
    allow_short: bool,
) -> None:
    """Turn the output of one run or more into a data set for a trainer.

    RUN-OUTPUT is <output>/<run>, a folder or an s3:// URL; DEST is a folder that does not exist yet, or an
    s3:// prefix. Nothing appears at DEST until everything is there; run again after a kill, it goes on where
    it was.
    """
    from ops.export.run import export  # noqa: PLC0415 - the other commands have no need of what it imports

    *outputs, destination = places
    if not outputs:
        raise UsageError("give at least one RUN-OUTPUT, and DEST after it")
    options = ExportOptions(
        format=Format(shape),
        verdicts=parse_verdicts(verdicts),
        split=parse_split(split),
        shuffle=shuffle,
        shard_size=shard_size,
        tokenize=tokenize,
        max_length=max_length,
        allow_gaps=allow_gaps,
        allow_short=allow_short,
    )
    summary = export(outputs, destination, options, workers=workers, scratch=scratch)
    if summary.already:
        click.echo(f"{summary.url} holds this very export already.")
        return
    for part in summary.splits:
        click.echo(
            f"{part.name}: {counted(part.rows, 'row')} in {counted(part.files, 'file')}, {size(part.bytes)}"
        )
    left_out = summary.tally.records, summary.census.read
    click.echo(f"Took {left_out[0]:,} of {left_out[1]:,} records; the card is README.md in {summary.url}")
