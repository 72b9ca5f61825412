"""The data set's card: `README.md`, with the front matter that `datasets` reads. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from ops.export import schema
from ops.export.options import Format
from ops.export.tally import SHORT
from ops.export.tokens import TOLERANCE_SHARE, TOLERANCE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ops.export.options import ExportOptions
    from ops.export.select import Census
    from ops.export.sources import Source
    from ops.export.tally import Tally

CARD = "README.md"
FINGERPRINT_KEY = "promptmill_export"


class SplitInfo(msgspec.Struct, frozen=True):
    """One split as the card lists it."""

    name: str
    files: int
    rows: int
    bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a card tells."""

    fingerprint: str
    options: ExportOptions
    sources: list[Source]
    splits: list[SplitInfo]
    tally: Tally
    census: Census


def make_card(report: Report) -> bytes:
    """The card's bytes."""
    sections = [
        _front_matter(report),
        "# Completions made by promptmill\n",
        _sources(report),
        _contents(report),
        _lengths(report),
        *([_tokens(report)] if report.options.tokenize else []),
        _notes(report),
        _settings(report),
    ]
    return "\n".join(sections).encode()


def fingerprint_in(card: bytes) -> str | None:
    """The fingerprint of the export that wrote a card, if one did."""
    for line in card.split(b"\n---", 1)[0].splitlines():
        key, _, value = line.partition(b": ")
        if key.decode(errors="replace") == FINGERPRINT_KEY:
            return value.decode(errors="replace").strip('" ')
    return None


def _front_matter(report: Report) -> str:
    options = report.options
    files = [
        {"split": split.name, "path": f"{split.name}/*.{options.format.suffix}"} for split in report.splits
    ]
    columns = _columns(report)
    # Without something of its own here, `datasets` takes two exports to folders of one name for the same.
    info: dict[str, Any] = {"description": f"promptmill export {report.fingerprint}"}
    if columns is not None:
        info["features"] = schema.features(columns)
    info["splits"] = [
        {"name": split.name, "num_bytes": split.bytes, "num_examples": split.rows} for split in report.splits
    ]
    fields: dict[str, Any] = {
        "configs": [{"config_name": "default", "data_files": files}],
        "tags": ["promptmill", options.format.value],
        FINGERPRINT_KEY: report.fingerprint,
        "dataset_info": info,
    }
    # JSON is YAML, and its ASCII form has no character that a YAML reader refuses.
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---", ""])


def _columns(report: Report) -> dict[str, Any] | None:
    options = report.options
    if options.tokenize is not None:
        return schema.TOKENS
    if options.format in {Format.JSONL, Format.PARQUET}:
        return schema.ROW
    plain = options.format is Format.SHAREGPT and not report.tally.special_messages
    return schema.CONVERSATION if plain else None


def _sources(report: Report) -> str:
    rows = [
        [
            source.manifest.run,
            source.storage.url,
            len(source.manifest.parts),
            source.manifest.completed,
            source.digest,
        ]
        for source in report.sources
    ]
    return "## Sources\n\n" + _table(["run", "output", "parts", "completed", "SHA-256 over its parts"], rows)


def _contents(report: Report) -> str:
    census, tally = report.census, report.tally
    lines = [
        f"- {census.read} records were read; {tally.records} were taken, which make {tally.rows} rows.",
        f"- Verdicts taken: {', '.join(report.options.verdicts)}. Others left out: {census.other_verdict}.",
        f"- Dead letters (prompts without a completion): {census.dead}.",
    ]
    if len(report.sources) > 1:
        lines.append(
            f"- {census.superseded} records gave way to another run's for the same prompt: the verdict named "
            "first wins, among equals the run given last."
        )
    if census.doubles or census.lost_parts:
        lines.append(
            f"- Gaps were allowed: {census.doubles} doubles and {len(census.lost_parts)} parts left out."
        )
        lines += [f"  - {problem}" for problem in census.lost_parts]
    left_out = [
        [reason, count, ", ".join(tally.examples[reason])] for reason, count in sorted(tally.left_out.items())
    ]
    splits = [[split.name, split.files, split.rows, split.bytes] for split in report.splits]
    verdicts = [
        [verdict, count, tally.verdicts.get(verdict, 0)] for verdict, count in sorted(census.verdicts.items())
    ]
    return "\n".join(
        [
            "## Contents\n",
            *lines,
            "",
            _table(["split", "files", "rows", "bytes"], splits),
            _table(["verdict", "records read", "records taken"], verdicts),
            *([_table(["answers left out: they ...", "answers", "such as"], left_out)] if left_out else []),
        ]
    )


def _lengths(report: Report) -> str:
    tally = report.tally
    mean = tally.completion_tokens / tally.records if tally.records else 0
    text = (
        f"The server's `completion_tokens`, thinking included: {tally.completion_tokens} in all, "
        f"{mean:.1f} on average, {tally.longest} at most."
    )
    if tally.without_usage:
        text += (
            f" For {tally.without_usage} records the server gave none: these are estimated from their text."
        )
    finish = [[reason, count] for reason, count in sorted(tally.finish_reasons.items())]
    return "\n".join(
        [
            "## Lengths\n",
            text,
            "",
            _histogram("tokens", tally.lengths),
            _table(["finish reason", "records"], finish),
        ]
    )


def _tokens(report: Report) -> str:
    tally, options = report.tally, report.options
    limit = f"cut to {options.max_length} tokens" if options.max_length else "not cut"
    return f"""## Tokens

- Tokenizer: `{options.tokenize}`, with its own chat template; rows are {limit}.
- {tally.tokens} tokens, of which the masks cover {tally.masked}: exactly what the model produced, one row for
  each turn that it produced.
- Rows that were cut: {tally.truncated}. Answers left out as they lie wholly past the cut: {tally.too_long}.
- Rows with a mask sum under {SHORT}: {tally.short}.
- Rows whose words lost white space at their ends to the template: {tally.trimmed}. Rows whose text the
  tokenizer put into another Unicode form: {tally.normalised}.
- In every row the masked ids decode to the text, and their number is the answer's tokens with the template's
  own, and within {TOLERANCE_TOKENS} tokens or {TOLERANCE_SHARE:.0%} of the server's `completion_tokens` where
  it gave that.

Mask sums:

{_histogram("mask sum", tally.mask_sums)}"""


def _notes(report: Report) -> str:
    lines = ["## Notes\n"]
    others = report.tally.other_assistant_turns
    if others and not report.options.tokenize:
        lines.append(
            f"- {others} conversations hold earlier assistant turns that this run did not make. Train on the "
            "last turn alone, or export with --tokenize, whose masks cover only what the model produced.\n"
        )
    shuffled = (
        "not shuffled" if report.options.shuffle is None else f"shuffled with seed {report.options.shuffle}"
    )
    lines.append(f"- Rows are {shuffled}. A prompt's split follows from its id alone.\n")
    return "\n".join(lines)


def _settings(report: Report) -> str:
    blocks = [
        f"Run {source.manifest.run}:\n\n```json\n{_pretty(source.manifest.settings)}\n```\n"
        for source in report.sources
    ]
    return "\n".join(["## Settings\n", f"Export:\n\n```json\n{_pretty(report.options)}\n```\n", *blocks])


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _histogram(what: str, counts: Mapping[int, int]) -> str:
    rows = [[_range(bits), counts[bits]] for bits in sorted(counts)]
    return _table([what, "rows"], rows)


def _range(bits: int) -> str:
    return "0" if bits == 0 else "1" if bits == 1 else f"{1 << (bits - 1)} to {(1 << bits) - 1}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
        + "\n"
    )
