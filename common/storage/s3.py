"""One S3 bucket, one request a call. The only module that imports boto3.

The SDK's own retries are off: after a lost answer it would send a create again and report the 412 that its
own success caused. What to do about a fault is decided in `s3_storage`.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import boto3
import msgspec
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError

from common.settings import redact_url
from common.storage.s3_faults import Fault, S3FaultError, classify, s3_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client

_CREDENTIAL_FAULTS: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.NoAuthTokenError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.LoginError,
    sdk.ProfileNotFound,
)
_PASSING_FAULTS: Final = (
    sdk.HTTPClientError,
    sdk.ConnectionError,
    sdk.IncompleteReadError,
    sdk.CredentialRetrievalError,
    sdk.MetadataRetrievalError,
    ResponseParserError,
)
_ALL_FAULTS: Final = (sdk.ClientError, sdk.BotoCoreError, ResponseParserError, ValueError)
_LONGEST_ANSWER: Final = 300


class Page(msgspec.Struct, frozen=True):
    """One page of a listing: keys with their sizes, and the token of the next page, if there is one."""

    objects: list[tuple[str, int]]
    next_token: str | None


class S3Bucket:
    """A bucket as boto3's own chain reaches it: credentials, region, endpoint, CA bundle, addressing.

    boto3 addresses by path wherever an endpoint is configured, unless the profile says otherwise.
    """

    def __init__(self, name: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        """Set up the client; the store is not asked yet. The timeouts are for each wait on the socket.

        Raises:
            S3FaultError: the configuration cannot be used, for example for an unknown profile.
        """
        self.name = name
        self._session = boto3.session.Session()
        with self._translated("use", ""):
            self._client: S3Client = self._session.client(
                "s3",
                config=Config(
                    connect_timeout=connect_timeout_s,
                    read_timeout=read_timeout_s,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    # Many stores do not know the newer checksums; Content-MD5, sent below, they all check.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    user_agent_extra="promptmill",
                ),
            )

    def put(self, key: str, data: bytes, *, once: bool) -> float | None:
        """Write an object; with `once`, on the condition that there is none of that key.

        Returns:
            The server's clock as it answered, in seconds since the epoch, if it said.
        """
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        condition: Any = {"IfNoneMatch": "*"} if once else {}
        with self._translated("write", key):
            answer = self._client.put_object(
                Bucket=self.name, Key=key, Body=data, ContentMD5=digest, **condition
            )
        return _server_time(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))

    def get(self, key: str) -> bytes:
        """Read an object whole."""
        with self._translated("read", key):
            return self._client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def head(self, key: str) -> int:
        """Return an object's size. A refusal carries no words, so its kind can be wrong."""
        with self._translated("look for", key):
            return self._client.head_object(Bucket=self.name, Key=key)["ContentLength"]

    def page(self, prefix: str, token: str | None = None, *, limit: int = 1000) -> Page:
        """List a page of the keys that start with `prefix`."""
        after: Any = {"ContinuationToken": token} if token else {}
        with self._translated("list", prefix):
            answer = self._client.list_objects_v2(Bucket=self.name, Prefix=prefix, MaxKeys=limit, **after)
        objects = [(item["Key"], item["Size"]) for item in answer.get("Contents", [])]
        return Page(objects, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None)

    @contextmanager
    def _translated(self, doing: str, key: str) -> Iterator[None]:
        """Turn the SDK's errors into ours, without their chain: they hold headers and URLs."""
        try:
            yield
        except _ALL_FAULTS as error:
            raise self._fault(error, doing, key) from None

    def _fault(self, error: Exception, doing: str, key: str) -> S3FaultError:
        fault, said = _judge(error)
        client = getattr(self, "_client", None)  # not there yet if it could not be set up
        at = redact_url(client.meta.endpoint_url) if client else ""
        return s3_error(fault, doing=doing, what=f"s3://{self.name}/{key}", at=at, said=self._scrub(said))

    def _scrub(self, text: str) -> str:
        """Take out whatever of the credentials a store echoed."""
        try:
            credentials = self._session.get_credentials()
            frozen = credentials.get_frozen_credentials() if credentials else None
        except sdk.BotoCoreError:
            return "no more is known, for the credentials cannot be had"
        for secret in (frozen.access_key, frozen.secret_key, frozen.token) if frozen else ():
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())[:_LONGEST_ANSWER].rstrip(".: ")


def _judge(error: Exception) -> tuple[Fault, str]:
    """The kind of an SDK error, and the store's or the SDK's words for it."""
    if isinstance(error, sdk.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        answer = error.response.get("Error", {})
        code, message = answer.get("Code", ""), answer.get("Message", "")
        return classify(status, code), f"the store answered {status} {code}: {message}"
    kind = type(error).__name__
    if isinstance(error, _CREDENTIAL_FAULTS):
        return Fault.CREDENTIALS, str(error)
    if isinstance(error, sdk.SSLError) and _is_distrust(error):
        return Fault.CERTIFICATE, kind
    if isinstance(error, _PASSING_FAULTS):
        return Fault.PASSING, f"no answer ({kind})"
    return Fault.OTHER, f"{kind}: {error}"


def _is_distrust(error: sdk.SSLError) -> bool:
    """Whether the certificate was refused, as against a connection that broke in its handshake."""
    cause: Any = error.kwargs.get("error")
    return any(
        isinstance(part, ssl.SSLCertVerificationError) for part in (cause, *getattr(cause, "args", ()))
    )


def _server_time(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
