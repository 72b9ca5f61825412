import re
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from common.errors import UsageError
from common.metrics import CollectorMetrics, ConsumerMetrics, ProducerMetrics, parse_address, serve

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(promptmill_\w+)` \| (\w+) \|(.*?)\| .+ \|")


def declared():
    found = {}
    for metrics in (ConsumerMetrics, CollectorMetrics, ProducerMetrics):
        registry = CollectorRegistry()
        for metric in vars(metrics(registry)).values():
            (family,) = metric.describe()
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, tuple(metric._labelnames))
    return found


def test_the_document_lists_exactly_what_is_declared():
    rows = [ROW.fullmatch(line) for line in DOCUMENT.read_text().splitlines()]
    documented = {row[1]: (row[2], tuple(re.findall(r"`(\w+)`", row[3]))) for row in rows if row is not None}
    assert documented == declared()


def test_metrics_are_served_on_the_next_port_when_one_is_taken():
    registry = CollectorRegistry()
    ConsumerMetrics(registry).completions.labels(run="a", verdict="ok").inc(3)
    first = serve(registry, "127.0.0.1:0")
    assert first
    address, stop = first
    second = serve(registry, address)
    assert second
    assert int(second[0].rpartition(":")[2]) > int(address.rpartition(":")[2])
    with urlopen(f"http://{second[0]}/metrics", timeout=5) as answer:
        assert b'promptmill_completions_total{run="a",verdict="ok"} 3.0' in answer.read()
    stop()
    second[1]()


def test_metrics_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("PROMPTMILL_METRICS_ADDRESS", "off")
    assert serve(CollectorRegistry()) is None


@pytest.mark.parametrize("text", ["9400", ":9400", "host:", "host:x", "host:70000", "host:-1"])
def test_an_address_of_another_shape_is_refused(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)


def test_addresses_of_both_families_are_read():
    assert parse_address("[::1]:9400") == ("::1", 9400)
    assert parse_address("0.0.0.0:9400") == ("0.0.0.0", 9400)


def test_an_address_that_is_not_of_this_machine_is_refused():
    with pytest.raises(UsageError, match="PROMPTMILL_METRICS_ADDRESS"):
        serve(CollectorRegistry(), "203.0.113.1:65535")
