"""S3 over HTTP: the same promises as a folder, on stores of all kinds, and no secret told."""

from __future__ import annotations

import base64
import hashlib
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support.faulty_s3 import Fault
from support.s3_storage import DATA, OTHER, behind_its_back, hasty
from support.swift_s3 import ACCESS_KEY

from common.errors import ObjectMissingError, StorageConflictError, StorageError
from common.storage import CreateOnce, ObjectInfo, open_storage, probe, s3_probe
from common.storage.patience import Patience
from common.storage.s3_traits import NAME, Traits

DIGEST = hashlib.sha256(DATA).hexdigest()


class TestPromises:
    def test_an_object_is_created_once(self, s3_store):
        storage = open_storage(s3_store.url("runs/one"))
        assert storage.create("part-0", DATA) is True
        assert storage.create("part-0", DATA) is False
        for other in (OTHER, b"", DATA + b"more"):
            with pytest.raises(StorageConflictError, match="already with other bytes"):
                storage.create("part-0", other)
        assert behind_its_back(s3_store) == DATA

    def test_replace_read_and_stat(self, s3_store):
        storage = open_storage(s3_store.url("runs/one"))
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
    def test_prefixes_of_all_kinds(self, s3_store, prefix):
        storage = open_storage(f"s3://{s3_store.bucket}/{prefix}")
        names = ["a/10", "a/2", "b +%&.jsonl", "ünïcode 名 🎉"]
        for name in names:
            assert storage.create(name, name.encode()) is True
        storage.create(".private/x", b"")
        s3_store.client().put_object(
            Bucket=s3_store.bucket, Key="elsewhere/z" if prefix else ".z/z", Body=b""
        )
        if prefix:  # as a console makes one for a folder
            s3_store.client().put_object(Bucket=s3_store.bucket, Key=f"{prefix.strip('/')}/", Body=b"")
        assert [info.name for info in storage.list()] == names
        assert list(storage.list("a/")) == [ObjectInfo("a/10", 4), ObjectInfo("a/2", 3)]
        assert [info.name for info in storage.list(".private/")] == [".private/x"]
        assert [storage.read(name).decode() for name in names] == names

    def test_a_prefix_is_a_folder_and_not_the_start_of_a_name(self, s3_store):
        open_storage(s3_store.url("runs/one-more")).create("part-0", b"")
        assert list(open_storage(s3_store.url("runs/one")).list()) == []

    def test_listings_longer_than_a_page(self, s3_store, monkeypatch):
        storage = hasty(s3_store)
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

    def test_of_many_creators_at_least_one_wins_and_no_loser_thinks_it_did(self, s3_store):
        """Swift's condition is not atomic, so there more than one may be told that it won."""
        storages = [open_storage(s3_store.url("runs/one")) for _ in range(6)]

        def attempt(number):
            try:
                return storages[number].create("part-0", bytes([number]) * 100)
            except StorageConflictError:
                return False

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(attempt, range(6)))
        assert outcomes[behind_its_back(s3_store)[0]] is True

    def test_a_probe_tells_a_good_store(self, s3_store):
        report = probe(open_storage(s3_store.url("runs")))
        assert report.ok
        assert not report.warnings
        assert (report.writable, report.readable, report.listable) == (True, True, True)
        assert report.create_once is CreateOnce.ENFORCED
        assert report.clock_skew_s == pytest.approx(0, abs=30)
        assert report.latency_s is not None
        assert list(open_storage(s3_store.url("runs")).list()) == []

    def test_no_request_ever_deletes_and_each_names_bucket_and_key_in_its_path(self, s3_store, faulty_store):
        storage = hasty(s3_store)
        storage.create("part-0", DATA)
        storage.replace("progress.json", DATA)
        storage.read("part-0")
        list(storage.list())
        probe(storage)
        assert {seen.method for seen in faulty_store.requests} <= {"GET", "HEAD", "PUT"}
        assert all(seen.path.startswith(f"/{s3_store.bucket}") for seen in faulty_store.requests)


class TestStoresThatDiffer:
    def test_a_store_that_ignores_conditions_is_not_overwritten(self, s3_server, faulty_s3):
        faulty_s3.inject(Fault(kind="ignore_condition"))
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
    def test_a_store_that_refuses_conditions_is_written_to_without(self, s3_server, faulty_s3, status, code):
        faulty_s3.inject(Fault(kind="refuse_condition", status=status, code=code))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA) is True
        assert storage.create("part-0", DATA) is False
        assert storage.create("part-1", DATA) is True
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER)
        refused = [seen for seen in faulty_s3.requests if seen.fault]
        assert len(refused) == 1, "asked once, then remembered"
        assert probe(storage).create_once is CreateOnce.UNSUPPORTED

    @pytest.mark.parametrize("lists_too", [True, False])
    def test_without_the_right_to_list_403_stands_for_404(self, s3_server, faulty_s3, lists_too):
        """S3 answers 403 where an object is missing and the bucket may not be listed."""
        missing = [Fault(kind="status", status=403, methods=("HEAD",))]
        missing.append(Fault(kind="status", status=403, methods=("GET",), match="/part-"))
        if not lists_too:
            missing.append(Fault(kind="status", status=403, methods=("GET",), match="list-type"))
        storage = hasty(s3_server)
        faulty_s3.inject(*missing)
        assert storage.stat("part-0") is None
        with pytest.raises(ObjectMissingError, match="s3:ListBucket"):
            storage.read("part-0")
        assert storage.create("part-0", DATA) is True
        faulty_s3.heal()
        assert storage.read("part-0") == DATA
        faulty_s3.inject(missing[0], *missing[2:])
        assert storage.create("part-0", DATA) is False
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER)

    def test_an_object_that_is_listed_but_may_not_be_read_is_denied_and_not_missing(
        self, s3_server, faulty_s3
    ):
        storage = hasty(s3_server)
        storage.create("part-0", DATA)
        faulty_s3.inject(Fault(kind="status", status=403, match="/part-0"))
        with pytest.raises(StorageError, match=r"AccessDenied.*Grant s3:PutObject") as caught:
            storage.read("part-0")
        assert not isinstance(caught.value, ObjectMissingError)


class TestWhatAStoreDoesByItself:
    """A writer that gives a digest tries the store out, once, and leaves undone what the store does."""

    def test_what_is_seen(self, request, s3_store, faulty_store):
        storage = hasty(s3_store)
        for number in range(3):
            assert storage.create(f"part-{number}", DATA, sha256=DIGEST) is True
            assert behind_its_back(s3_store, f"part-{number}") == DATA
        checks = "swift" in request.node.callspec.id
        assert storage._traits == Traits(creates_once=True, checks_sha256=checks)
        tried = [seen.status for seen in faulty_store.requests if seen.path.endswith(NAME)]
        assert tried == [200, 412, 400 if checks else 200]
        assert {seen.method for seen in faulty_store.requests} == {"PUT"}, "nobody has to look first"
        again = hasty(s3_store)
        assert again.create("part-0", DATA, sha256=DIGEST) is False
        with pytest.raises(StorageConflictError):
            again.create("part-1", OTHER, sha256=hashlib.sha256(OTHER).hexdigest())
        assert again._traits == storage._traits

    @pytest.mark.parametrize("digest", [DIGEST, None])
    def test_a_part_that_is_damaged_on_the_way_is_refused_and_sent_again(
        self, swift_store, faulty_swift, digest
    ):
        storage = hasty(swift_store)
        storage.create("part-0", DATA, sha256=digest)
        faulty_swift.inject(Fault(kind="damaged_body", match="part-1", methods=("PUT",), times=2))
        assert storage.create("part-1", DATA, sha256=digest) is True
        assert [seen.status for seen in faulty_swift.requests if seen.fault] == [400, 400]
        assert behind_its_back(swift_store, "part-1") == DATA

    def test_the_digest_is_signed_and_nothing_else_is_made(self, swift_store):
        sent = []
        storage = hasty(swift_store)
        events = storage._bucket._digests.meta.events
        events.register("before-send.s3", lambda request, **_: sent.append(request) and None)
        storage.create("part-0", DATA, sha256=DIGEST)
        headers = sent[-1].headers
        assert headers["x-amz-checksum-sha256"] == base64.b64encode(bytes.fromhex(DIGEST))
        assert headers["X-Amz-Content-SHA256"] == b"UNSIGNED-PAYLOAD"
        assert b"x-amz-checksum-sha256" in headers["Authorization"]
        assert headers["If-None-Match"] == b"*"
        assert "Content-MD5" not in headers

    @pytest.mark.parametrize("kind", ["ignore_condition", "refuse_condition"])
    def test_a_store_without_conditions_is_looked_at_first(self, s3_server, faulty_s3, kind):
        faulty_s3.inject(Fault(kind=kind, status=501))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA, sha256=DIGEST) is True
        assert storage._traits == Traits()
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER, sha256=hashlib.sha256(OTHER).hexdigest())
        assert behind_its_back(s3_server) == DATA

    def test_a_store_that_forgets_conditions_overwrites_nothing(self, s3_server, faulty_s3):
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA, sha256=DIGEST) is True
        faulty_s3.inject(Fault(kind="refuse_condition", status=501))
        with pytest.raises(StorageConflictError):
            storage.create("part-0", OTHER, sha256=hashlib.sha256(OTHER).hexdigest())
        assert behind_its_back(s3_server) == DATA

    def test_a_store_that_does_not_answer_yet_is_asked_again_at_the_next_part(self, s3_server, faulty_s3):
        faulty_s3.inject(Fault(kind="status", status=503, match=NAME, times=1))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA, sha256=DIGEST) is True
        assert storage._traits is None
        assert storage.create("part-1", DATA, sha256=DIGEST) is True
        assert storage._traits == Traits(creates_once=True)

    @pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (403, "AccessDenied")])
    def test_a_store_that_refuses_the_trial_is_written_to_with_care(self, s3_server, faulty_s3, status, code):
        faulty_s3.inject(Fault(kind="status", status=status, code=code, match=NAME))
        storage = hasty(s3_server)
        assert storage.create("part-0", DATA, sha256=DIGEST) is True
        assert storage.create("part-0", DATA, sha256=DIGEST) is False
        assert storage._traits == Traits()
        assert storage._conditions is True


class TestProbesOfBadStores:
    def test_a_store_that_cannot_list(self, s3_server, faulty_s3):
        faulty_s3.inject(Fault(kind="garbage", match="list-type"))
        report = probe(hasty(s3_server, patience=Patience(total_s=0)))
        assert (report.writable, report.readable, report.listable) == (True, True, False)
        assert "none of an S3 store" in report.problems[0]

    def test_a_store_that_does_not_answer_is_waited_for_once(self, s3_server, faulty_s3):
        faulty_s3.inject(Fault(kind="reset_before_body"))
        report = probe(hasty(s3_server, patience=Patience(total_s=0)))
        assert (report.writable, report.readable, report.listable) == (False, False, False)
        assert len(report.problems) == 1
        assert len(faulty_s3.requests) == 1, "each further step would wait as long again"

    def test_a_store_whose_listings_lag_or_whose_bytes_differ(self, s3_server, monkeypatch):
        storage = hasty(s3_server)
        monkeypatch.setattr(storage, "list", lambda prefix="": iter(()))
        monkeypatch.setattr(storage, "read", lambda name: b"something else")
        report = probe(storage)
        assert (report.writable, report.readable, report.listable) == (True, False, False)
        assert "other bytes" in report.problems[0]
        assert "listings lag" in report.problems[1]


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

    def test_a_store_that_echoes_credentials_is_not_echoed(self, s3_server, faulty_s3, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "CANARY-KEY")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "CANARY-TOKEN")
        echo = "InvalidAccessKeyId CANARY-KEY CANARY-TOKEN"
        faulty_s3.inject(Fault(kind="status", status=403, code=echo))
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

    def test_the_sdk_does_not_retry_behind_our_back(self, s3_server, faulty_s3):
        faulty_s3.inject(Fault(kind="status", status=503))
        with pytest.raises(StorageError, match="tried 1 times"):
            hasty(s3_server, patience=Patience(total_s=0)).replace("a", b"")
        assert len(faulty_s3.requests) == 1

    def test_a_clock_that_is_off_is_noticed(self, s3_server, monkeypatch):
        storage = hasty(s3_server)
        slow = SimpleNamespace(time=lambda: time.time() - 300, monotonic=time.monotonic)
        monkeypatch.setattr(s3_probe, "time", slow)
        report = probe(storage)
        assert report.ok
        assert report.clock_skew_s == pytest.approx(300, abs=30)
        assert "clock" in report.warnings[0]
