from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter.facts.ledger import COMPONENTS
from budget_exporter.publish.catalogue import CATALOGUE
from dashboards import engine
from dashboards.palette import COMPONENT_COLOURS
from dashboards.queries import AFTER_FAILURE, panels, queries, substitute
from tests.real_parts import program

DASHBOARD: dict[str, Any] = json.loads(engine.PATH.read_text(encoding="utf-8"))
PANELS = list(panels(DASHBOARD))
TITLES = [panel["title"] for panel in PANELS]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCRAPE_LABELS = {"job", "instance"}
# Labels a query makes itself, and the enumerations a selector may name.
MADE = re.compile(r'label_(?:replace|join)\(.*?"(\w+)"')
SELECTOR = re.compile(r"\b(budget_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
ENUMERATED: dict[str, set[str]] = {"component": set(COMPONENTS), "severity": {"critical", "warning"}}

per_panel = pytest.mark.parametrize("panel", PANELS, ids=TITLES)
per_target = pytest.mark.parametrize(
    ("panel", "target"), TARGETS, ids=[f"{panel['title']}-{target['refId']}" for panel, target in TARGETS]
)


def test_the_committed_file_is_what_the_builder_makes() -> None:
    assert engine.main(["--check"]) == 0


def test_check_fails_on_a_file_that_differs(tmp_path: Path) -> None:
    stale = tmp_path / "engine.json"
    stale.write_text(engine.render().replace("Margin", "margin", 1), encoding="utf-8")
    assert engine.main(["--check", str(stale)]) == 1
    assert engine.main([str(stale)]) == 0
    assert engine.main(["--check", str(stale)]) == 0
    assert engine.main(["--check", str(tmp_path / "missing.json")]) == 1


def test_it_is_provisioned_not_edited() -> None:
    assert DASHBOARD["id"] is None
    assert DASHBOARD["uid"] == "budget-engine"
    assert DASHBOARD["editable"] is False
    assert 39 <= DASHBOARD["schemaVersion"] <= 41
    # A provisioned dashboard never has its inputs filled in.
    assert not {"__inputs", "__requires"} & set(DASHBOARD)


def test_every_row_asks_one_question() -> None:
    questions = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert questions[:4] == [
        "Does it fit now?",
        "Did it fit at its worst?",
        "Does the model agree with the engine?",
        "What changed?",
    ]
    assert all(question.endswith("?") for question in questions)


def test_ids_and_titles_are_unique() -> None:
    ids = Counter(panel["id"] for panel in DASHBOARD["panels"])
    assert set(ids.values()) == {1}
    assert [title for title, times in Counter(TITLES).items() if times > 1] == []


def test_panels_do_not_overlap_and_stay_on_the_grid() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]


@per_panel
def test_a_panel_says_what_it_shows_in_which_unit(panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 60
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == DATASOURCE
    assert panel["targets"]


@per_panel
def test_a_panel_of_bytes_prints_iec_bytes(panel: dict[str, Any]) -> None:
    names = {name for target in panel["targets"] for name, _ in SELECTOR.findall(target["expr"])}
    units = {CATALOGUE[name].unit for name in names}
    if panel["type"] != "table" and units == {"bytes"}:
        assert panel["fieldConfig"]["defaults"]["unit"] in {"bytes", "short"}  # short: a state made of bytes


@per_panel
def test_every_figure_of_a_table_has_a_unit_or_words(panel: dict[str, Any]) -> None:
    if panel["type"] != "table":
        return
    columns = next(step for step in panel["transformations"] if step["id"] == "organize")["options"]["renameByName"]
    dressed = {
        override["matcher"]["options"]
        for override in panel["fieldConfig"]["overrides"]
        if any(property_["id"] in {"unit", "mappings"} for property_ in override["properties"])
    }
    figures = {heading for column, heading in columns.items() if column.startswith("Value")}
    assert figures == dressed
    # With one query Grafana calls the figure Value, with more it adds the query's letter.
    letters = [target["refId"] for target in panel["targets"]]
    known = {"Value"} if len(letters) == 1 else {f"Value #{letter}" for letter in letters}
    assert {column for column in columns if column.startswith("Value")} <= known


@per_panel
def test_limits_are_series_never_literals(panel: dict[str, Any]) -> None:
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    assert [step["value"] for step in steps if step.get("value") is not None] == []


@per_target
def test_a_target_reads_the_chosen_datasource(panel: dict[str, Any], target: dict[str, Any]) -> None:
    assert target["datasource"] == DATASOURCE
    assert bool(target.get("legendFormat")) == (target.get("format") != "table")


@per_target
def test_a_target_uses_only_the_catalogue(panel: dict[str, Any], target: dict[str, Any]) -> None:
    expr = target["expr"]
    selectors = SELECTOR.findall(expr)
    assert [name for name, _ in selectors] == re.findall(r"\bbudget_\w+", expr), "a metric without a selector"
    labels = SCRAPE_LABELS | set(MADE.findall(expr))
    for name, matchers in selectors:
        metric = CATALOGUE[name]
        labels |= set(metric.labels)
        used = dict(re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', matchers))
        assert set(used) <= SCRAPE_LABELS | set(metric.labels)
        assert used["job"] == "$job"
        assert used["instance"] == "$instance"
        assert ("engine" in metric.labels) == ("engine" in used)
        for label, values in ENUMERATED.items():
            assert {used[label] for label in {label} & set(used)} <= values
    named = {label.strip() for group in GROUPING.findall(expr) for label in group.split(",") if label.strip()}
    legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
    assert named | legend <= labels


@per_target
def test_rates_follow_the_scrape_interval(panel: dict[str, Any], target: dict[str, Any]) -> None:
    for call, window in re.findall(r"\b(rate|irate|increase)\(.*?\[([^\]]*)\]", target["expr"]):
        assert window == "$__rate_interval", call
    counters = [name for name, _ in SELECTOR.findall(target["expr"]) if CATALOGUE[name].kind == "counter"]
    if counters and target.get("range"):
        assert "rate(" in target["expr"] or panel["fieldConfig"]["defaults"]["unit"] == "locale"


def test_variables_lead_from_the_datasource_to_one_engine() -> None:
    assert list(VARIABLES) == ["datasource", "job", "instance", "engine"]
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert VARIABLES["datasource"]["label"] == "Data source"
    for name in ("job", "instance"):
        assert VARIABLES[name]["multi"] is True
        assert VARIABLES[name]["allValue"] == ".+"
    # Several engines in one picture would be compared, and in a stack added.
    assert VARIABLES["engine"]["multi"] is False
    assert VARIABLES["engine"]["includeAll"] is False


@pytest.mark.parametrize("name", ["job", "instance", "engine"])
def test_a_variable_is_a_label_of_a_catalogue_metric(name: str) -> None:
    variable = VARIABLES[name]
    assert variable["datasource"] == DATASOURCE
    assert variable["refresh"] == 2  # on time range change
    match = re.fullmatch(r"label_values\((budget_\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
    assert match is not None
    assert match[2] == name
    assert name in SCRAPE_LABELS | set(CATALOGUE[match[1]].labels)


def test_every_variable_in_use_is_defined() -> None:
    builtin = {"__rate_interval", "__range", "__interval", "__all"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - builtin == set(VARIABLES)


def test_a_component_has_one_colour_everywhere() -> None:
    assert set(COMPONENT_COLOURS) == {*COMPONENTS, "kv_pool", "arena"}
    assert len(set(COMPONENT_COLOURS.values())) == len(COMPONENT_COLOURS)


def test_only_panels_of_the_last_failure_are_left_out_on_a_host_without_one() -> None:
    every, healthy = queries(DASHBOARD, failed=True, engine="e"), queries(DASHBOARD, engine="e")
    assert {query.panel for query in every} - {query.panel for query in healthy} == AFTER_FAILURE


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="engine"):
        queries(DASHBOARD)
    assert substitute('a{b=~"$b"}[${c:raw}] $b', {"b": "x", "c": "1m"}) == 'a{b=~"x"}[1m] x'


@pytest.mark.real_part("promtool")
def test_every_query_parses(tmp_path: Path) -> None:
    annotations = [
        substitute(a["expr"], {"job": ".+", "instance": ".+", "engine": "e", "__rate_interval": "1m"})
        for a in DASHBOARD["annotations"]["list"]
        if "expr" in a
    ]
    asked = [query.expr for query in queries(DASHBOARD, failed=True, engine="e")]
    assert len(asked) == len(TARGETS)
    assert len(annotations) == 1
    # A record that differs in nothing but its number: promtool refuses duplicates.
    rules = [{"record": f"panel:query:{i}", "expr": expr} for i, expr in enumerate([*asked, *annotations])]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run([program("promtool"), "check", "rules", path], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
