"""The one gate between the bytes of a job and a prompt."""

from __future__ import annotations

import json
import pickle
import zlib

import msgspec
import pytest

from common.jobs import MAX_JOB_BYTES, ForgedJobError, decode_job, encode_job
from common.records import Message, PromptJob

JOB = PromptJob(
    index=7,
    id="p\u2028é",
    messages=[Message(role="user", content="Say\u0000 this \U0001f600")],
    params={"temperature": 0.1},
    metadata=msgspec.Raw(b'{"b":1.10,  "a":12345678901234567890}'),
    sample=2,
)


def test_a_job_comes_back_as_it_went_and_its_metadata_to_the_byte():
    back = decode_job(encode_job(JOB))
    assert bytes(back.metadata) == b'{"b":1.10,  "a":12345678901234567890}'
    assert msgspec.structs.replace(back, metadata=JOB.metadata) == JOB


def test_a_job_is_rqs_own_four_parts_and_names_the_one_function():
    assert json.loads(encode_job(JOB))[:3] == ["consumers.generate", None, []]


def test_a_job_that_rq_saved_again_is_read():
    assert decode_job(zlib.compress(encode_job(JOB))).id == JOB.id


def _with(**changes):
    return json.dumps(
        ["consumers.generate", None, [], {"index": 0, "id": "p", "messages": [], **changes}]
    ).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "larger than"),
        (pickle.dumps(("os.system", None, ["id"], {})), "pickled jobs are never loaded"),
        (json.dumps(["os.system", None, ["id"], {}]).encode(), "names the function 'os.system'"),
        (json.dumps(["consumers.generate", None, [], {}, 1]).encode(), "not a JSON job"),
        (json.dumps({"a": 1}).encode(), "not a JSON job"),
        (b"\xff\xfe", "not a JSON job"),
        (b"x\x9cnot zlib", "neither JSON nor"),
        (json.dumps(["consumers.generate", None, [], {"index": "x"}]).encode(), "are not a prompt"),
        (_with(messages="hello"), "are not a prompt"),
        (_with(v=2), "version 2"),
        (zlib.compress(b" " * (MAX_JOB_BYTES + 10)), "unpacks to more than"),
    ],
)
def test_anything_else_is_refused_with_the_reason(data, words):
    with pytest.raises(ForgedJobError, match=words):
        decode_job(data)


def test_a_very_long_function_name_is_cut_in_the_message():
    with pytest.raises(ForgedJobError) as caught:
        decode_job(json.dumps(["x" * 10_000, None, [], {}]).encode())
    assert len(str(caught.value)) < 300
