"""
Build ``engine.json``, the dashboard of one engine.

``python -m dashboards.engine`` writes it, ``python -m dashboards.engine --check`` fails where it is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.expressions import HOST, SHAPE
from dashboards.palette import DATASOURCE
from dashboards.panels import agreement, changes, fits_now, fitted_at_worst, trust
from dashboards.parts import Row

__all__ = ["PATH", "build", "main", "render"]

PATH = Path(__file__).with_name("engine.json")


def rows() -> list[Row]:
    """Return the questions in the order in which they are asked."""
    return [fits_now.row(), fitted_at_worst.row(), agreement.row(), changes.row(), trust.row()]


def _label_variable(name: str, label: str, query: str, description: str, *, several: bool) -> builder.QueryVariable:
    variable = (
        builder.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        # The list follows what exists in the chosen time range, so that a removed host leaves it.
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        return variable.all_value(".+").current(model.VariableOption(selected=True, text="All", value="$__all"))
    return variable


def _variables() -> list[builder.DatasourceVariable | builder.QueryVariable]:
    return [
        builder.DatasourceVariable("datasource")
        .label("Data source")
        .description("Prometheus that scrapes the exporters.")
        .type("prometheus"),
        _label_variable(
            "job", "Job", "label_values(budget_exporter_build_info, job)", "Scrape job of the exporters.", several=True
        ),
        _label_variable(
            "instance",
            "Instance",
            'label_values(budget_exporter_build_info{job=~"$job"}, instance)',
            "Hosts to look at.",
            several=True,
        ),
        _label_variable(
            "engine",
            "Engine",
            f"label_values(budget_engine_info{{{HOST}}}, engine)",
            "One engine: ranks of different engines are not compared with each other.",
            several=False,
        ),
    ]


def build() -> model.Dashboard:
    """Build the dashboard; panel ids count up in reading order, so that links to a panel stay put."""
    dashboard = (
        builder.Dashboard("Engine memory budget")
        .uid("budget-engine")
        .description(
            "What one engine was promised of its devices' memory, what it took and what is left. Read from the top: "
            "each row is one question."
        )
        .tags(["budget_exporter", "vram"])
        .readonly()
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-6h", "now")
        .refresh("30s")
        .annotation(
            builder.AnnotationQuery()
            .name("Restarts")
            .datasource(DATASOURCE)
            .enable(enable=True)
            .icon_color("orange")
            .expr(f"changes(budget_engine_start_time_seconds{{{SHAPE}}}[$__rate_interval]) > 0")
        )
    )
    for variable in _variables():
        dashboard = dashboard.with_variable(variable)
    number = 0
    for row in rows():
        number += 1
        dashboard = dashboard.with_row(builder.Row(row.question).id(number))
        for panel in row.panels:
            number += 1
            dashboard = dashboard.with_panel(panel.id(number))
    return dashboard.build()


def render() -> str:
    """Return the text of ``engine.json``."""
    encoded: dict[str, Any] = json.loads(json.dumps(build(), cls=JSONEncoder))
    # id is Grafana's own number of a stored dashboard: null lets it be found by uid.
    return json.dumps({"id": None, **encoded}, indent=2, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the file; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.engine", description="Build dashboards/engine.json.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where the file is out of date")
    parser.add_argument("file", nargs="?", type=Path, default=PATH, help="default: %(default)s")
    options = parser.parse_args(arguments)
    path: Path = options.file
    wanted = render()
    if options.check:
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            return 0
        sys.stderr.write(f"{path}: out of date, run python -m dashboards.engine\n")
        return 1
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
