"""A histogram of positive numbers over many orders of magnitude, in bounded memory. Pure."""

from __future__ import annotations

import math
from typing import Final

PER_OCTAVE: Final = 16
"""Bins between a number and its double: a quantile is right to 4.5 %."""

_LOWEST: Final = -20 * PER_OCTAVE
_HIGHEST: Final = 50 * PER_OCTAVE


class LogHistogram:
    """Counts numbers by their logarithm. Zero, and what is below a millionth, has a bin of its own."""

    def __init__(self) -> None:
        """Begin with no number."""
        self.bins: dict[int, int] = {}
        self.zeros = 0
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, value: float) -> None:
        """Count one number; what is not a finite number from 0 up is left out."""
        if not 0 <= value < math.inf:
            return
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        if value == 0:
            self.zeros += 1
            return
        place = math.floor(math.log2(value) * PER_OCTAVE)
        if not _LOWEST <= place <= _HIGHEST:
            place = min(max(place, _LOWEST), _HIGHEST)
        self.bins[place] = self.bins.get(place, 0) + 1

    @property
    def mean(self) -> float | None:
        """The mean; `None` of nothing."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The number that `share` of all are at most; `None` of nothing."""
        if not self.count:
            return None
        wanted = max(1, math.ceil(share * self.count))
        seen = self.zeros
        if seen >= wanted:
            return 0.0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= wanted:
                middle = 2 ** ((place + 0.5) / PER_OCTAVE)
                return min(max(middle, self.least), self.most)
        return self.most

    def coarse(self, merged: int) -> dict[int, int]:
        """Counts in bins of `merged` of ours: bin b is from 2**(b*merged/16) to the next."""
        found: dict[int, int] = {}
        for place, count in self.bins.items():
            found[place // merged] = found.get(place // merged, 0) + count
        return found
