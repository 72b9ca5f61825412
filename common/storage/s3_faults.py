"""What an S3 store's answer means, and what a person can do about it. Pure: no network, no boto3."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from common.errors import StorageError


class Fault(StrEnum):
    """The kinds of refusal that are acted on differently."""

    MISSING = "missing"
    EXISTS = "exists"
    CONDITION_UNSUPPORTED = "condition_unsupported"
    PASSING = "passing"
    DAMAGED = "damaged"
    BUCKET = "bucket"
    DENIED = "denied"
    CREDENTIALS = "credentials"
    CLOCK = "clock"
    REGION = "region"
    CERTIFICATE = "certificate"
    OTHER = "other"


_BY_CODE: Final = {
    "NoSuchKey": Fault.MISSING,
    "NoSuchBucket": Fault.BUCKET,
    "InvalidBucketName": Fault.BUCKET,
    "PreconditionFailed": Fault.EXISTS,
    "NotImplemented": Fault.CONDITION_UNSUPPORTED,
    "InvalidAccessKeyId": Fault.CREDENTIALS,
    "SignatureDoesNotMatch": Fault.CREDENTIALS,
    "ExpiredToken": Fault.CREDENTIALS,
    "ExpiredTokenException": Fault.CREDENTIALS,
    "InvalidToken": Fault.CREDENTIALS,
    "TokenRefreshRequired": Fault.CREDENTIALS,
    "InvalidSecurity": Fault.CREDENTIALS,
    "NotSignedUp": Fault.CREDENTIALS,
    "RequestTimeTooSkewed": Fault.CLOCK,
    "RequestExpired": Fault.CLOCK,
    "PermanentRedirect": Fault.REGION,
    "AuthorizationHeaderMalformed": Fault.REGION,
    "IllegalLocationConstraintException": Fault.REGION,
    # Damage or delay on the way, though answered with a status of the 400s.
    "RequestTimeout": Fault.PASSING,
    "IncompleteBody": Fault.PASSING,
    "BadDigest": Fault.DAMAGED,
    "XAmzContentSHA256Mismatch": Fault.DAMAGED,
    "XAmzContentChecksumMismatch": Fault.DAMAGED,
    "SlowDown": Fault.PASSING,
    "RequestLimitExceeded": Fault.PASSING,
    "BandwidthLimitExceeded": Fault.PASSING,
}
_BY_STATUS: Final[dict[int, Fault]] = {
    HTTPStatus.MOVED_PERMANENTLY: Fault.REGION,
    HTTPStatus.TEMPORARY_REDIRECT: Fault.PASSING,
    HTTPStatus.UNAUTHORIZED: Fault.CREDENTIALS,
    HTTPStatus.FORBIDDEN: Fault.DENIED,
    HTTPStatus.NOT_FOUND: Fault.MISSING,
    HTTPStatus.REQUEST_TIMEOUT: Fault.PASSING,
    HTTPStatus.CONFLICT: Fault.PASSING,  # another conditional write of that name is under way: ask again
    HTTPStatus.PRECONDITION_FAILED: Fault.EXISTS,
    HTTPStatus.TOO_EARLY: Fault.PASSING,
    HTTPStatus.TOO_MANY_REQUESTS: Fault.PASSING,
    HTTPStatus.NOT_IMPLEMENTED: Fault.CONDITION_UNSUPPORTED,
}


def classify(status: int, code: str) -> Fault:
    """Tell what an answer means by its error code, then by its HTTP status."""
    fallback = Fault.PASSING if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Fault.OTHER
    return _BY_CODE.get(code) or _BY_STATUS.get(status, fallback)


_REMEDIES: Final = {
    Fault.MISSING: "Check the output and AWS_ENDPOINT_URL, and whether somebody removes objects there",
    Fault.EXISTS: "The name is taken",
    Fault.CONDITION_UNSUPPORTED: "The store cannot do this: use another store",
    Fault.PASSING: "The store or the way to it is unwell: nothing is lost, try again when it is back",
    Fault.DAMAGED: "The bytes were damaged on the way to the store, which kept none: they are sent again",
    Fault.BUCKET: "Create the bucket, or correct the output or AWS_ENDPOINT_URL",
    Fault.DENIED: "Grant s3:PutObject and s3:GetObject on these objects, and s3:ListBucket on the bucket",
    Fault.CREDENTIALS: (
        "The S3 credentials are missing, wrong or expired: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "AWS_PROFILE, or the machine's role"
    ),
    Fault.CLOCK: "This machine's clock is off by too much: set it (NTP)",
    Fault.REGION: "The bucket is in another region: set AWS_DEFAULT_REGION to it",
    Fault.CERTIFICATE: "The store's certificate is not trusted: set AWS_CA_BUNDLE to its authority's file",
    Fault.OTHER: "Look at the store's answer and its manual",
}


class S3FaultError(StorageError):
    """A refusal by the store, or by the way to it, with its kind."""

    def __init__(self, message: str, fault: Fault) -> None:
        """Keep the sentence and the kind; passing faults and damage are transient."""
        super().__init__(message, transient=fault in {Fault.PASSING, Fault.DAMAGED})
        self.fault = fault


def s3_error(fault: Fault, *, doing: str, what: str, at: str, said: str) -> S3FaultError:
    """Make the error for a fault met while `doing` ("write") something to `what`, a key's full URL.

    `at` is the endpoint, and `said` the store's own answer, both free of secrets.
    """
    place = f"{what} at {at}" if at else what
    return S3FaultError(f"cannot {doing} {place}: {said}. {_REMEDIES[fault]}", fault)
