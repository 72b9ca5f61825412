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
_ALL_FAULTS: Final = (sdk.ClientError, sdk.BotoCoreError, ResponseParserError)
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
        config = _config(connect_timeout_s, read_timeout_s)
        try:
            self._session = boto3.session.Session()
            self._client: S3Client = self._session.client("s3", config=config)
            # Signs a body by the digest in its headers, where the other would hash it once more.
            self._digests: S3Client = self._session.client(
                "s3", config=config.merge(Config(s3={"payload_signing_enabled": False}))
            )
        except (sdk.BotoCoreError, ValueError) as error:
            raise _setup_fault(error, name) from None

    def put(self, key: str, data: bytes, *, once: bool, sha256: str | None = None) -> float | None:
        """Write an object; with `once`, on the condition that there is none of that key.

        With `sha256`, the digest of the data in hex, nothing is hashed here: only for a store that is known
        to refuse a body with another digest. The digest is signed, so the body is bound by the signature.

        Returns:
            The server's clock as it answered, in seconds since the epoch, if it said.
        """
        more: Any = {"IfNoneMatch": "*"} if once else {}
        if sha256 is None:
            client = self._client
            more["ContentMD5"] = _base64(hashlib.md5(data, usedforsecurity=False).digest())
        else:
            client = self._digests
            more["ChecksumSHA256"] = _base64(bytes.fromhex(sha256))
        with self._translated("write", key):
            answer = client.put_object(Bucket=self.name, Key=key, Body=data, **more)
        self._check_genuine(answer, "ETag", "write", key)
        return _server_time(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))

    def get(self, key: str) -> bytes:
        """Read an object whole."""
        with self._translated("read", key):
            answer = self._client.get_object(Bucket=self.name, Key=key)
            data = answer["Body"].read()
        self._check_genuine(answer, "ETag", "read", key)
        return data

    def head(self, key: str) -> int:
        """Return an object's size. A refusal carries no words, so its kind can be wrong."""
        with self._translated("look for", key):
            answer = self._client.head_object(Bucket=self.name, Key=key)
        self._check_genuine(answer, "ETag", "look for", key)
        return answer["ContentLength"]

    def page(self, prefix: str, token: str | None = None, *, limit: int = 1000) -> Page:
        """List a page of the keys that start with `prefix`."""
        after: Any = {"ContinuationToken": token} if token else {}
        with self._translated("list", prefix):
            answer = self._client.list_objects_v2(Bucket=self.name, Prefix=prefix, MaxKeys=limit, **after)
        self._check_genuine(answer, "IsTruncated", "list", prefix)
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
        return self._refusal(fault, self._scrub(said), doing, key)

    def _refusal(self, fault: Fault, said: str, doing: str, key: str) -> S3FaultError:
        at = redact_url(self._client.meta.endpoint_url)
        return s3_error(fault, doing=doing, what=f"s3://{self.name}/{key}", at=at, said=said)

    def _check_genuine(self, answer: Any, field: str, doing: str, key: str) -> None:
        """Refuse a 200 that no S3 store gave: a log-in page, or an endpoint that is something else."""
        if field not in answer:
            said = f"the answer is none of an S3 store ({field} is missing): is AWS_ENDPOINT_URL right?"
            raise self._refusal(Fault.PASSING, said, doing, key)

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


def _config(connect_timeout_s: float, read_timeout_s: float) -> Config:
    return Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},
        # Many stores do not know the newer checksums: Content-MD5 they all check, and SHA-256 is sent where
        # a store was seen to check it.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="promptmill",
    )


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _setup_fault(error: Exception, bucket: str) -> S3FaultError:
    fault, said = _judge(error)
    if isinstance(error, ValueError):  # it quotes the endpoint, which may hold a password
        said = "AWS_ENDPOINT_URL, or the endpoint_url of the profile, is not a URL"
    return s3_error(fault, doing="set up", what=f"s3://{bucket}", at="", said=said)


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
