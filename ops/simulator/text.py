"""Rivers of real-looking text, made once per language; an answer is a slice of one.

Slicing a long string costs microseconds whatever the answer's length, so the simulator can serve thousands of
full-size completions a second.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from ops.simulator.snippets import snippet
from ops.simulator.vocabulary import vocabularies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ops.simulator.vocabulary import Vocabulary

BYTES_PER_TOKEN: Final = 4.0
_SENTENCES: Final = 4_000
_WRAP: Final = 160_000
_CODE_SHARE: Final = 0.06
_LIST_SHARE: Final = 0.08

_BARE_ARTICLE: Final = re.compile(r"\b([Aa]) (?=[aeiou])")

_HEAD: Final = 240
_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_RUSSIAN: Final = re.compile("[\u0400-\u04ff]")
_STOP_WORDS: Final = {
    "de": frozenset(["der", "die", "das", "und", "ist", "wie", "ein", "eine", "nicht", "warum"]),
    "fr": frozenset(["le", "les", "est", "une", "des", "et", "pourquoi", "comment", "dans"]),
    "es": frozenset(["el", "los", "las", "que", "una", "por", "es", "y", "como"]),
}
_TELLING: Final = frozenset[str]().union(*_STOP_WORDS.values())


def tokens_in(text: str) -> int:
    """How many tokens the simulator says `text` has: a token is four bytes of UTF-8."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -int(-size // BYTES_PER_TOKEN)


def language_of(prompt: str) -> str:
    """The language in which to answer, by the script and a few telling words of the prompt's beginning."""
    head = prompt[:_HEAD]
    if not head.isascii():
        if _CHINESE.search(head):
            return "zh"
        if _RUSSIAN.search(head):
            return "ru"
    spoken = head.lower().split()
    if _TELLING.isdisjoint(spoken):
        return "en"
    words = set(spoken)
    best = max(_STOP_WORDS, key=lambda language: len(words & _STOP_WORDS[language]))
    return best if len(words & _STOP_WORDS[best]) > 1 else "en"


class River:
    """A long text with the offsets at which a passage may begin and end.

    Attributes:
        chars_per_token: characters of this language that the simulator counts as one token.
    """

    def __init__(self, blocks: list[str]) -> None:
        """Join the blocks; the beginning is repeated at the end, so that every start has a full length."""
        bounds = [0]
        for block in blocks:
            bounds.append(bounds[-1] + len(block))
        once = "".join(blocks)
        copies = -(-_WRAP // len(once))
        self._starts = len(blocks)
        self._bounds = [bound + copy * len(once) for copy in range(copies + 1) for bound in bounds[:-1]]
        self._text = once * (copies + 1)
        self.chars_per_token = BYTES_PER_TOKEN * len(once) / len(once.encode())

    def passage(self, draw: int, tokens: int) -> str:
        """About `tokens` tokens of whole sentences, beginning where `draw` says."""
        start = self._bounds[draw % self._starts]
        wanted = start + int(tokens * self.chars_per_token)
        found = bisect_left(self._bounds, wanted)
        end = self._bounds[min(found, len(self._bounds) - 1)]
        return self._text[start:end].rstrip()


@cache
def river(language: str) -> River:
    """The river of one language, or of `thinking`. The same in every process."""
    chooser = random.Random(f"promptmill {language}")  # noqa: S311 - text, not secrets
    vocabulary = vocabularies()[language]
    sentences = _sentences(chooser, vocabulary)
    blocks: list[str] = []
    left_in_paragraph = 5
    while len(blocks) < _SENTENCES:
        kind = chooser.random()
        if language != "thinking" and left_in_paragraph == 0 and kind < _CODE_SHARE:
            blocks.append(snippet(chooser) + "\n\n")
            continue
        if left_in_paragraph == 0 and kind < _CODE_SHARE + _LIST_SHARE:
            blocks.append(_bullets(chooser, sentences) + "\n\n")
            continue
        left_in_paragraph = left_in_paragraph - 1 if left_in_paragraph else chooser.randint(2, 6)
        blocks.append(next(sentences) + (vocabulary.joint if left_in_paragraph else "\n\n"))
    return River(blocks)


def warm_up() -> None:
    """Make every river now (half a second), so that no request waits for one."""
    for language in vocabularies():
        river(language)


def _sentences(chooser: random.Random, vocabulary: Vocabulary) -> Iterator[str]:
    """Sentences without end. Every pattern comes once before any comes again, so that neighbours differ."""
    while True:
        for pattern in chooser.sample(vocabulary.patterns, len(vocabulary.patterns)):
            yield _fill(chooser, vocabulary, pattern)


def _fill(chooser: random.Random, vocabulary: Vocabulary, pattern: str) -> str:
    """The pattern with words in its slots."""
    pools = {"{n}": vocabulary.nouns, "{v}": vocabulary.verbs, "{a}": vocabulary.adjectives}
    for slot, words in pools.items():
        for word in chooser.sample(words, pattern.count(slot)):
            pattern = pattern.replace(slot, word, 1)
    while "{k}" in pattern:
        pattern = pattern.replace("{k}", str(chooser.randint(2, 90)), 1)
    return _BARE_ARTICLE.sub(r"\1n ", pattern) if vocabulary.articles else pattern


def _bullets(chooser: random.Random, sentences: Iterator[str]) -> str:
    """A list of three to six sentences."""
    mark = chooser.choice(("- {}", "* {}", "{i}. {}"))
    lines = islice(sentences, chooser.randint(3, 6))
    return "\n".join(mark.replace("{i}", str(place)).format(line) for place, line in enumerate(lines, 1))
