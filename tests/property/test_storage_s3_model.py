"""Whatever a store does with single requests, S3 storage overwrites nothing and reports only the truth."""

from __future__ import annotations

import hashlib
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StorageConflictError, StorageError
from common.storage.base import PROBE_FOLDER
from common.storage.patience import Patience
from common.storage.s3 import Page
from common.storage.s3_faults import Fault, s3_error
from common.storage.s3_storage import S3Storage

OUTCOMES = ("well", "fails before", "fails after")


class FakeBucket:
    """A bucket in memory that fails by a script: before a request has its effect, or after."""

    name = "bucket"

    def __init__(self, script, condition, *, checks=False):
        self.script = list(script)
        self.condition = condition
        self.checks = checks
        self.objects: dict[str, bytes] = {}
        self.history: list[tuple[str, bytes]] = []

    def _request(self, effect):
        outcome = self.script.pop(0) if self.script else "well"
        if outcome == "fails before":
            self._refuse(Fault.PASSING)
        result = effect()
        if outcome == "fails after":
            self._refuse(Fault.PASSING)
        return result

    def _refuse(self, fault):
        raise s3_error(fault, doing="use", what="s3://bucket", at="", said="so")

    def put(self, key, data, *, once, sha256=None):
        def effect():
            if sha256 and self.checks and hashlib.sha256(data).hexdigest() != sha256:
                self._refuse(Fault.DAMAGED)
            assert self.checks or sha256 is None or PROBE_FOLDER in key, "a digest that nobody checks"
            if once and self.condition == "refused":
                self._refuse(Fault.CONDITION_UNSUPPORTED)
            if once and self.condition == "kept" and key in self.objects:
                self._refuse(Fault.EXISTS)
            self.objects[key] = data
            if PROBE_FOLDER not in key:
                self.history.append((key, data))

        return self._request(effect)

    def head(self, key):
        return self._request(lambda: len(self.get_now(key)))

    def get(self, key):
        return self._request(lambda: self.get_now(key))

    def get_now(self, key):
        if key not in self.objects:
            self._refuse(Fault.MISSING)
        return self.objects[key]

    def page(self, prefix, token=None, *, limit=1000):
        return Page([(key, len(data)) for key, data in self.objects.items() if key.startswith(prefix)], None)


def storage_on(bucket):
    with patch("common.storage.s3_storage.S3Bucket", return_value=bucket):
        return S3Storage("bucket", "run", patience=Patience(total_s=60, first_pause_s=0))


@given(
    script=st.lists(st.sampled_from(OUTCOMES), max_size=12),
    condition=st.sampled_from(["kept", "ignored", "refused"]),
    checks=st.booleans(),
    calls=st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from([b"", b"1", b"2", b"12"]), st.booleans(), st.booleans()
        ),
        max_size=6,
    ),
)
def test_created_objects_keep_their_first_bytes_and_each_answer_is_true(script, condition, checks, calls):
    bucket = FakeBucket(script, condition, checks=checks)
    first: dict[str, bytes] = {}
    storage = storage_on(bucket)
    for name, data, anew, known in calls:
        storage = storage_on(bucket) if anew else storage
        sha256 = hashlib.sha256(data).hexdigest() if known else None
        if first.get(name, data) == data:
            assert storage.create(name, data, sha256=sha256) is (name not in first)
            first[name] = data
        else:
            with pytest.raises(StorageConflictError):
                storage.create(name, data, sha256=sha256)
        public = {key: data for key, data in bucket.objects.items() if PROBE_FOLDER not in key}
        assert public == {f"run/{name}": data for name, data in first.items()}
    for key, data in bucket.history:
        assert data == first[key.removeprefix("run/")], "never other bytes, not even for an instant"


@given(
    script=st.lists(st.sampled_from(OUTCOMES), max_size=12),
    versions=st.lists(st.binary(max_size=3), min_size=1),
)
def test_a_replaced_object_has_the_last_bytes(script, versions):
    bucket = FakeBucket(script, "kept")
    storage = storage_on(bucket)
    for version in versions:
        storage.replace("progress.json", version)
        assert storage.read("progress.json") == version


def test_an_object_that_comes_and_goes_is_no_success():
    """The condition says it is there, a read says it is not, for as long as patience lasts."""
    bucket = FakeBucket([], "kept")
    bucket.put = lambda *args, **kwargs: bucket._refuse(Fault.EXISTS)
    with patch("common.storage.s3_storage.S3Bucket", return_value=bucket):
        storage = S3Storage("bucket", "run", patience=Patience(total_s=0.01, first_pause_s=0.001))
    with pytest.raises(StorageError, match="comes and goes") as caught:
        storage.create("a", b"")
    assert caught.value.transient
