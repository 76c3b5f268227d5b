"""Series the exporter has about itself and its sources."""

from __future__ import annotations

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.facts.source import SourceHealth
from budget_exporter.publish.families import Families

__all__ = ["add"]


def add(out: Families, snapshot: Snapshot) -> None:
    """Add build, demo, reload, unparsed lines and the health of every source."""
    exporter = snapshot.exporter
    out.add(
        "budget_exporter_build_info",
        1,
        version=exporter.version,
        revision=exporter.revision,
        python_version=exporter.python_version,
    )
    out.add("budget_exporter_demo", exporter.demo)
    out.add("budget_exporter_config_last_reload_successful", exporter.reload_successful)
    out.add("budget_exporter_config_last_reload_success_timestamp_seconds", exporter.reload_at)
    for source, lines in exporter.unparsed_lines.items():
        out.add("budget_exporter_unparsed_lines_total", lines, source=source)
    for health in snapshot.sources:
        _source(out, health)


def _source(out: Families, health: SourceHealth) -> None:
    source = health.name
    # Before its first run has ended a source has neither failed nor succeeded; one that timed out has failed.
    if health.runs or health.settled:
        out.add("budget_source_success", health.success, source=source)
    if health.runs:
        out.add("budget_source_duration_seconds", health.duration, source=source)
    out.add("budget_source_interval_seconds", health.interval, source=source)
    out.add("budget_source_last_success_timestamp_seconds", health.last_success, source=source)
    out.add("budget_source_runs_total", health.runs, source=source)
    out.add("budget_source_failures_total", health.failures, source=source)
