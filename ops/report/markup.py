"""HTML as values: a plain `str` is text and gets escaped, only `Html` is markup. Pure.

Whatever a model wrote may stand in a page: text cannot open a tag, close the one it is in, or turn the
reading direction of what follows it.
"""

from __future__ import annotations

from html import escape
from typing import Final

_BREAKS: Final = {0x09, 0x0A}
_REPLACEMENT: Final = 0xFFFD

_VISIBLE: Final[dict[int, str]] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in _BREAKS},
    0x7F: "\u2421",
    **{code: f"[U+{code:04X}]" for code in range(0x80, 0xA0)},
    # Embeddings, overrides and isolates can show text in another order than it is stored in.
    **{code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    # A lone surrogate has no UTF-8.
    **{code: chr(_REPLACEMENT) for code in range(0xD800, 0xE000)},
}

_VOID: Final = frozenset({"meta", "br", "hr"})


class Html(str):
    """Markup: text in it is escaped already."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with its control characters shown as signs; line breaks and tabs stay."""
    return text.translate(_VISIBLE)


def text(value: str) -> Html:
    """A text as markup that shows it."""
    return value if isinstance(value, Html) else Html(escape(visible(value)))


def join(*children: str) -> Html:
    """Children one after the other."""
    return Html("".join(text(child) for child in children))


def el(name: str, /, *children: str, **attributes: str | float | None) -> Html:
    """An element. `class_` is written `class`, `aria_label` is `aria-label`; `None` leaves one out.

    An attribute of the value "" is written without one, such as `hidden`.
    """
    opening = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        word = key.rstrip("_").replace("_", "-")
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        opening.append(f'{word}="{escape(visible(shown))}"' if shown else word)
    start = f"<{' '.join(opening)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")
