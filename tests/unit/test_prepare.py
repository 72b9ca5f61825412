"""Which differences make it another run."""

from __future__ import annotations

import msgspec
import pytest

from common.records import Fingerprint
from common.settings import ConsumerSettings, GenerationSettings, QualitySettings, RunSettings
from producer.prepare import changed_settings, first_manifest, settings_of

SETTINGS = RunSettings(
    run="r", output="/o", input_name="p", fingerprint=Fingerprint("0" * 64, 1, 1), created_at="then"
)


def changed(**fields):
    return changed_settings(SETTINGS, msgspec.structs.replace(SETTINGS, **fields))


@pytest.mark.parametrize("field", GenerationSettings.__struct_fields__)
def test_every_setting_that_shapes_the_data_is_compared_and_named(field):
    other = {
        "model": "m",
        "system": "s",
        "stop": ["x"],
        "extra_body": {"a": 1},
        "regenerate": "all",
        "thinking": False,
    }.get(field, 3)
    generation = msgspec.structs.replace(GenerationSettings(), **{field: other})
    (said,) = changed(generation=generation)
    was = getattr(GenerationSettings(), field)
    assert said == f"{field} was {was!r}, now {other!r}"


def test_what_does_not_shape_the_data_may_change():
    assert (
        changed(
            created_at="now",
            quality=QualitySettings(limit=0.5),
            consumer=ConsumerSettings(concurrency=7, request_timeout=5.0),
            batch_size=7,
            high_water=7,
        )
        == []
    )


def test_lines_that_are_skipped_or_not_make_another_set():
    assert changed(skip_invalid=True) == ["skip_invalid was False, now True"]


def test_a_manifest_gives_the_settings_back():
    assert settings_of(first_manifest(SETTINGS)) == SETTINGS
    assert (
        settings_of(
            msgspec.json.decode(
                msgspec.json.encode(first_manifest(SETTINGS)), type=type(first_manifest(SETTINGS))
            )
        )
        == SETTINGS
    )
