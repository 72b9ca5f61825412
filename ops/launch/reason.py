"""Why a process died, read from the end of its log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TAIL_BYTES: Final = 65_536
_LONGEST: Final = 500

_ERROR_LINE: Final = re.compile(
    r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit|OutOfMemory\w*)(?::\s.*|$)"  # the end of a traceback
    r"|.*\berror: (?:unrecognized arguments|argument|the following arguments).*"  # refused flags
    r"|.*(?:memory leak detected|watchdog timeout|out of memory|illegal memory access).*",
    re.IGNORECASE,
)
_PREFIX: Final = re.compile(r"^\[[^\]]*\]\s*")  # SGLang's time and rank


def reason(lines: Sequence[str], *, exit_code: int, secrets: Iterable[str] = ()) -> str:
    """The sentence for people: the last error a log names, or its last line, or the signal that ended it.

    Args:
        lines: The end of the log, only of the start that failed.
        exit_code: As the process ended; above 128 by a signal, as a shell says it.
        secrets: Texts that may not be repeated.
    """
    told = ""
    for line in reversed(lines):
        text = _PREFIX.sub("", line.strip())
        if text and _ERROR_LINE.fullmatch(text):
            told = text
            break
        told = told or text
    for secret in secrets:
        if secret:
            told = told.replace(secret, "***")
    how = f"exit code {exit_code}" if exit_code <= 128 else f"signal {exit_code - 128}"  # noqa: PLR2004  # a shell's rule
    return f"{told[:_LONGEST]} ({how})" if told else f"nothing in its log ({how})"
