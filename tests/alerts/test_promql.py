"""Rules, runbooks, dashboard and catalogue: what is asked for exists, and what exists is of use to somebody."""

from __future__ import annotations

import re

import promql_parser
import pytest

from budget_exporter.facts.boot import PHASES
from budget_exporter.publish.catalogue import CATALOGUE, closed_list
from tests.alerts.promql import Place, Selector, in_dashboards, in_rules, in_runbooks, matched_on, selectors
from tests.alerts.promtools import ALERTS, FILES, KUBERNETES, rules

RULES, RUNBOOKS, DASHBOARDS = in_rules(), in_runbooks(), in_dashboards()
ALL = RULES + RUNBOOKS + DASHBOARDS
SCRAPE = {"job", "instance"}
PROMETHEUS = {"up": SCRAPE, "scrape_duration_seconds": SCRAPE}
"""Series that Prometheus makes of every scrape."""
KUBE = {
    "kube_pod_info": {"namespace", "pod", "node"},
    "kube_pod_container_info": {"namespace", "pod", "container"},
    "kube_pod_container_status_restarts_total": {"namespace", "pod", "container"},
    "kube_pod_container_status_last_terminated_reason": {"namespace", "pod", "container", "reason"},
}
"""Series of kube-state-metrics 2, from its docs/metrics/workload/pod-metrics.md."""
NO_BOOT = {"serving", "sleeping", "failing", "stopped", "unknown"}

RECORDED = {
    rule["record"] for path in FILES for group in rules(path)["groups"] for rule in group["rules"] if "record" in rule
}

every_place = pytest.mark.parametrize("place", ALL, ids=[f"{n}-{place.where}" for n, place in enumerate(ALL)])


def asked(places: list[Place]) -> list[Selector]:
    return [selector for place in places for selector in selectors(place.expr)]


@every_place
def test_every_series_and_label_that_is_asked_for_exists(place: Place) -> None:
    found = list(selectors(place.expr))
    assert found
    for selector in found:
        if selector.name in RECORDED:
            continue
        own = CATALOGUE[selector.name].labels if selector.name in CATALOGUE else (PROMETHEUS | KUBE)[selector.name]
        assert {label for label, _, _ in selector.matchers} <= SCRAPE | set(own), selector


@every_place
def test_every_value_of_a_closed_list_that_is_asked_for_is_in_the_list(place: Place) -> None:
    for selector in selectors(place.expr):
        for label, operator, value in selector.matchers:
            known = closed_list(selector.name, label) if selector.name in CATALOGUE else None
            for part in value.split("|") if "~" in operator else [value]:
                assert known is None or any(re.fullmatch(part, each) for each in known), f"{selector}: no {part}"


def test_every_metric_of_the_catalogue_is_of_use() -> None:
    """What no rule, runbook, panel or page for people names is a metric that nobody has a question for."""
    used = {selector.name for selector in asked(ALL)}
    told = set(re.findall(r"\bbudget_\w+", (ALERTS.parent / "README.md").read_text()))
    assert CATALOGUE.keys() - used - told == set()


def test_nothing_of_kubernetes_is_asked_for_where_there_may_be_none() -> None:
    own = {rule.get("alert") or rule["record"] for group in rules(KUBERNETES)["groups"] for rule in group["rules"]}
    for place in RULES + RUNBOOKS:
        kube = {selector.name for selector in selectors(place.expr)} & KUBE.keys()
        assert not kube or place.where in own, place
    assert {selector.name for selector in asked(RULES)} >= KUBE.keys()


def test_the_boot_phases_are_all_phases_but_those_known_not_to_be() -> None:
    boots = {
        frozenset(value.split("|"))
        for selector in asked(RULES)
        for label, _, value in selector.matchers
        if label == "phase" and "loading" in value
    }
    assert boots == {frozenset(PHASES) - NO_BOOT}


def test_a_recording_rule_stands_above_its_readers_in_their_group() -> None:
    for path in FILES:
        for group in rules(path)["groups"]:
            known: set[str] = set()
            for rule in group["rules"]:
                assert {selector.name for selector in selectors(rule["expr"])} & RECORDED <= known
                known.add(rule.get("record", ""))


def test_a_job_is_written_out_only_for_up() -> None:
    for selector in asked(RULES):
        jobs = [matcher for matcher in selector.matchers if matcher[0] == "job"]
        assert jobs == ([("job", "=", "budget_exporter")] if selector.name == "up" else [])


def test_every_match_between_series_of_ours_names_job_and_instance() -> None:
    # In Kubernetes a pod is matched by its namespace and name, and its node is the instance.
    pods = [["namespace", "pod"], ["namespace", "pod", "container"], ["instance", "engine"]]
    for rule, expr in RULES:
        for labels in matched_on(expr):
            kubernetes = any(selector.name.startswith(("kube_", "container:")) for selector in selectors(expr))
            assert labels[:2] == ["job", "instance"] or (kubernetes and labels in pods), rule


@pytest.mark.parametrize("text", ["sum by (", "rate(budget_engine_up)", "budget_engine_up and"])
def test_the_parser_refuses_what_is_no_promql(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        promql_parser.parse(text)


def test_the_parser_sees_every_selector() -> None:
    text = 'max_over_time((-a{x="1"} and on (y) b)[5m:15s]) > bool (increase(c{z!~"2"}[1h] offset 1m) or absent(d))'
    assert list(selectors(text)) == [
        Selector("a", (("x", "=", "1"),)),
        Selector("b", ()),
        Selector("c", (("z", "!~", "2"),)),
        Selector("d", ()),
    ]
    assert list(matched_on(text)) == [["y"]]
