"""A run before its first job: created, found again, or rebuilt from its output after Redis lost it."""

from __future__ import annotations

from typing import Any

import msgspec

from common.adopt import adopt_dead_letters, adopt_parts
from common.errors import RunMismatchError, RunNotFoundError
from common.log import get_logger
from common.parts import MANIFEST, read_manifest
from common.records import Manifest
from common.settings import GenerationSettings, RunSettings
from common.storage import Storage
from common.store.runs import RunStore
from producer.scan import describe_change

log = get_logger("producer")


def prepare_run(store: RunStore, storage: Storage, wanted: RunSettings) -> RunSettings:
    """See that the run is in Redis and its manifest in the output; returns the settings that stand.

    Raises:
        RunMismatchError: a run of that name has another input, or other generation settings.
        StorageError: the output cannot be read or written.
    """
    manifest = _manifest(storage)
    if manifest is not None:
        _check_same(settings_of(manifest), wanted)
        # Creation time and what does not change the data stay as they were.
        wanted = settings_of(manifest)
    known = wanted.run in store.runs()
    standing = store.create_run(wanted)
    _check_same(standing, wanted)
    if manifest is None:
        text = msgspec.json.encode(first_manifest(standing))
        storage.create(MANIFEST, msgspec.json.format(text, indent=1))
    elif not known:
        samples = standing.generation.samples
        parts = adopt_parts(store, storage, standing.run, samples)
        dead = adopt_dead_letters(store, storage, standing.run, samples)
        log.warning(
            "run_rebuilt", run=standing.run, parts=parts, dead_letters=dead, note="it was not in Redis"
        )
    return standing


def _manifest(storage: Storage) -> Manifest | None:
    try:
        return read_manifest(storage)
    except RunNotFoundError:
        return None


def settings_of(manifest: Manifest) -> RunSettings:
    """The settings that a manifest holds."""
    return msgspec.convert(manifest.settings, RunSettings)


def first_manifest(settings: RunSettings) -> Manifest:
    """The manifest of a run that has nothing yet."""
    return Manifest(
        run=settings.run,
        created_at=settings.created_at,
        settings=msgspec.to_builtins(settings),
        input={"name": settings.input_name, **msgspec.to_builtins(settings.fingerprint)},
    )


def _check_same(standing: RunSettings, wanted: RunSettings) -> None:
    if standing.fingerprint != wanted.fingerprint:
        raise RunMismatchError(
            f"run {standing.run} was made from another input. "
            f"{describe_change(standing.fingerprint, wanted.fingerprint)} "
            "Restore the file to go on with this run, or give the new one another --run name"
        )
    changes = changed_settings(standing, wanted)
    if changes:
        raise RunMismatchError(
            f"run {standing.run} was made with other settings: {'; '.join(changes)}. "
            "Use the same to go on with it, or another --run name"
        )


def changed_settings(standing: RunSettings, wanted: RunSettings) -> list[str]:
    """What differs of the settings that shape the data, as `temperature was 0.6, now 0.7`."""
    named: list[tuple[str, Any, Any]] = [
        (field, getattr(standing.generation, field), getattr(wanted.generation, field))
        for field in GenerationSettings.__struct_fields__
    ]
    named += [
        (field, getattr(standing, field), getattr(wanted, field))
        for field in ("skip_invalid", "order", "order_field")
    ]
    return [f"{field} was {was!r}, now {asked!r}" for field, was, asked in named if was != asked]
