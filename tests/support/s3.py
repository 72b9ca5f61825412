"""An S3 API that tests talk to over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3


@dataclass(frozen=True)
class S3Server:
    """Where it is, and one bucket in it."""

    endpoint: str
    bucket: str
    access_key: str = "test-access-key"
    secret_key: str = "test-secret-key"

    @property
    def environment(self) -> dict[str, str]:
        """What boto3 needs in its environment to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A plain boto3 client, for looking behind the product's back."""
        return _client(self.endpoint, self.access_key, self.secret_key)

    def url(self, prefix: str = "completions") -> str:
        """An output URL in the bucket."""
        return f"s3://{self.bucket}/{prefix}"


@cache
def _client(endpoint: str, access_key: str, secret_key: str) -> Any:
    # A session of its own: the default one keeps the credentials that it saw first.
    return boto3.session.Session(access_key, secret_key).client("s3", endpoint_url=endpoint)
