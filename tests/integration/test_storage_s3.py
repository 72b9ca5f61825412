"""S3 over HTTP: the same promises as a folder, on stores that answer, refuse, stall and lie."""

from __future__ import annotations

import base64
import hashlib
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support.faulty_s3 import Fault, FaultyS3
from support.need import require
from support.s3 import S3Server
from support.swift_s3 import ACCESS_KEY, SECRET_KEY, interpreter, running_swift

from common.errors import ObjectMissingError, StorageConflictError, StorageError
from common.storage import CreateOnce, ObjectInfo, open_storage, probe, s3_probe
from common.storage.patience import Patience
from common.storage.s3_storage import S3Storage

HASTE = Patience(total_s=8.0, first_pause_s=0.01, longest_pause_s=0.05)
DATA = bytes(range(256)) * 64
OTHER = DATA[::-1]


@pytest.fixture(scope="session")
def swift(tmp_path_factory):
    require(interpreter(), "OpenStack Swift: pip install swift, or name a Python that has it")
    with running_swift(tmp_path_factory.mktemp("swift")) as url:
        yield url


@pytest.fixture(params=["moto", "swift"])
def store(request, s3_server, monkeypatch):
    """A store with a bucket, named by boto3's environment: one that is quick, one that checks all."""
    if request.param == "moto":
        return s3_server
    server = S3Server(request.getfixturevalue("swift"), s3_server.bucket, ACCESS_KEY, SECRET_KEY)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.client().create_bucket(Bucket=server.bucket)
    return server


@pytest.fixture
def faulty(store, monkeypatch):
    """A proxy before the store, named by boto3's environment in the store's place."""
    with FaultyS3(store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def faulty_moto(s3_server, monkeypatch):
    """The same before the quick store alone, where the store makes no difference."""
    with FaultyS3(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def hasty(server, *, prefix="runs/one", patience=HASTE, read_timeout_s=5.0):
    return S3Storage(server.bucket, prefix, patience=patience, read_timeout_s=read_timeout_s)


def behind_its_back(server, name="part-0", prefix="runs/one"):
    return server.client().get_object(Bucket=server.bucket, Key=f"{prefix}/{name}")["Body"].read()


class TestPromises:
    def test_an_object_is_created_once(self, store):
        storage = open_storage(store.url("runs/one"))
        assert storage.create("part-0", DATA) is True
        assert storage.create("part-0", DATA) is False
        for other in (OTHER, b"", DATA + b"more"):
            with pytest.raises(StorageConflictError, match="already with other bytes"):
                storage.create("part-0", other)
        assert behind_its_back(store) == DATA

    def test_replace_read_and_stat(self, store):
        storage = open_storage(store.url("runs/one"))
        storage.replace("progress.json", b"1")
        storage.replace("progress.json", b"22")
        assert storage.read("progress.json") == b"22"
        assert storage.stat("progress.json") == ObjectInfo("progress.json", 2)
        assert storage.create("empty", b"") is True
        assert storage.read("empty") == b""
        assert storage.stat("empty") == ObjectInfo("empty", 0)
        assert storage.stat("nothing") is None
        with pytest.raises(ObjectMissingError, match="nothing is not in"):
            storage.read("nothing")

    @pytest.mark.parametrize("prefix", ["", "runs/one", "runs/one/", "läufe/名 +%&/ü"])
    def test_prefixes_of_all_kinds(self, store, prefix):
        storage = open_storage(f"s3://{store.bucket}/{prefix}")
        names = ["a/10", "a/2", "b +%&.jsonl", "ünïcode 名 🎉"]
        for name in names:
            assert storage.create(name, name.encode()) is True
        storage.create(".private/x", b"")
        store.client().put_object(Bucket=store.bucket, Key="elsewhere/z" if prefix else ".z/z", Body=b"")
        assert [info.name for info in storage.list()] == names
        assert list(storage.list("a/")) == [ObjectInfo("a/10", 4), ObjectInfo("a/2", 3)]
        assert [info.name for info in storage.list(".private/")] == [".private/x"]
        assert [storage.read(name).decode() for name in names] == names

    def test_a_prefix_is_a_folder_and_not_the_start_of_a_name(self, store):
        open_storage(store.url("runs/one-more")).create("part-0", b"")
        assert list(open_storage(store.url("runs/one")).list()) == []

    def test_listings_longer_than_a_page(self, store, monkeypatch):
        storage = hasty(store)
        names = [f"part-{number:06d}" for number in range(11)]
        for name in names:
            storage.replace(name, b"")
        pages = []
        page = storage._bucket.page
        monkeypatch.setattr(
            storage._bucket, "page", lambda *args: pages.append(page(*args, limit=4)) or pages[-1]
        )
        assert [info.name for info in storage.list("part-")] == names
        assert [len(page.objects) for page in pages] == [4, 4, 3]

    def test_of_many_creators_at_least_one_wins_and_no_loser_thinks_it_did(self, store):
        """Swift's condition is not atomic, so there more than one may be told that it won."""
        storages = [open_storage(store.url("runs/one")) for _ in range(6)]

        def attempt(number):
            try:
                return storages[number].create("part-0", bytes([number]) * 100)
            except StorageConflictError:
                return False

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(attempt, range(6)))
        assert outcomes[behind_its_back(store)[0]] is True

    def test_a_probe_tells_a_good_store(self, store):
        report = probe(open_storage(store.url("runs")))
        assert report.ok
        assert not report.warnings
        assert (report.writable, report.readable, report.listable) == (True, True, True)
        assert report.create_once is CreateOnce.ENFORCED
        assert report.clock_skew_s == pytest.approx(0, abs=30)
        assert report.latency_s is not None
        assert list(open_storage(store.url("runs")).list()) == []

    def test_no_request_ever_deletes_and_each_names_bucket_and_key_in_its_path(self, store, faulty):
        storage = hasty(store)
        storage.create("part-0", DATA)
        storage.replace("progress.json", DATA)
        storage.read("part-0")
        list(storage.list())
        probe(storage)
        assert {seen.method for seen in faulty.requests} <= {"GET", "HEAD", "PUT"}
        assert all(seen.path.startswith(f"/{store.bucket}") for seen in faulty.requests)


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
    def test_passing_faults_end_as_success(self, s3_server, faulty_moto, fault):
        assert_overcome(faulty_moto, s3_server, fault)

    @pytest.mark.parametrize("store", ["swift"], indirect=True)
    @pytest.mark.parametrize("fault", PASSING[7:10], ids=fault_name)
    def test_lost_answers_of_a_store_that_checks_signatures(self, store, faulty, fault):
        assert_overcome(faulty, store, fault)

    @pytest.mark.parametrize("kind", ["status", "reset_before_body", "reset_after_body", "garbage"])
    def test_a_store_that_stays_down_is_given_up_for_now(self, s3_server, faulty_moto, kind):
        storage = hasty(s3_server, patience=Patience(total_s=0.3, first_pause_s=0.01, longest_pause_s=0.05))
        faulty_moto.inject(Fault(kind=kind, status=503))
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
            assert time.monotonic() - started < 3
        faulty_moto.heal()
        assert storage.create("a", DATA) is True

    def test_a_store_that_is_not_there(self, s3_server, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:canary-secret@127.0.0.1:1")
        storage = hasty(s3_server, patience=Patience(total_s=0.1, first_pause_s=0.01))
        with pytest.raises(StorageError, match=r"at http://127\.0\.0\.1:1: no answer") as caught:
            storage.create("a", b"")
        assert caught.value.transient
        assert "canary" not in str(caught.value)

    def test_a_store_that_hangs_costs_the_timeout_and_no_more(self, s3_server, faulty_moto):
        storage = hasty(s3_server, read_timeout_s=0.3)
        faulty_moto.inject(Fault(kind="hang", delay_s=5, times=2))
        started = time.monotonic()
        assert storage.create("part-0", DATA) is True
        assert 0.6 <= time.monotonic() - started < 4

    def test_an_object_that_appears_between_the_look_and_the_write(self, store, faulty):
        """A second writer's object, met by the condition alone."""
        storage = hasty(store)
        hasty(store).create("same", DATA)
        hasty(store).create("other", OTHER)
        faulty.inject(Fault(kind="status", status=404, methods=("HEAD",)))
        assert storage.create("same", DATA) is False
        with pytest.raises(StorageConflictError):
            storage.create("other", DATA)
        assert behind_its_back(store, "other") == OTHER

    def test_faults_do_not_turn_a_conflict_into_a_success(self, s3_server, faulty_moto):
        hasty(s3_server).create("part-0", OTHER)
        faulty_moto.inject(Fault(kind="lost_answer", probability=0.5))
        for _ in range(5):
            with pytest.raises(StorageConflictError):
                hasty(s3_server).create("part-0", DATA)
        assert behind_its_back(s3_server) == OTHER


class TestStoresThatDiffer:
    def test_a_store_that_ignores_conditions_is_not_overwritten(self, s3_server, faulty_moto):
        faulty_moto.inject(Fault(kind="ignore_condition"))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA) is True
        assert storage.create("part-0", DATA) is False
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER)
        assert behind_its_back(s3_server) == DATA
        report = probe(storage)
        assert report.ok
        assert report.create_once is CreateOnce.IGNORED
        assert "If-None-Match" in report.warnings[0]

    @pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "NotImplemented")])
    def test_a_store_that_refuses_conditions_is_written_to_without(
        self, s3_server, faulty_moto, status, code
    ):
        faulty_moto.inject(Fault(kind="refuse_condition", status=status, code=code))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA) is True
        assert storage.create("part-0", DATA) is False
        assert storage.create("part-1", DATA) is True
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER)
        refused = [seen for seen in faulty_moto.requests if seen.fault]
        assert len(refused) == 1, "asked once, then remembered"
        assert probe(storage).create_once is CreateOnce.UNSUPPORTED

    @pytest.mark.parametrize("lists_too", [True, False])
    def test_without_the_right_to_list_403_stands_for_404(self, s3_server, faulty_moto, lists_too):
        """S3 answers 403 where an object is missing and the bucket may not be listed."""
        missing = [Fault(kind="status", status=403, methods=("HEAD",))]
        missing.append(Fault(kind="status", status=403, methods=("GET",), match="/part-"))
        if not lists_too:
            missing.append(Fault(kind="status", status=403, methods=("GET",), match="list-type"))
        storage = hasty(s3_server)
        faulty_moto.inject(*missing)
        assert storage.stat("part-0") is None
        with pytest.raises(ObjectMissingError, match="s3:ListBucket"):
            storage.read("part-0")
        assert storage.create("part-0", DATA) is True
        faulty_moto.heal()
        assert storage.read("part-0") == DATA
        faulty_moto.inject(missing[0], *missing[2:])
        assert storage.create("part-0", DATA) is False
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER)

    def test_an_object_that_is_listed_but_may_not_be_read_is_denied_and_not_missing(
        self, s3_server, faulty_moto
    ):
        storage = hasty(s3_server)
        storage.create("part-0", DATA)
        faulty_moto.inject(Fault(kind="status", status=403, match="/part-0"))
        with pytest.raises(StorageError, match=r"AccessDenied.*Grant s3:PutObject") as caught:
            storage.read("part-0")
        assert not isinstance(caught.value, ObjectMissingError)


class TestRefusals:
    def refused(self, use, words):
        started = time.monotonic()
        with pytest.raises(StorageError, match=words) as caught:
            use()
        assert not caught.value.transient
        assert time.monotonic() - started < 3, "no patience with what only a person can change"
        assert caught.value.__suppress_context__, "the SDK's error holds headers"
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
    def test_a_bucket_that_is_not_there(self, store, bucket):
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

    def test_a_bucket_that_vanishes(self, store):
        storage = hasty(store)
        storage.create("part-0", DATA)
        client = store.client()
        client.delete_object(Bucket=store.bucket, Key="runs/one/part-0")
        client.delete_bucket(Bucket=store.bucket)
        self.refused(lambda: storage.create("part-1", DATA), "NoSuchBucket.*Create the bucket")
        self.refused(lambda: list(storage.list()), "NoSuchBucket.*Create the bucket")
        client.create_bucket(Bucket=store.bucket)
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
    def test_what_a_person_must_change(self, s3_server, faulty_moto, status, code, remedy):
        faulty_moto.inject(Fault(kind="status", status=status, code=code))
        storage = hasty(s3_server)
        text = self.refused(lambda: storage.create("part-0", DATA), remedy)
        assert "s3://" in text
        assert "runs/one/part-0" in text
        assert code in text
        report = probe(storage)
        assert not report.ok
        assert remedy in report.problems[0]
        faulty_moto.heal()
        assert storage.create("part-0", DATA) is True

    def test_a_key_that_is_too_long(self, s3_server):
        with pytest.raises(StorageError, match="longer than the 1024 bytes"):
            hasty(s3_server).create("x" * 1020, b"")


class TestSecrets:
    def test_wrong_credentials_are_named_and_not_shown(self, swift, s3_server, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", swift)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
        storage = hasty(s3_server)
        uses = (
            lambda: storage.create("a", b""),
            lambda: storage.replace("a", b""),
            lambda: storage.read("a"),
            lambda: storage.stat("a"),
            lambda: list(storage.list()),
        )
        for use in uses:
            with pytest.raises(StorageError, match=r"SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY") as caught:
                use()
            assert not caught.value.transient
            assert "canary" not in "".join(traceback.format_exception(caught.value))
            assert ACCESS_KEY not in "".join(traceback.format_exception(caught.value))

    def test_a_store_that_echoes_credentials_is_not_echoed(self, s3_server, faulty_moto, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "CANARY-KEY")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "CANARY-TOKEN")
        echo = "InvalidAccessKeyId CANARY-KEY CANARY-TOKEN"
        faulty_moto.inject(Fault(kind="status", status=403, code=echo))
        storage = hasty(s3_server)
        with pytest.raises(StorageError, match=r"InvalidAccessKeyId \*\*\*") as caught:
            storage.replace("a", b"")
        assert "CANARY" not in "".join(traceback.format_exception(caught.value))
        assert "CANARY" not in repr(storage) + storage.url + str(probe(storage))


class TestOnTheWire:
    def test_uploads_carry_a_digest_that_every_store_checks_and_no_newer_one(self, s3_server, monkeypatch):
        sent = []
        storage = hasty(s3_server)
        events = storage._bucket._client.meta.events
        events.register("before-send.s3", lambda request, **_: sent.append(request) and None)
        storage.create("part-0", DATA)
        storage.read("part-0")
        put = next(request for request in sent if request.method == "PUT")
        assert put.headers["Content-MD5"] == base64.b64encode(hashlib.md5(DATA).digest())
        assert put.headers["If-None-Match"] == b"*"
        names = {name.lower() for request in sent for name in request.headers}
        assert not [name for name in names if "checksum" in name or "trailer" in name]

    def test_the_sdk_does_not_retry_behind_our_back(self, s3_server, faulty_moto):
        faulty_moto.inject(Fault(kind="status", status=503))
        with pytest.raises(StorageError, match="tried 1 times"):
            hasty(s3_server, patience=Patience(total_s=0)).replace("a", b"")
        assert len(faulty_moto.requests) == 1

    def test_a_clock_that_is_off_is_noticed(self, s3_server, monkeypatch):
        storage = hasty(s3_server)
        slow = SimpleNamespace(time=lambda: time.time() - 300, monotonic=time.monotonic)
        monkeypatch.setattr(s3_probe, "time", slow)
        report = probe(storage)
        assert report.ok
        assert report.clock_skew_s == pytest.approx(300, abs=30)
        assert "clock" in report.warnings[0]
