"""What a store's answers mean, and how long to go on asking."""

from __future__ import annotations

import pytest

from common.errors import StorageError
from common.storage.patience import Patience, patiently
from common.storage.s3_faults import Fault, classify, s3_error


@pytest.mark.parametrize(
    ("status", "code", "fault"),
    [
        (404, "NoSuchKey", Fault.MISSING),
        (404, "404", Fault.MISSING),
        (404, "NoSuchBucket", Fault.BUCKET),
        (412, "PreconditionFailed", Fault.EXISTS),
        (412, "412", Fault.EXISTS),
        (409, "ConditionalRequestConflict", Fault.PASSING),
        (409, "OperationAborted", Fault.PASSING),
        (501, "NotImplemented", Fault.CONDITION_UNSUPPORTED),
        (400, "NotImplemented", Fault.CONDITION_UNSUPPORTED),
        (403, "AccessDenied", Fault.DENIED),
        (403, "403", Fault.DENIED),
        (403, "InvalidAccessKeyId", Fault.CREDENTIALS),
        (401, "Unauthorized", Fault.CREDENTIALS),
        (400, "ExpiredToken", Fault.CREDENTIALS),
        (403, "RequestTimeTooSkewed", Fault.CLOCK),
        (301, "PermanentRedirect", Fault.REGION),
        (400, "RequestTimeout", Fault.PASSING),
        (400, "BadDigest", Fault.DAMAGED),
        (400, "XAmzContentSHA256Mismatch", Fault.DAMAGED),
        (400, "XAmzContentChecksumMismatch", Fault.DAMAGED),
        (429, "TooManyRequests", Fault.PASSING),
        (500, "InternalError", Fault.PASSING),
        (503, "SlowDown", Fault.PASSING),
        (507, "InsufficientStorage", Fault.PASSING),
        (599, "", Fault.PASSING),
        (400, "InvalidArgument", Fault.OTHER),
        (405, "MethodNotAllowed", Fault.OTHER),
        (0, "", Fault.OTHER),
    ],
)
def test_an_answer_is_told_by_its_code_and_then_by_its_status(status, code, fault):
    assert classify(status, code) is fault


@pytest.mark.parametrize("fault", list(Fault))
def test_every_fault_has_a_remedy_and_only_passing_ones_are_worth_waiting_for(fault):
    error = s3_error(fault, doing="write", what="s3://b/k", at="http://store", said="it said so")
    assert str(error).startswith("cannot write s3://b/k at http://store: it said so. ")
    assert len(str(error)) > len("cannot write s3://b/k at http://store: it said so. ")
    assert error.transient is (fault in {Fault.PASSING, Fault.DAMAGED})


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0
        self.pauses = []

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    def run(self, step, patience):
        return patiently(step, patience, clock=lambda: self.now, sleep=self.sleep)


def failing(times, error):
    outcomes = iter([error] * times)

    def step():
        for failure in outcomes:
            raise failure
        return "done"

    return step


def test_a_step_is_tried_until_it_succeeds():
    clock = Clock()
    assert clock.run(failing(4, StorageError("x", transient=True)), Patience(total_s=30)) == "done"
    assert len(clock.pauses) == 4


def test_pauses_double_up_to_a_ceiling_and_are_spread():
    patience = Patience(first_pause_s=0.2, longest_pause_s=5)
    assert [patience.pause_s(attempt, 1.0) for attempt in range(6)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5]
    assert patience.pause_s(3, 0.0) == 0.8
    assert patience.pause_s(10_000, 1.0) == 5


def test_patience_ends_in_time_and_says_how_often_it_was_tried():
    clock = Clock()
    with pytest.raises(StorageError, match=r"^down \(tried \d+ times in \d+ s\)$") as caught:
        clock.run(failing(10_000, StorageError("down", transient=True)), Patience(total_s=30))
    assert caught.value.transient
    assert 20 < clock.now <= 30


def test_what_waiting_cannot_cure_is_raised_at_once():
    clock = Clock()
    denied = StorageError("denied")
    with pytest.raises(StorageError) as caught:
        clock.run(failing(1, denied), Patience())
    assert caught.value is denied
    assert clock.pauses == []
