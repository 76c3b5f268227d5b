"""Every metric that a rule, a dashboard or a page of documentation names is one the exporter has, with those labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from budget_exporter.publish.catalogue import CATALOGUE, closed_list

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "alerts/**/*.yml", "alerts/**/*.md", "dashboards/**/*.json", "deploy/**/*")
    for path in ROOT.glob(pattern)
    if path.suffix in {".md", ".yml", ".yaml", ".json"} and "node_modules" not in path.parts
)
# What a scrape puts on every series; cluster stands for any label that a site adds.
TARGET_LABELS = {"job", "instance", "cluster", "__name__"}
# Not after a colon or a word (a recording rule's name), not before a slash or a dot and a word (a path or a module).
NAME = re.compile(r"(?<![\w:./-])(budget_[a-z0-9_]+)(?![\w:/])(?!\.\w)(\*?)")
SELECTOR = re.compile(r"(?<![\w:])(budget_\w+)\s*\{([^{}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
PLAIN_ALTERNATIVES = re.compile(r"[\w|]+")
NO_METRICS = {
    "budget_exporter",  # the package
    "budget_exporter_neuron_hook",  # the one that runs inside engines on Neuron
    *(
        value
        for metric in CATALOGUE.values()
        for label in metric.labels
        for value in closed_list(metric.name, label) or ()
    ),
}


def texts(path: Path) -> Iterator[str]:
    """Yield a file's text; of JSON every string, so that no quote is escaped."""
    if path.suffix == ".json":
        yield from strings(json.loads(path.read_text("utf-8")))
    else:
        yield path.read_text("utf-8")


def strings(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)


def breaches(text: str) -> Iterator[str]:
    """Yield a sentence for each name, label or closed-list value in ``text`` that the catalogue does not have."""
    for name, star in NAME.findall(text):
        if star:
            if not any(known.startswith(name) for known in CATALOGUE):
                yield f"{name}*: no metric begins so"
        elif name not in CATALOGUE and name not in NO_METRICS:
            yield f"{name}: no such metric"
    for name, matchers in SELECTOR.findall(text):
        if name in CATALOGUE:
            yield from wrong_matchers(name, matchers)


def wrong_matchers(name: str, matchers: str) -> Iterator[str]:
    for label, operator, value in MATCHER.findall(matchers):
        if label not in {*CATALOGUE[name].labels, *TARGET_LABELS}:
            yield f"{name}: no label {label}"
            continue
        allowed = closed_list(name, label)
        if allowed is None or not PLAIN_ALTERNATIVES.fullmatch(value):
            continue
        values = value.split("|") if "~" in operator else [value]
        for one in values:
            if one not in allowed:
                yield f"{name}: {label} is never {one}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_names_only_what_the_exporter_has(path: Path) -> None:
    assert [breach for text in texts(path) for breach in breaches(text)] == []


def test_rules_dashboards_and_documentation_are_among_the_files() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in FILES}
    assert {"README.md", "docs", "alerts", "dashboards"} <= names


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        ("budget_device_memory_free_bytes < 1", "budget_device_memory_free_bytes: no such metric"),
        ("rate(budget_engine_restarts[5m])", "budget_engine_restarts: no such metric"),
        ("all of budget_gpu_*", "budget_gpu_*: no metric begins so"),
        ('budget_engine_up{rank="0"}', "budget_engine_up: no label rank"),
        ('budget_engine_phase{phase="running"}', "budget_engine_phase: phase is never running"),
        ('budget_engine_phase{phase=~"serving|ready"}', "budget_engine_phase: phase is never ready"),
        ('budget_engine_phase{job="x", phase!="idle"}', "budget_engine_phase: phase is never idle"),
    ],
)
def test_a_breach_is_found(text: str, breach: str) -> None:
    assert list(breaches(text)) == [breach]


@pytest.mark.parametrize(
    "text",
    [
        "budget_exporter/publish/catalogue.py and budget_exporter.publish.document",
        "record: device:budget_of_my_own:max",
        "cause budget_above_free",
        'budget_engine_phase{job=~"$job", engine="$engine", phase=~"serving|unknown"} == 1',
        'budget_engine_phase{phase=~"s.*"}',
        "budget_model_*",
    ],
)
def test_what_is_right_is_no_breach(text: str) -> None:
    assert list(breaches(text)) == []
