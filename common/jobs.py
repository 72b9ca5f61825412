"""From the bytes of an RQ job to a prompt. Pure, and the only gate: nothing a job names is ever imported."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from common.errors import PromptmillError
from common.records import JOB_FUNCTION, SCHEMA, PromptJob

_ENVELOPE: Final = msgspec.json.Decoder(tuple[str, msgspec.Raw, msgspec.Raw, msgspec.Raw])
_PROMPT: Final = msgspec.json.Decoder(PromptJob)
_ZLIB: Final = 0x78

MAX_JOB_BYTES: Final = 48 * 1024 * 1024
"""The most bytes a job's data may have."""

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
"""The most bytes a line of the input may have: its job, with sampling parameters and names, fits above."""


class ForgedJobError(PromptmillError):
    """A job that promptmill's producer cannot have made."""


def encode_job(prompt: PromptJob) -> bytes:
    """The data of an RQ job: RQ's own four-part form, as JSON, not compressed."""
    return msgspec.json.encode((JOB_FUNCTION, None, [], prompt))


def decode_job(data: bytes) -> PromptJob:
    """The prompt in a job's data.

    RQ itself compresses the data when it saves a job again, as `rq requeue` does, so both forms are read.

    Raises:
        ForgedJobError: it names another function, is not JSON, is too large, or has an unknown version.
    """
    if not data:
        raise ForgedJobError(f"the job is larger than {MAX_JOB_BYTES} bytes, so it was not read")
    if data[0] == _ZLIB:
        data = _inflate(data)
    try:
        function, _, _, kwargs = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ForgedJobError("the job's data is not a JSON job: pickled jobs are never loaded") from None
    if function != JOB_FUNCTION:
        raise ForgedJobError(f"the job names the function {function[:100]!r}; only {JOB_FUNCTION!r} is run")
    try:
        prompt = _PROMPT.decode(kwargs)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ForgedJobError(f"the job's arguments are not a prompt: {error}") from None
    if prompt.v != SCHEMA:
        raise ForgedJobError(f"the job has version {prompt.v}; this consumer knows version {SCHEMA}")
    return prompt


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_JOB_BYTES)
    except zlib.error:
        raise ForgedJobError("the job's data is neither JSON nor RQ's compressed form of it") from None
    if inflater.unconsumed_tail:
        raise ForgedJobError(f"the job unpacks to more than {MAX_JOB_BYTES} bytes, so it was not read")
    return plain
