"""One root for every error that promptmill raises on purpose.

An error's text is for the person who must act on it: what happened, to which prompt, server or key,
and what to do next. `exit_code` is what the command line tools exit with when the error ends them.
"""

from __future__ import annotations


class PromptmillError(Exception):
    """The root of all errors promptmill raises on purpose."""

    exit_code = 1


class UsageError(PromptmillError):
    """A flag, environment variable or combination of them cannot be used."""

    exit_code = 2


class InputError(PromptmillError):
    """A line of the input, or the input as a whole, cannot be used."""

    exit_code = 2


class RunMismatchError(PromptmillError):
    """A run of that name exists with another input or other settings."""

    exit_code = 2


class RunNotFoundError(PromptmillError):
    """No run of that name is known where it was looked for."""

    exit_code = 2


class StorageError(PromptmillError):
    """The output, a folder or an S3 prefix, could not be read or written.

    `transient` says whether waiting can cure it (a full disk, a store that is down) or a person must
    change something first (credentials, a missing bucket, a read-only folder).
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        """Keep the sentence and whether the same call may succeed later, unchanged."""
        super().__init__(message)
        self.transient = transient


class ObjectMissingError(StorageError):
    """The object that was to be read is not there."""


class StorageConflictError(StorageError):
    """An object that is written once exists already, with other bytes."""


class QueueError(PromptmillError):
    """Redis refused or could not be used as promptmill needs it."""


class UnsafeRedisError(QueueError):
    """Redis is set up in a way that loses data: an eviction policy, or too old a version."""

    exit_code = 2


class ServerError(PromptmillError):
    """An inference server could not be used at all."""
