"""Alerts and dashboards name metrics that there are, and each alert fires when it should.

That docs/operations.md has every metric of the services and no other is held by tests/contract/test_metrics.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
PROMETHEUS, GRAFANA = ROOT / "deploy/prometheus", ROOT / "deploy/grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
# What Prometheus and any process tell of themselves.
COMMON = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(PROMETHEUS / "alerts.yml")["groups"] for rule in group["rules"]]


def queries_of(board: Any) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def metrics_of_the_table() -> set[str]:
    """Every series name: a histogram has three."""
    rows = re.findall(r"^\| `(metronome_\w+)(?:\{[^`]*\})?` \| (\w+) \|", OPERATIONS, re.MULTILINE)
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + suffix for name, kind in rows for suffix in suffixes.get(kind, ("",))}


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:metronome_|process_)\w+|\bup\b", expression))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_metrics_that_there_are(path: Path) -> None:
    asked = set().union(*map(names_in, queries_of(json.loads(path.read_text()))))
    assert len(asked) > 5
    assert asked - COMMON <= metrics_of_the_table()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_metrics_that_there_are_and_sends_to_a_heading_that_there_is(alert: dict[str, Any]) -> None:
    asked = names_in(alert["expr"])
    assert asked
    assert asked - COMMON <= metrics_of_the_table()
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    headings = re.findall(r"^###? (.*)$", OPERATIONS, re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert alert["alert"] in OPERATIONS, "the page says what the alert means"


def test_every_alert_is_seen_to_fire() -> None:
    tests = read_yaml(PROMETHEUS / "alerts_test.yml")["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == {alert["alert"] for alert in alerts()}


def test_promtool_agrees_with_configuration_and_rules(promtool: str) -> None:
    run(promtool, "check", "config", str(PROMETHEUS / "prometheus.yml"))
    run(promtool, "test", "rules", str(PROMETHEUS / "alerts_test.yml"))


def test_promtool_understands_every_query_of_the_dashboards(promtool: str, tmp_path: Path) -> None:
    queries = [query for path in DASHBOARDS for query in queries_of(json.loads(path.read_text()))]
    rules = [
        {"record": f"dashboards:query:{place}", "expr": query.replace("$__rate_interval", "1m")}
        for place, query in enumerate(queries)
    ]
    assert len(rules) > 40
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run(promtool, "check", "rules", str(file))


def test_the_dashboards_are_those_that_are_described(tmp_path: Path) -> None:
    run(sys.executable, str(GRAFANA / "describe.py"), str(tmp_path))
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in DASHBOARDS}, "run `make dashboards`"


def test_grafana_is_told_where_dashboards_and_their_source_are() -> None:
    (source,) = read_yaml(GRAFANA / "provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = read_yaml(GRAFANA / "provisioning/dashboards/metronome.yml")["providers"]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    sources = {
        target["datasource"]["uid"]
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    assert sources == {source["uid"]}
    assert len({board["uid"] for board in boards}) == len(boards) == 3
