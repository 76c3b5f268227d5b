"""Read the queries back out of a dashboard, with its variables filled in, so that they can be run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["AFTER_FAILURE", "Query", "panels", "queries", "substitute"]

EVERYTHING: Mapping[str, str] = {
    "datasource": "prometheus",
    "job": ".+",
    "instance": ".+",
    "__rate_interval": "1m",
    "__range": "1h",
    "__interval": "15s",
}
"""What Grafana fills in where All is chosen, at a scrape interval of 15 s."""

AFTER_FAILURE = frozenset({"Last failure"})
"""Titles of the panels that are empty as long as the engine has not failed."""

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")


class Query(NamedTuple):
    """One query of a panel; ``expr`` is plain PromQL."""

    panel: str
    expr: str


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel that shows data, those folded into a row included."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace ``$name`` and ``${name}``; raise KeyError for a variable without a value."""
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], text)


def queries(dashboard: Mapping[str, Any], *, failed: bool = False, **values: str) -> list[Query]:
    """
    Return (panel title, expression) of every target that has an answer, in reading order.

    ``failed`` says that the engine has died before: without it the panels of its last death, which are rightly empty,
    are left out. ``values`` sets variables: ``engine`` has no default, the others match everything (``rate_interval``
    and ``range`` are given without their underscores).

    Raises:
        KeyError: a query uses a variable that has no value.
    """
    builtin = {"rate_interval": "__rate_interval", "range": "__range", "interval": "__interval"}
    filled = {**EVERYTHING, **{builtin.get(name, name): value for name, value in values.items()}}
    return [
        Query(panel["title"], substitute(target["expr"], filled))
        for panel in panels(dashboard)
        if failed or panel["title"] not in AFTER_FAILURE
        for target in panel.get("targets", ())
    ]
