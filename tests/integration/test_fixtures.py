"""The shared fixtures do what other tests rely on."""

from __future__ import annotations

import os
import signal

import boto3
import botocore.exceptions
import pytest
import redis
from support.need import require
from support.wait import wait_for


@pytest.mark.parametrize("key", ["one", "two"])
def test_each_test_gets_an_empty_redis(redis_url, key):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set(key, "left behind")


def test_a_redis_that_a_test_kills_is_back_for_the_next(redis_url, embedded_redis):
    os.kill(embedded_redis.pid, signal.SIGKILL)
    wait_for(lambda: not embedded_redis.alive, "the death is seen")
    assert embedded_redis.start() == redis_url


def test_boto3_reaches_the_bucket_by_environment_alone(s3_server):
    client = boto3.client("s3")
    client.put_object(Bucket=s3_server.bucket, Key="a", Body=b"1", IfNoneMatch="*")
    with pytest.raises(botocore.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=s3_server.bucket, Key="a", Body=b"2", IfNoneMatch="*")
    assert client.get_object(Bucket=s3_server.bucket, Key="a")["Body"].read() == b"1"


def test_a_missing_need_skips_on_a_laptop_and_fails_in_ci(monkeypatch):
    require(condition=True, reason="never")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="a browser"):
        require(condition=False, reason="a browser")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needed in CI: a browser"):
        require(condition=False, reason="a browser")
