"""Words and sentence patterns from which answers are made; the data is in `vocabulary.json`.

A pattern's `{n}` is a noun, `{v}` a verb, `{a}` an adjective, `{k}` a small number. Patterns avoid agreement
that a random word would break: nouns stand in one number and gender per language. Thinking borrows English's
words.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec


class Vocabulary(msgspec.Struct, frozen=True):
    """One language.

    Attributes:
        opener: how an answer begins; `{}` is a piece of the prompt.
        joint: what stands between sentences.
        articles: whether "a" becomes "an" before a vowel.
    """

    opener: str
    joint: str
    articles: bool
    patterns: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]


class _Stored(msgspec.Struct):
    """A language as the file has it: words in one string."""

    opener: str
    joint: str
    articles: bool
    patterns: tuple[str, ...]
    nouns: str
    verbs: str
    adjectives: str


@cache
def vocabularies() -> dict[str, Vocabulary]:
    """Every language by its code, and `thinking`."""
    text = files("ops.simulator").joinpath("vocabulary.json").read_bytes()
    stored = msgspec.json.decode(text, type=dict[str, _Stored])
    english = stored["en"]
    return {
        name: Vocabulary(
            opener=one.opener,
            joint=one.joint,
            articles=one.articles,
            patterns=one.patterns,
            nouns=tuple((one.nouns or english.nouns).split()),
            verbs=tuple((one.verbs or english.verbs).split()),
            adjectives=tuple((one.adjectives or english.adjectives).split()),
        )
        for name, one in stored.items()
    }
