"""Each duration, comparison, limit, branch and guard of the rules is held by a test: change it, and a test fails."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.alerts.promtools import ALERTS, FILES, rules, run
from tests.real_parts import program

pytestmark = pytest.mark.real_part("promtool")

UNITS = {"s": 1, "m": 60, "h": 3600}
# With a half on the right side equality cannot happen; there the figure is changed instead.
HALVES = re.compile(r"\d+\.5\b")
COMPARISONS = re.compile(r"(?<![<>=!])(<=|>=|==|<|>)(?!=)(?! \d+\.5\b)")
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!="}
GUARD = re.compile(r"\n( *)(?:and|unless|or)\b")
RANGE = re.compile(r"(?<=\[)\d+[smh](?=[]:])")
NUMBER = re.compile(r'(?<![\w."\[:])[1-9]\d+(?![\w."])')


class Mutant(NamedTuple):
    """A rule that was changed, in a rule file with nothing else but what it reads and who reads it."""

    rule: str
    change: str
    told: frozenset[str]
    document: dict[str, Any]


def seconds(duration: str) -> int:
    return int(duration[:-1]) * UNITS[duration[-1]]


def changes(rule: dict[str, Any], key: str) -> Iterator[tuple[str, str]]:
    """Yield what was changed and the new text of ``rule[key]``, for every change that a test must catch."""
    text = rule[key]
    if key != "expr":
        yield f"{key} doubled", f"{2 * seconds(text)}s"
        yield f"{key} halved", f"{seconds(text) // 2}s"
        return
    for number, match in enumerate(COMPARISONS.finditer(text)):
        yield f"comparison {number} swapped", replaced(text, match, SWAPS[match[0]])
    for match in HALVES.finditer(text):
        for step in (-1, 1):
            yield f"{match[0]} by {step}", replaced(text, match, str(float(match[0]) + step))
    for number, match in enumerate(RANGE.finditer(text)):
        yield f"range {number} doubled", replaced(text, match, f"{2 * seconds(match[0])}s")
        yield f"range {number} halved", replaced(text, match, f"{seconds(match[0]) // 2}s")
    for match in NUMBER.finditer(text):
        yield f"{match[0]} doubled", replaced(text, match, str(2 * int(match[0])))
        yield f"{match[0]} halved", replaced(text, match, str(int(match[0]) // 2))
    for number, match in enumerate(GUARD.finditer(text)):
        yield f"guard {number} dropped", text[: match.start()] + text[end_of_guard(text, match) :]


def replaced(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def end_of_guard(text: str, match: re.Match[str]) -> int:
    """Return where the guard ends: at the next line that stands no deeper than it does."""
    depth = len(match[1])
    deeper = re.compile(rf"\n(?! {{{depth + 1}}})")
    following = deeper.search(text, match.end())
    return len(text) if following is None else following.start()


def name_of(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def readers(rule: dict[str, Any], among: list[dict[str, Any]]) -> list[str]:
    """Return the alerts that a change of ``rule`` can change: itself, or those that read what it records."""
    if "alert" in rule:
        return [rule["alert"]]
    reading = [other for other in among if rule["record"] in other["expr"]]
    return [alert for other in reading for alert in readers(other, among)]


def everything() -> list[dict[str, Any]]:
    """Return the groups of all rule files: one file's rules read what another one records."""
    return [group for path in FILES for group in rules(path)["groups"]]


@cache
def by_file() -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(
        (path.name, yaml.safe_load(path.read_text())) for path in sorted((ALERTS / "tests").glob("*.test.yml"))
    )


def names(node: Any) -> frozenset[str]:
    """Return the alerts that a part of a test file names."""
    return frozenset(re.findall(r"\bBudget\w+\b", json.dumps(node)))


@cache
def about(told: frozenset[str]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return name and content of the test files, without the tests that name other alerts only; small ones first."""
    found = []
    for name, whole in by_file():
        document = whole | {"tests": [test for test in whole["tests"] if told & (named := names(test)) or not named]}
        if told & names(document):
            found.append((name, document))
    return tuple(sorted(found, key=lambda entry: (entry[0] == "long.test.yml", len(json.dumps(entry[1])))))


@cache
def named_with(told: frozenset[str]) -> frozenset[str]:
    """Return the alerts that the tests of ``told`` name: without them they would fail whatever else is right."""
    return frozenset().union(*(names(document) for _, document in about(told)))


def only(told: frozenset[str], group: dict[str, Any]) -> dict[str, Any]:
    """Return ``group`` with its recording rules and the alerts that the tests of ``told`` name."""
    wanted = named_with(told)
    kept = [rule for rule in group["rules"] if "record" in rule or rule["alert"] in wanted]
    return group | {"rules": kept}


def mutants() -> Iterator[Mutant]:
    groups = everything()
    among = [rule for group in groups for rule in group["rules"]]
    for at, group in enumerate(groups):
        for number, rule in enumerate(group["rules"]):
            told = frozenset(readers(rule, among))
            for key in ("for", "keep_firing_for", "expr"):
                for change, text in changes(rule, key) if key in rule else ():
                    changed = copy.deepcopy(groups)
                    changed[at]["rules"][number][key] = text
                    document = {"groups": [only(told, each) for each in changed]}
                    yield Mutant(name_of(rule), change, told, document)


MUTANTS = list(mutants())


def failing(tmp_path: Path, document: dict[str, Any], told: frozenset[str]) -> str:
    """Return what promtool says of the first test of ``told`` that fails against ``document``; empty when all pass."""
    promtool = program("promtool", "prometheus")
    rule_file = tmp_path / "budget.rules.yml"
    rule_file.write_text(yaml.safe_dump(document))
    assert run(promtool, "check", "rules", rule_file).returncode == 0, "the mutant is no rule"
    for name, tests in about(told):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(tests | {"rule_files": [str(rule_file)]}))
        done = run(promtool, "test", "rules", path)
        if done.returncode != 0:
            return done.stdout + done.stderr
    return ""


@pytest.mark.parametrize("group", everything(), ids=lambda group: group["name"])
def test_an_alert_alone_and_unchanged_passes(tmp_path: Path, group: dict[str, Any]) -> None:
    for number, alert in enumerate(rule["alert"] for rule in group["rules"] if "alert" in rule):
        place = tmp_path / str(number)
        place.mkdir()
        alone = {"groups": [only(frozenset({alert}), each) for each in everything()]}
        assert failing(place, alone, frozenset({alert})) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.rule}: {mutant.change}" for mutant in MUTANTS])
def test_a_changed_rule_fails_its_tests(tmp_path: Path, mutant: Mutant) -> None:
    assert failing(tmp_path, mutant.document, mutant.told) != "", f"no test notices: {mutant.change}"


def test_every_alert_has_its_hold_changed() -> None:
    held = {mutant.rule for mutant in MUTANTS if mutant.change.startswith("for ")}
    assert held == {rule["alert"] for group in everything() for rule in group["rules"] if "alert" in rule}
