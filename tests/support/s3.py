"""An S3 API that tests talk to over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3


@dataclass(frozen=True)
class S3Server:
    """Where it is, and one bucket in it."""

    endpoint: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """What boto3 needs in its environment to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test-access-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret-key",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A plain boto3 client, for looking behind the product's back."""
        return boto3.client("s3", endpoint_url=self.endpoint)

    def url(self, prefix: str = "completions") -> str:
        """An output URL in the bucket."""
        return f"s3://{self.bucket}/{prefix}"
