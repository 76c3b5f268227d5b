"""The rules: clean, tested, written as agreed."""

from __future__ import annotations

import re

import pytest
import yaml

from alerts import prometheus_rule
from tests.alerts.promtools import ALERTS, FILES, Alert, alerts, rules, run
from tests.real_parts import program

TESTS = sorted((ALERTS / "tests").glob("*.test.yml"))
NAMES = [alert.name for alert in alerts()]
SEVERITIES = {"critical", "warning", "info"}
SECONDS = {"1200", "1800", "3600"}
COUNTS = {"1.5", "2.5", "3.5"}


@pytest.fixture
def promtool() -> str:
    return program("promtool", "prometheus")


@pytest.mark.real_part("promtool")
def test_promtool_finds_nothing_wrong_with_the_rules(promtool: str) -> None:
    done = run(promtool, "check", "rules", *FILES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "duplicate" not in done.stdout + done.stderr


@pytest.mark.real_part("promtool")
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_promtool_tests_pass(promtool: str, path: object) -> None:
    done = run(promtool, "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_firing_with_its_text_and_silent() -> None:
    firing: set[str] = set()
    silent: set[str] = set()
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for check in test.get("alert_rule_test", []):
                expected = check.get("exp_alerts", [])
                (firing if expected else silent).add(check["alertname"])
                assert all(alert["exp_annotations"] for alert in expected)
    assert firing == silent == set(NAMES)


def test_names_are_unique() -> None:
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_alert_is_written_as_agreed(alert: Alert) -> None:
    assert re.fullmatch(r"Budget([A-Z][a-z]+|[A-Z]{2,}(?=[A-Z]|$))+", alert.name)
    assert alert.labels["severity"] in SEVERITIES
    assert not any("{{" in value for value in alert.labels.values())
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    assert re.search(r"[<>=]|\babsent\(|max_over_time", alert.expr), "an alert compares"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_annotations_say_who_and_what(alert: Alert) -> None:
    summary, description = alert.annotations["summary"], alert.annotations["description"]
    assert "{{" not in summary
    assert summary.endswith(".")
    assert description.endswith(".")
    # absent() has no instance to name.
    assert ("$labels.instance" in description) == (alert.name != "BudgetExporterAbsent")
    assert not re.search(r"\$value\s*\}\}", description), "a bare value is no figure for a person"
    assert alert.annotations["runbook_url"].endswith(f"/alerts/runbooks/{alert.name}.md")


def test_only_pages_are_critical_and_only_what_needs_a_person_now_pages() -> None:
    pages = {alert.name for alert in alerts() if alert.labels["severity"] == "critical"}
    assert pages == {
        "BudgetDeviceMemoryNearlyExhausted",
        "BudgetLeakNearFloor",
        "BudgetDeviceLost",
        "BudgetEngineDown",
        "BudgetEngineCrashLooping",
        "BudgetEngineUnitFailed",
        "BudgetShapeDiesOnFirstRequest",
        "BudgetEngineCoreDead",
        "BudgetEngineNotAnswering",
        "BudgetPodCrashLooping",
    }


def test_no_page_is_for_an_engine_that_may_be_down() -> None:
    for alert in alerts():
        if alert.labels["severity"] == "critical":
            # budget_engine_up itself is there for expected engines only.
            assert ":budget_engine_up:expected" in alert.expr or alert.expr == "budget_engine_up == 0\n"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_limits_come_from_series(alert: Alert) -> None:
    """Bytes, tokens and ratios are the exporter's; what is written in a rule is time, counts and states."""
    for number in re.findall(r"(?<=[<>=] )[\d.]+", alert.expr):
        assert number in {"0", "1", *SECONDS, *COUNTS}, number


def test_the_prometheus_rule_is_that_of_the_files() -> None:
    written = prometheus_rule.PATH.read_text()
    assert written == prometheus_rule.render(), "stale: make rules"
    document = yaml.safe_load(written)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert document["spec"] == {"groups": [group for path in FILES for group in rules(path)["groups"]]}
