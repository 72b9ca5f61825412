"""Which records an export takes, in the order of the parts, with every run accounted for as it is read."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ops.export.options import cuts_of
from ops.export.sources import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from common.parts import OutputError
    from ops.export.merge import Winners
    from ops.export.options import ExportOptions
    from ops.export.sources import Source

T = TypeVar("T")


class Head(msgspec.Struct, frozen=True):
    """The fields of a record that selection looks at; a whole `Record` does as well."""

    index: int
    id: str
    verdict: str
    sample: int = 0


HEADS: Final = msgspec.json.Decoder(Head)


class Census(msgspec.Struct, kw_only=True):
    """What was read and what became of it, over all runs."""

    read: int = 0
    verdicts: dict[str, int] = {}
    other_verdict: int = 0
    superseded: int = 0
    doubles: int = 0
    dead: int = 0
    lost_parts: list[str] = []


class Selection:
    """Decides about the records of one run as they come, and accounts for the run at its end."""

    def __init__(
        self, source: Source, options: ExportOptions, *, winners: Winners | None, census: Census
    ) -> None:
        self._source = source
        self._options = options
        self._winners = winners
        self._census = census
        self._ledger = Ledger(source)
        self._wanted = {str(verdict) for verdict in options.verdicts}
        self._verdicts: Counter[str] = Counter()

    def lose(self, error: OutputError) -> None:
        """Note a part that is left out."""
        self._census.lost_parts.append(str(error))

    @property
    def skip(self) -> Callable[[OutputError], None] | None:
        """What to do about a part that is missing or damaged: nothing to be done unless gaps are allowed."""
        return self.lose if self._options.allow_gaps else None

    def chosen(self, heads: Sequence[Any]) -> list[bool]:
        """Tell of each record, which has the fields of a `Head`, whether the export takes it.

        Raises:
            GapsError: one was there before, and gaps are not allowed.
        """
        verdicts = [str(head.verdict) for head in heads]
        self._verdicts.update(verdicts)
        return list(map(self._takes, heads, verdicts))

    def _takes(self, head: Any, verdict: str) -> bool:
        sample = head.sample or 0  # UNSET in a whole record
        unit = self._ledger.unit(head.index, sample)
        if not self._ledger.mark(unit):
            if not self._options.allow_gaps:
                raise self._ledger.double(head.id, head.index, sample)
            self._census.doubles += 1
            return False
        if verdict not in self._wanted:
            self._census.other_verdict += 1
            return False
        if self._winners is not None and not self._winners.stands(self._source, unit):
            self._census.superseded += 1
            return False
        return True

    def finish(self) -> None:
        """Account for the whole run.

        Raises:
            GapsError: prompts have neither record nor dead letter, and gaps are not allowed.
        """
        census = self._census
        for verdict, count in self._verdicts.items():
            census.verdicts[verdict] = census.verdicts.get(verdict, 0) + count
        census.read += self._verdicts.total()
        census.dead += self._ledger.account_for_dead()
        if not self._options.allow_gaps:
            self._ledger.check_gaps()


class Splitter:
    """Tells a prompt's split by a hash of its id: it never moves, and its samples stay together."""

    def __init__(self, split: Sequence[float]) -> None:
        self._cuts = cuts_of(tuple(split))

    def __call__(self, prompt_id: str) -> int:
        """The place of the prompt's split."""
        if not self._cuts:
            return 0
        digest = hashlib.blake2b(prompt_id.encode(), digest_size=8, person=b"split").digest()
        return bisect_right(self._cuts, int.from_bytes(digest, "big"))

    def divide(self, ids: Sequence[str], records: list[T]) -> Iterator[tuple[int, list[T]]]:
        """Yield the records of each split, given their prompts' ids."""
        if not self._cuts:
            yield 0, records
            return
        found: dict[int, list[T]] = {}
        for prompt_id, record in zip(ids, records, strict=True):
            found.setdefault(self(prompt_id), []).append(record)
        yield from sorted(found.items())
