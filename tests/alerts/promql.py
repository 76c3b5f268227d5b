"""Read PromQL with a parser: which series an expression asks for, by which labels, and where expressions stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import promql_parser

from dashboards import engine, queries as dashboard
from tests.alerts.promtools import alerts, expressions
from tests.alerts.runbooks import RUNBOOKS, queries

__all__ = ["Place", "Selector", "in_dashboards", "in_rules", "in_runbooks", "matched_on", "selectors"]

DASHBOARD: dict[str, Any] = json.loads(engine.PATH.read_text(encoding="utf-8"))
OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}


class Place(NamedTuple):
    """An expression and a word that says where it stands."""

    where: str
    expr: str


@dataclass(frozen=True, slots=True)
class Selector:
    """One selector of an expression: the series' name, and label, operator and value of each matcher."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def _nodes(expr: str) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> bool:
        found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expr), visit)
    return found


def selectors(expr: str) -> Iterator[Selector]:
    """Yield every selector of ``expr``; raise ValueError where it is no PromQL."""
    for node in _nodes(expr):
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple((m.name, OPERATORS[str(m.op)], m.value) for m in node.matchers.matchers)
            yield Selector(node.name or "", matchers)


def matched_on(expr: str) -> Iterator[list[str]]:
    """Yield the labels on which each pair of sides of ``expr`` is matched by ``on``."""
    for node in _nodes(expr):
        if isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None:
            labels = node.modifier.matching
            if labels is not None and labels.type == promql_parser.LabelModifierType.Include:
                yield labels.labels


def in_rules() -> list[Place]:
    """Return every expression of the rules."""
    return [Place(rule, expr) for rule, expr in expressions()]


def in_runbooks() -> list[Place]:
    """Return every query of the runbooks."""
    return [Place(alert.name, query) for alert in alerts() for query in queries(RUNBOOKS / f"{alert.name}.md")]


def in_dashboards() -> list[Place]:
    """Return every query of the dashboard; annotations too."""
    values = {**dashboard.EVERYTHING, "engine": "e"}
    notes = [
        Place(note["name"], dashboard.substitute(note["expr"], values))
        for note in DASHBOARD["annotations"]["list"]
        if "expr" in note
    ]
    return [Place(*query) for query in dashboard.queries(DASHBOARD, failed=True, engine="e")] + notes
