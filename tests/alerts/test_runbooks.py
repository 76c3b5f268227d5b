"""Runbooks and table: there for each alert, in one form, with queries that Prometheus and the catalogue know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter.facts.boot import CAUSES
from budget_exporter.publish.catalogue import CATALOGUE
from tests.alerts.promtools import ALERTS, Alert, alerts, run
from tests.alerts.runbooks import RUNBOOKS, queries
from tests.real_parts import program

HEADINGS = ["What it means", "What to look at", "What to change", "When it lies"]
LONGEST = 70


def test_each_alert_has_a_runbook_and_no_runbook_is_left_over() -> None:
    assert {path.stem for path in RUNBOOKS.iterdir()} == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_runbook_has_its_four_parts_and_is_short(alert: Alert) -> None:
    text = (RUNBOOKS / f"{alert.name}.md").read_text()
    assert text.startswith(f"# {alert.name} ({alert.labels['severity']})\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert queries(RUNBOOKS / f"{alert.name}.md")
    assert len(text.splitlines()) <= LONGEST


@pytest.mark.parametrize("path", [*sorted(RUNBOOKS.iterdir()), ALERTS / "README.md"], ids=lambda path: path.stem)
def test_every_metric_and_alert_that_is_named_exists(path: Path) -> None:
    text = path.read_text()
    # budget_exporter is the job, and one cause of death begins like a metric.
    assert set(re.findall(r"(?<![\w.])budget_(?!exporter\b)\w+", text)) <= {*CATALOGUE, *CAUSES}
    assert set(re.findall(r"\bBudget[A-Z]\w+", text)) <= {alert.name for alert in alerts()}


@pytest.mark.real_part("promtool")
def test_every_query_is_one(tmp_path: Path) -> None:
    found = [(path.stem, query) for path in sorted(RUNBOOKS.iterdir()) for query in queries(path)]
    # An alert takes any instant vector; all together are checked as one file, each name says where a query stands.
    group: dict[str, Any] = {
        "name": "queries",
        "rules": [{"alert": f"{name}_{n}", "expr": query} for n, (name, query) in enumerate(found)],
    }
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    done = run(program("promtool", "prometheus"), "check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_holds_each_alert_with_its_severity_and_duration() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\S+)\) \| (\w+) \| (\w+) \|", (ALERTS / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(
        (alert.name, f"runbooks/{alert.name}.md", alert.labels["severity"], alert.hold) for alert in alerts()
    )
