"""What an earlier run still lacks, so that a new run makes only that.

A prompt need not be made again when every one of its samples has a record with a good verdict. Whatever else
happened to it (a dead letter, a bad verdict, a part that was lost, never read at all) it is missing. Prompts
are told apart by `id`, so the new run may have another input, order or settings.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from common.parts import iter_part_records, read_manifest
from common.records import Manifest, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from common.storage import Storage

BAD_VERDICTS: Final = frozenset(Verdict) - {Verdict.OK}


class _Head(msgspec.Struct, frozen=True):
    """The fields of a record that say whether a prompt is answered."""

    id: str
    verdict: Verdict
    sample: int = 0


class Missing:
    """The prompts that an earlier run does not answer: `prompt_id in missing`.

    Holds 16 bytes of hash for each prompt that is answered, not the ids themselves.
    """

    def __init__(self, answered: Iterable[tuple[str, int]], *, samples: int = 1) -> None:
        """Take the good records' ids and samples; an id needs `samples` distinct ones to be answered."""
        self._whole: set[bytes] = set()
        if samples == 1:
            self._whole.update(_digest(prompt_id) for prompt_id, _ in answered)
            return
        seen: dict[bytes, set[int]] = {}
        for prompt_id, sample in answered:
            key = _digest(prompt_id)
            if key in self._whole:
                continue
            had = seen.setdefault(key, set())
            had.add(sample)
            if len(had) >= samples:
                self._whole.add(key)
                del seen[key]

    def __contains__(self, prompt_id: str) -> bool:
        return _digest(prompt_id) not in self._whole

    @property
    def answered(self) -> int:
        """How many prompts need not be made again."""
        return len(self._whole)

    def filter(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield those of `ids` that are missing, in order."""
        return (prompt_id for prompt_id in ids if prompt_id in self)


def missing_from(storage: Storage, *, verdicts_bad: Iterable[Verdict] = BAD_VERDICTS) -> Missing:
    """Read an earlier run's output and tell which prompts it does not answer.

    Args:
        storage: The output of one run.
        verdicts_bad: A record with one of these verdicts does not count as an answer.

    Raises:
        RunNotFoundError: there is no run's output.
        OutputError: a part is missing or damaged.
    """
    manifest = read_manifest(storage)
    bad = frozenset(verdicts_bad)
    heads = iter_part_records(storage, manifest, msgspec.json.Decoder(_Head).decode)
    good = ((head.id, head.sample) for head in heads if head.verdict not in bad)
    return Missing(good, samples=samples_of(manifest))


def samples_of(manifest: Manifest) -> int:
    """How many completions each prompt of the run was to get."""
    generation = manifest.settings.get("generation")
    samples = generation.get("samples", 1) if isinstance(generation, dict) else 1
    return samples if isinstance(samples, int) and samples > 0 else 1


def _digest(prompt_id: str) -> bytes:
    return hashlib.blake2b(prompt_id.encode(), digest_size=16).digest()
