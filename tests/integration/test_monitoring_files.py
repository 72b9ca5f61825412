"""Prometheus rules and Grafana's dashboard: valid, tested, and about metrics that exist."""

import json
import os
import re

import pytest
from support.deployment import ROOT, documents, program, run

PROMETHEUS = ROOT / "ops" / "prometheus"
BOARD = json.loads((ROOT / "ops" / "grafana" / "dashboards" / "promptmill.json").read_text())
METRIC = re.compile(r"\bpromptmill_\w+")


def explained(pattern):
    """Names that the document of metrics has a row for."""
    document = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(rf"^\| `({pattern})`", document, re.MULTILINE))


def test_prometheus_reads_its_files_and_the_alerts_pass_their_tests():
    promtool = program("promtool", "Debian's prometheus")
    for arguments in (
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "rules.yml", "alerts.yml"),
        ("test", "rules", "tests.yml"),
    ):
        done = run(promtool, *arguments, cwd=PROMETHEUS)
        assert done.returncode == 0, done.stdout + done.stderr


def _alerts():
    (group,) = documents(PROMETHEUS / "alerts.yml")[0]["groups"]
    return group["rules"]


def test_every_alert_is_tested_and_explained():
    tests = (PROMETHEUS / "tests.yml").read_text()
    assert {rule["alert"] for rule in _alerts()} == explained(r"Promptmill\w+")
    for rule in _alerts():
        assert f"alertname: {rule['alert']}\n        exp_alerts" in tests, (
            f"{rule['alert']} never fires in a test"
        )
        assert f"alertname: {rule['alert']}}}" in tests, f"{rule['alert']} is never quiet in a test"


def _known_metrics():
    names = explained(r"promptmill_\w+")
    return names | {f"{name}_bucket" for name in names}


def test_rules_use_metrics_that_exist():
    for name in ("rules.yml", "alerts.yml"):
        for rule in documents(PROMETHEUS / name)[0]["groups"][0]["rules"]:
            plain = re.sub(r"[a-z_]+:promptmill_\w+(?::\w+)?|promptmill_\w+:\w+", "", rule["expr"])
            assert set(METRIC.findall(plain)) <= _known_metrics(), rule


def test_every_panel_asks_for_something_that_exists():
    parser = pytest.importorskip("promql_parser") if "CI" not in os.environ else __import__("promql_parser")
    (source,) = documents(ROOT / "ops" / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    recorded = {rule["record"] for rule in documents(PROMETHEUS / "rules.yml")[0]["groups"][0]["rules"]}
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"]) > 20
    for panel in BOARD["panels"]:
        assert panel["datasource"]["uid"] == source["datasources"][0]["uid"]
        for target in panel["targets"]:
            text = target["expr"].replace("$run", ".*")
            parser.parse(text)
            for name in re.findall(r"[a-z_]*:?promptmill_\w+(?::\w+)?", text):
                assert name in recorded | _known_metrics(), (panel["title"], name)


def test_panels_do_not_overlap():
    taken = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
