"""Each duration, comparison and guard of the rules is held by a test: change it, and a test fails."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.promtools import ALERTS, rules, run
from tests.real_parts import program

pytestmark = pytest.mark.real_part("promtool")

UNITS = {"s": 1, "m": 60, "h": 3600}
# With a half on the right side equality cannot happen; there the figure is changed instead.
HALVES = re.compile(r"\d+\.5\b")
COMPARISONS = re.compile(r"(?<![<>=!])(<=|>=|==|<|>)(?!=)(?! \d+\.5\b)")
SWAPS = {"<": "<=", ">": ">=", "==": "!="}
GUARD = re.compile(r"\n( *)(?:and|unless)\b")
Mutant = tuple[str, str, dict[str, Any]]


def seconds(duration: str) -> int:
    return int(duration[:-1]) * UNITS[duration[-1]]


def rule_and_text(rule: dict[str, Any], key: str) -> Iterator[tuple[str, str]]:
    """Yield what was changed and the new text of ``rule[key]``, for every change that a test must catch."""
    text = rule[key]
    if key != "expr":
        yield f"{key} doubled", f"{2 * seconds(text)}s"
        yield f"{key} halved", f"{seconds(text) // 2}s"
        return
    for number, match in enumerate(COMPARISONS.finditer(text)):
        swapped = text[: match.start()] + SWAPS[match[0]] + text[match.end() :]
        yield f"comparison {number} swapped", swapped
    for match in HALVES.finditer(text):
        for step in (-1, 1):
            yield f"{match[0]} by {step}", f"{text[: match.start()]}{float(match[0]) + step}{text[match.end() :]}"
    for number, match in enumerate(GUARD.finditer(text)):
        yield f"guard {number} dropped", text[: match.start()] + text[end_of_guard(text, match) :]


def end_of_guard(text: str, match: re.Match[str]) -> int:
    """Return where the guard ends: at the next line that stands no deeper than it does."""
    depth = len(match[1])
    deeper = re.compile(rf"\n(?! {{{depth + 1}}})")
    following = deeper.search(text, match.end())
    return len(text) if following is None else following.start()


def mutants() -> Iterator[Mutant]:
    """Yield alert, change and a rule file that holds the changed group alone."""
    for group in rules()["groups"]:
        for number, rule in enumerate(group["rules"]):
            for key in ("for", "keep_firing_for", "expr"):
                if key not in rule or "alert" not in rule:
                    continue
                for change, text in rule_and_text(rule, key):
                    changed = copy.deepcopy(group)
                    changed["rules"][number][key] = text
                    yield rule["alert"], change, {"groups": [changed]}


MUTANTS = list(mutants())


def about(alert: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and content of the test files, without the tests that name other alerts only."""
    for path in sorted((ALERTS / "tests").glob("*.test.yml")):
        document = yaml.safe_load(path.read_text())
        document["tests"] = [test for test in document["tests"] if alert in (named := names(test)) or not named]
        if alert in names(document):
            yield path.name, document


def names(node: Any) -> set[str]:
    """Return the alerts that a part of a test file names."""
    return set(re.findall(r"\bBudget\w+\b", yaml.safe_dump(node)))


def failing(tmp_path: Path, document: dict[str, Any], alert: str) -> str:
    """Return what promtool says of the tests of ``alert``, run against ``document``; empty when all pass."""
    promtool = program("promtool", "prometheus")
    rule_file = tmp_path / "budget.rules.yml"
    rule_file.write_text(yaml.safe_dump(document))
    assert run(promtool, "check", "rules", rule_file).returncode == 0, "the mutant is no rule"
    copies = []
    for name, tests in about(alert):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(tests | {"rule_files": [str(rule_file)]}))
        copies.append(path)
    done = run(promtool, "test", "rules", *copies)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("group", rules()["groups"], ids=lambda group: group["name"])
def test_a_group_alone_and_unchanged_passes(tmp_path: Path, group: dict[str, Any]) -> None:
    for number, alert in enumerate(rule["alert"] for rule in group["rules"] if "alert" in rule):
        place = tmp_path / str(number)
        place.mkdir()
        assert failing(place, {"groups": [group]}, alert) == ""


@pytest.mark.parametrize(("alert", "change", "document"), MUTANTS, ids=[f"{m[0]}: {m[1]}" for m in MUTANTS])
def test_a_changed_rule_fails_its_tests(tmp_path: Path, alert: str, change: str, document: dict[str, Any]) -> None:
    assert failing(tmp_path, document, alert) != "", f"no test notices: {change}"


def test_every_alert_has_its_hold_changed() -> None:
    held = {alert for alert, change, _ in MUTANTS if change.startswith("for ")}
    assert held == {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
