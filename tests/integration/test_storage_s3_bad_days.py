"""S3 over HTTP when the store or the way to it is unwell, or refuses."""

from __future__ import annotations

import time

import pytest
from support.faulty_s3 import Fault
from support.s3_storage import DATA, HASTE, OTHER, behind_its_back, hasty
from support.wait import patient

from common.errors import StorageConflictError, StorageError
from common.storage import ObjectInfo, open_storage, probe
from common.storage.patience import Patience
from common.storage.s3_storage import S3Storage

PASSING = [
    Fault(kind="status", status=500, times=3),
    Fault(kind="status", status=503, times=3),
    Fault(kind="status", status=429, times=3),
    Fault(kind="status", status=409, methods=("PUT",), times=3),
    Fault(kind="status", status=400, code="RequestTimeout", methods=("PUT",), times=3),
    Fault(kind="reset_before_body", times=3),
    Fault(kind="reset_after_body", times=3),
    Fault(kind="lost_answer", times=3),
    Fault(kind="lost_answer", methods=("PUT",), times=1),
    Fault(kind="silent_success", status=500, methods=("PUT",), times=1),
    Fault(kind="truncate_answer", methods=("GET",), times=2),
    Fault(kind="garbage", times=3),
    Fault(kind="slow", delay_s=0.05, times=2),
]


def assert_overcome(faulty, server, fault):
    """Each method gets through `fault`, and a create knows its own success from what was there before."""
    storage = hasty(server)
    faulty.inject(fault)
    assert storage.create("part-0", DATA) is True, "also if the answer to its own success was lost"
    faulty.inject(fault)
    assert storage.create("part-0", DATA) is False
    faulty.inject(fault)
    storage.replace("progress.json", DATA)
    faulty.inject(fault)
    assert storage.read("progress.json") == DATA
    faulty.inject(fault)
    assert storage.stat("part-0") == ObjectInfo("part-0", len(DATA))
    faulty.inject(fault)
    assert [info.name for info in storage.list()] == ["part-0", "progress.json"]
    assert behind_its_back(server) == DATA


def fault_name(fault):
    return f"{fault.kind}-{fault.status}-{'+'.join(fault.methods) or 'all'}"


class TestPassingFaults:
    @pytest.mark.parametrize("fault", PASSING, ids=fault_name)
    def test_passing_faults_end_as_success(self, s3_server, faulty_s3, fault):
        assert_overcome(faulty_s3, s3_server, fault)

    @pytest.mark.parametrize("s3_store", ["swift"], indirect=True)
    @pytest.mark.parametrize("fault", PASSING[7:10], ids=fault_name)
    def test_lost_answers_of_a_store_that_checks_signatures(self, s3_store, faulty_store, fault):
        assert_overcome(faulty_store, s3_store, fault)

    @pytest.mark.parametrize("kind", ["status", "reset_before_body", "reset_after_body", "garbage"])
    def test_a_store_that_stays_down_is_given_up_for_now(self, s3_server, faulty_s3, kind):
        storage = hasty(s3_server, patience=Patience(total_s=0.3, first_pause_s=0.01, longest_pause_s=0.05))
        faulty_s3.inject(Fault(kind=kind, status=503))
        uses = (
            lambda: storage.create("a", DATA),
            lambda: storage.replace("a", DATA),
            lambda: storage.read("a"),
            lambda: storage.stat("a"),
            lambda: list(storage.list()),
        )
        for use in uses:
            started = time.monotonic()
            with pytest.raises(StorageError, match=r"unwell.*\(tried \d+ times in \d+ s\)") as caught:
                use()
            assert caught.value.transient
            assert time.monotonic() - started < patient(3)
        faulty_s3.heal()
        assert storage.create("a", DATA) is True

    def test_a_store_that_is_not_there(self, s3_server, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:canary-secret@127.0.0.1:1")
        storage = hasty(s3_server, patience=Patience(total_s=0.1, first_pause_s=0.01))
        with pytest.raises(StorageError, match=r"at http://127\.0\.0\.1:1: no answer") as caught:
            storage.create("a", b"")
        assert caught.value.transient
        assert "canary" not in str(caught.value)

    def test_a_store_that_hangs_costs_the_timeout_and_no_more(self, s3_server, faulty_s3):
        storage = hasty(s3_server, read_timeout_s=0.3)
        faulty_s3.inject(Fault(kind="hang", delay_s=60, times=2))
        started = time.monotonic()
        assert storage.create("part-0", DATA) is True
        assert 0.6 <= time.monotonic() - started < patient(4)

    def test_a_slow_line_is_slow_and_not_broken(self, s3_server, faulty_s3):
        """The whole upload takes longer than any timeout; only each of its blocks must not."""
        large = bytes(24_000_000)
        storage = S3Storage(s3_server.bucket, "runs/one", patience=HASTE, connect_timeout_s=0.5)
        faulty_s3.inject(Fault(kind="slow_body", methods=("PUT",), delay_s=1.5))
        assert storage.create("part-0", large) is True
        assert [seen.method for seen in faulty_s3.requests] == ["HEAD", "PUT"]

    def test_an_object_that_appears_between_the_look_and_the_write(self, s3_store, faulty_store):
        """A second writer's object, met by the condition alone."""
        storage = hasty(s3_store)
        hasty(s3_store).create("same", DATA)
        hasty(s3_store).create("other", OTHER)
        faulty_store.inject(Fault(kind="status", status=404, methods=("HEAD",)))
        assert storage.create("same", DATA) is False
        with pytest.raises(StorageConflictError):
            storage.create("other", DATA)
        assert behind_its_back(s3_store, "other") == OTHER

    def test_faults_do_not_turn_a_conflict_into_a_success(self, s3_server, faulty_s3):
        hasty(s3_server).create("part-0", OTHER)
        faulty_s3.inject(Fault(kind="lost_answer", probability=0.5))
        for _ in range(5):
            with pytest.raises(StorageConflictError):
                hasty(s3_server).create("part-0", DATA)
        assert behind_its_back(s3_server) == OTHER


class TestRefusals:
    def refused(self, use, words):
        started = time.monotonic()
        with pytest.raises(StorageError, match=words) as caught:
            use()
        assert not caught.value.transient
        assert time.monotonic() - started < patient(3), "no patience with what only a person can change"
        assert caught.value.__cause__ is None, "the SDK's error holds headers"
        assert caught.value.__suppress_context__
        return str(caught.value)

    def test_no_credentials(self, s3_server, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        storage = hasty(s3_server)
        for use in (lambda: storage.create("a", b""), lambda: storage.stat("a"), lambda: storage.read("a")):
            self.refused(use, "credentials are missing, wrong or expired: set AWS_ACCESS_KEY_ID")
        assert not probe(storage).ok

    def test_a_profile_that_does_not_exist(self, s3_server, monkeypatch):
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        self.refused(lambda: open_storage(s3_server.url()), "nobody.*AWS_PROFILE")

    def test_an_endpoint_that_is_no_url(self, s3_server, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "user:canary-secret@127.0.0.1")
        text = self.refused(lambda: open_storage(s3_server.url()), "AWS_ENDPOINT_URL")
        assert "canary" not in text

    @pytest.mark.parametrize("bucket", ["no-such-bucket", "Not_A_Bucket!"])
    def test_a_bucket_that_is_not_there(self, s3_store, bucket):
        storage = S3Storage(bucket, "runs", patience=HASTE)
        uses = [
            lambda: storage.create("a", b""),
            lambda: storage.replace("a", b""),
            lambda: list(storage.list()),
        ]
        for use in uses:
            self.refused(use, "bucket")
        report = probe(storage)
        assert not report.ok
        assert not report.writable

    def test_a_bucket_that_vanishes(self, s3_store):
        storage = hasty(s3_store)
        storage.create("part-0", DATA)
        client = s3_store.client()
        client.delete_object(Bucket=s3_store.bucket, Key="runs/one/part-0")
        client.delete_bucket(Bucket=s3_store.bucket)
        self.refused(lambda: storage.create("part-1", DATA), "NoSuchBucket.*Create the bucket")
        self.refused(lambda: list(storage.list()), "NoSuchBucket.*Create the bucket")
        client.create_bucket(Bucket=s3_store.bucket)
        assert storage.create("part-1", DATA) is True

    @pytest.mark.parametrize(
        ("status", "code", "remedy"),
        [
            (403, "AccessDenied", "Grant s3:PutObject"),
            (403, "InvalidAccessKeyId", "credentials are missing, wrong or expired"),
            (403, "SignatureDoesNotMatch", "credentials are missing, wrong or expired"),
            (400, "ExpiredToken", "credentials are missing, wrong or expired"),
            (403, "RequestTimeTooSkewed", "clock is off"),
            (400, "AuthorizationHeaderMalformed", "AWS_DEFAULT_REGION"),
            (405, "MethodNotAllowed", "Look at the store's answer"),
        ],
    )
    def test_what_a_person_must_change(self, s3_server, faulty_s3, status, code, remedy):
        faulty_s3.inject(Fault(kind="status", status=status, code=code))
        storage = hasty(s3_server)
        text = self.refused(lambda: storage.create("part-0", DATA), remedy)
        assert "s3://" in text
        assert "runs/one/part-0" in text
        assert code in text
        report = probe(storage)
        assert not report.ok
        assert remedy in report.problems[0]
        faulty_s3.heal()
        assert storage.create("part-0", DATA) is True

    def test_a_certificate_that_nobody_vouches_for(self, s3_server, monkeypatch, self_signed_server):
        monkeypatch.setenv("AWS_ENDPOINT_URL", self_signed_server)
        self.refused(lambda: hasty(s3_server).create("a", b""), "AWS_CA_BUNDLE")

    def test_a_key_that_is_too_long(self, s3_server):
        with pytest.raises(StorageError, match="longer than the 1024 bytes"):
            hasty(s3_server).create("x" * 1020, b"")
