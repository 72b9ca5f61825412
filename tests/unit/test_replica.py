import pytest

from common.errors import UsageError
from ops.replica import own_server, server_of

ENVIRONMENT = {
    "PROMPTMILL_FIRST_SERVER": "http://servers:30000",
    "PROMPTMILL_REPLICA_NAME": "mill-consumer-{}",
}
# As after `--scale` down and up again: numbers may have gaps.
HOSTS = {
    "": {"10.0.0.7", "10.0.1.7"},
    "mill-consumer-1": {"10.0.0.5"},
    "mill-consumer-2": {"10.0.0.6"},
    "mill-consumer-4": {"10.0.0.7"},
}


def addresses(host):
    return frozenset(HOSTS.get(host, ()))


def test_the_nth_container_works_for_the_nth_server():
    assert own_server(ENVIRONMENT, addresses) == "http://servers:30003"


def test_a_container_that_no_name_fits_says_what_to_set():
    with pytest.raises(UsageError, match="SGLANG_URL"):
        own_server(ENVIRONMENT, lambda host: frozenset({"10.9.9.9"}) if not host else addresses(host))


@pytest.mark.parametrize("missing", ENVIRONMENT)
def test_a_missing_variable_is_named(missing):
    with pytest.raises(UsageError, match=missing):
        own_server({**ENVIRONMENT, missing: ""}, addresses)


@pytest.mark.parametrize("first", ["servers:30000", "http://servers", "http://servers:x", "http://:30000"])
def test_a_first_server_without_a_port_is_refused(first):
    with pytest.raises(UsageError, match="PROMPTMILL_FIRST_SERVER"):
        server_of(first, 1)
