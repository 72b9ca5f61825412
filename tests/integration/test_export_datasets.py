"""Exports load in Hugging Face's `datasets` without an option."""

from __future__ import annotations

import importlib.util
import json

import pytest
from support.export_runs import USAGE, mixed, record, write_run
from support.need import require

from ops.export.options import ExportOptions, Format
from ops.export.run import export


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    require(importlib.util.find_spec("datasets"), "the package datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        import datasets as package  # noqa: PLC0415 - an optional part, set up by the environment above

        package.disable_progress_bars()
        yield package


@pytest.mark.parametrize("shape", list(Format))
@pytest.mark.parametrize("count", [60, 3000])
def test_every_shape_loads_whole_in_its_splits(tmp_path, datasets, shape, count):
    make = mixed if shape in {Format.JSONL, Format.PARQUET} else (lambda index: record(index, usage=USAGE))
    records = [make(index) for index in range(count)]
    run = write_run(tmp_path, records, batch=500)
    export([str(run)], str(tmp_path / "out"), ExportOptions(format=shape, split=(0.7, 0.3), shard_size=700))
    found = datasets.load_dataset(str(tmp_path / "out"))
    assert set(found) == {"train", "validation"}
    assert sum(len(found[name]) for name in found) == count
    key = "custom_id" if shape is Format.OPENAI_BATCH else "id"
    assert {row for name in found for row in found[name][key]} == {one.id for one in records}


def test_columns_say_what_the_record_says(tmp_path, datasets):
    records = [mixed(index) for index in range(12)]
    run = write_run(tmp_path, records)
    for shape in (Format.JSONL, Format.PARQUET):
        export([str(run)], str(tmp_path / shape), ExportOptions(format=shape))
        rows = list(datasets.load_dataset(str(tmp_path / shape), split="train"))
        for row, one in zip(rows, records, strict=True):
            assert row["response"]["content"] == one.response.content
            assert json.loads(row["params"]) == one.params
        assert json.loads(rows[1]["metadata"]) == {"a": {"b": [1, "x"]}}
        assert rows[0]["metadata"] is None
        assert rows[2]["speculation"]["accept_length"] == 2.5
        assert rows[3]["messages"][0]["content"] == "in parts"
        assert json.loads(rows[3]["messages"][0]["content_parts"]) == [{"type": "text", "text": "in parts"}]
        assert rows[4]["turns"][0]["response"]["reasoning_content"] == "t"
        assert rows[4]["turns"][0]["verdict"] == "ok"
