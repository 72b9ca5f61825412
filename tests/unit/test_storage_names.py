"""Names and URLs of storages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.errors import StorageError, UsageError
from common.storage import open_storage
from common.storage.folder import FolderStorage
from common.storage.names import Place, check_name, is_listed, parse_storage_url
from common.storage.s3_storage import S3Storage


@pytest.mark.parametrize(
    ("url", "bucket", "path"),
    [
        ("s3://bucket/a/b", "bucket", "a/b"),
        ("s3://bucket/a/b/", "bucket", "a/b"),
        ("s3://bucket//a", "bucket", "a"),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket", "bucket", ""),
        ("S3://bucket/A", "bucket", "A"),
        ("s3://bucket/läufe/100%?#", "bucket", "läufe/100%?#"),
        ("file:///data/out", None, "/data/out"),
        ("file://localhost/data/my%20out", None, "/data/my out"),
        ("/data/out/", None, "/data/out"),
    ],
)
def test_a_url_names_a_bucket_and_prefix_or_a_folder(url, bucket, path):
    assert parse_storage_url(url) == Place(bucket, path)


def test_a_relative_folder_is_fixed_when_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = open_storage("out/run")
    monkeypatch.chdir("/")
    assert storage.url == str(tmp_path / "out" / "run")


def test_a_tilde_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse_storage_url("~/out").path == "/home/somebody/out"


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "a\0b",
        "gs://bucket/x",
        "https://bucket.s3.amazonaws.com/x",
        "s3://",
        "s3:///prefix",
        "s3://bucket/a/../b",
        "s3://bucket/a//b",
        "file://elsewhere/x",
        "file://",
        "~no-such-user-here/out",
    ],
)
def test_other_urls_are_usage_errors(url):
    with pytest.raises(UsageError):
        parse_storage_url(url)


@pytest.mark.parametrize(
    "url", ["s3://AKIACANARY:canary-secret@bucket/prefix", "s3://AKIACANARY:canary-secret/x"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as caught:
        open_storage(url)
    assert "canary" not in str(caught.value).lower()


def test_opening_touches_nothing(tmp_path):
    storage = open_storage(f"file://{tmp_path}/not/there")
    assert isinstance(storage, FolderStorage)
    assert list(storage.list()) == []
    assert storage.stat("x") is None
    assert list(tmp_path.iterdir()) == []


def test_opening_s3_asks_no_server(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "canary-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    storage = open_storage("s3://bucket/runs/one/")
    assert isinstance(storage, S3Storage)
    assert storage.url == "s3://bucket/runs/one"
    assert repr(storage) == "S3Storage('s3://bucket/runs/one')"


@pytest.mark.parametrize(
    "name", ["part-000000.jsonl.zst", "a/b/c", "ünïcode 名 🎉", ".private/x", "100%", "a..b", "-"]
)
def test_names_that_are_fine(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/",
        "./a",
        "a\nb",
        "a\0b",
        "\x7f",
        "\ud800",
        "é" * 513,
        "a/.promptmill-0123.tmp",
    ],
)
def test_names_that_would_climb_out_or_not_survive(name):
    with pytest.raises(StorageError, match="cannot name an object"):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "prefix", "listed"),
    [
        ("part-1", "", True),
        ("part-1", "part-", True),
        ("part-1", "dead", False),
        ("a/part-1", "", True),
        (".probe/x", "", False),
        (".probe/x", ".", True),
        (".probe/x", ".probe/", True),
        ("a/.b", "a", False),
        ("a/.b", "a/", False),
        ("a/.b", "a/.", True),
        ("a/.b/.c", "a/.b/", False),
        ("a.b", "a", True),
    ],
)
def test_private_names_are_listed_only_past_their_dot(name, prefix, listed):
    assert is_listed(name, prefix) is listed


def test_only_one_module_knows_boto3():
    root = Path(__file__).parents[2]
    sources = [path for name in ("common", "producer", "consumers") for path in (root / name).rglob("*.py")]
    imports = re.compile(r"^\s*(from|import) (boto3|botocore)\b", re.MULTILINE)
    found = [path.relative_to(root).as_posix() for path in sources if imports.search(path.read_text())]
    assert found == ["common/storage/s3.py"]
