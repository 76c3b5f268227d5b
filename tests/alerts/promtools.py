"""Run promtool and amtool, and read the rules."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.alerts.recorded import RULES

__all__ = ["ALERTS", "FILES", "KUBERNETES", "Alert", "alerts", "expressions", "rules", "run"]

ALERTS = RULES.parent
KUBERNETES = ALERTS / "kubernetes.rules.yml"
FILES = (RULES, KUBERNETES)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule, and the group it stands in."""

    name: str
    group: str
    expr: str
    hold: str
    keep: str | None
    labels: dict[str, str]
    annotations: dict[str, str]


def rules(path: Path = RULES) -> dict[str, Any]:
    """Return a rule file as parsed."""
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


@cache
def alerts() -> tuple[Alert, ...]:
    """Return every alerting rule in the order of the files."""
    return tuple(
        Alert(
            name=rule["alert"],
            group=group["name"],
            expr=rule["expr"],
            hold=rule["for"],
            keep=rule.get("keep_firing_for"),
            labels=rule["labels"],
            annotations=rule["annotations"],
        )
        for path in FILES
        for group in rules(path)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    )


def expressions() -> list[tuple[str, str]]:
    """Return name and expression of every rule, recording rules too."""
    return [
        (rule.get("alert") or rule["record"], rule["expr"])
        for path in FILES
        for group in rules(path)["groups"]
        for rule in group["rules"]
    ]


def run(*argv: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it said; a minute is far more than any of these takes."""
    return subprocess.run(list(map(str, argv)), input=stdin, capture_output=True, text=True, timeout=60, check=False)
