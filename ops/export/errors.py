"""What ends an export."""

from __future__ import annotations

from common.errors import PromptmillError


class ExportError(PromptmillError):
    """An export stopped before anything was published; the text says at which record and why."""


class GapsError(ExportError):
    """A run's output lacks prompts, has some twice, or is not finished."""


class ShortAnswersError(ExportError):
    """Too many rows hold next to nothing to learn from."""
