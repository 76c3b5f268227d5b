"""The rules: clean, tested, written as agreed, and on no series or label value that the catalogue does not have."""

from __future__ import annotations

import re

import pytest
import yaml

from budget_exporter.facts.boot import PHASES
from budget_exporter.publish.catalogue import CATALOGUE, closed_list
from tests.alerts.promtools import ALERTS, Alert, alerts, expressions, rules, run
from tests.alerts.recorded import RULES
from tests.real_parts import program

TESTS = sorted((ALERTS / "tests").glob("*.test.yml"))
NAMES = [alert.name for alert in alerts()]
SEVERITIES = {"critical", "warning", "info"}
NO_BOOT = {"serving", "sleeping", "failing", "stopped", "unknown"}
SELECTOR = re.compile(r'(?<!")\b(budget_\w+)(?:\{([^}]*)\})?')
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
RECORDED = re.compile(r"\b(?:rank|device):\w+(?::\w+)?")


@pytest.fixture
def promtool() -> str:
    return program("promtool", "prometheus")


@pytest.mark.real_part("promtool")
def test_promtool_finds_nothing_wrong_with_the_rules(promtool: str) -> None:
    done = run(promtool, "check", "rules", RULES)
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
    assert pages == {"BudgetDeviceMemoryNearlyExhausted", "BudgetEngineDown", "BudgetEngineCrashLooping"}


def test_every_metric_and_label_of_the_rules_is_in_the_catalogue() -> None:
    for expr in map(without_records, expressions()):
        for name, matchers in SELECTOR.findall(expr):
            metric = CATALOGUE[name]
            for label, _, _ in MATCHER.findall(matchers):
                assert label in metric.labels, f"{name} has no label {label}"


def test_every_value_a_closed_list_is_matched_with_is_in_the_list() -> None:
    for expr in map(without_records, expressions()):
        for name, matchers in SELECTOR.findall(expr):
            for label, operator, value in MATCHER.findall(matchers):
                values = closed_list(name, label)
                if values is None:
                    continue
                parts = value.split("|") if "~" in operator else [value]
                for part in parts:
                    assert any(re.fullmatch(part, known) for known in values), f"{name}: no {label} is {part}"


def test_the_boot_phases_are_all_phases_but_those_known_not_to_be() -> None:
    boots = {
        frozenset(value.split("|"))
        for expr in expressions()
        for name, matchers in SELECTOR.findall(expr)
        for _, _, value in MATCHER.findall(matchers)
        if name == "budget_engine_phase" and "loading" in value
    }
    assert boots == {frozenset(PHASES) - NO_BOOT}


def test_a_recording_rule_stands_above_its_readers_in_their_group() -> None:
    for group in rules()["groups"]:
        known: set[str] = set()
        for rule in group["rules"]:
            assert set(RECORDED.findall(rule["expr"])) <= known
            if "record" in rule:
                known.add(rule["record"])


def test_a_job_is_written_out_only_for_up() -> None:
    for expr in expressions():
        assert expr.count("job=") == len(re.findall(r'\bup\{job="budget_exporter"\}', expr))


def test_every_match_between_series_names_job_and_instance() -> None:
    for expr in expressions():
        for labels in re.findall(r"\bon \(([^)]*)\)", expr):
            assert labels.startswith("job, instance, ")


def without_records(expr: str) -> str:
    """Return ``expr`` without the names of recorded series, which hold metric names."""
    return RECORDED.sub("recorded", expr)
