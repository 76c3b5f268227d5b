"""
Print the metric catalogue as Markdown: ``python -m budget_exporter.publish.document > docs/metrics.md``.

A test compares the file with what this prints.
"""

from __future__ import annotations

import sys
from itertools import groupby

from budget_exporter.publish.catalogue import CATALOGUE, Metric, closed_list

__all__ = ["markdown"]

_INTRODUCTION = """\
# Metrics

This page is generated from `budget_exporter/publish/catalogue.py`:
`python -m budget_exporter.publish.document` prints it.

- A fact that is not known has no series: absent is never 0. Alert on absence where it matters.
- No figure is clamped: margin, drift, capture and gap may be negative.
- Physical series carry `device`, engine series `engine` and mostly `rank`; `budget_rank_info` joins them:
  `budget_rank_info * on (job, instance, device) group_left () budget_device_margin_bytes`. Match `job` and `instance`
  too: engines of one name run on several hosts.
- `budget_model_*` is what the law says, `budget_reported_*` what the engine says, `budget_device_*` the driver. Model
  and reported share labels, so that a disagreement is one subtraction.
- `budget_engine_phase`, `budget_engine_health`, `budget_engine_unit_state` and `budget_engine_failures_total` have a
  series for every value of their closed list. `budget_engine_knife_edge` and `budget_engine_finding` have one for each
  that could be evaluated.
- Which series a platform gives is for its source to say: [sources.md](sources.md).
- `process_*` and `python_info` describe the exporter's own process.
"""
_SECTIONS = {
    "device": "Device: one series per device, no engine",
    "rank": "Rank: one engine worker on one device",
    "model": "Model: what the law says, recomputed from the running flags",
    "reported": "Reported: the engine's own words for the same terms",
    "law": "Law: the limits, so that rules hold no constants",
    "engine and supervision": "Engine and supervision",
    "the exporter itself": "The exporter itself",
}


def markdown() -> str:
    """Return docs/metrics.md: a table for each section, then the closed lists of label values."""
    parts = [_INTRODUCTION]
    for section, metrics in groupby(CATALOGUE.values(), key=lambda metric: metric.section):
        parts.append(f"\n## {_SECTIONS[section]}\n\n")
        parts.append("| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n")
        parts += [_row(metric) for metric in metrics]
    parts.append("\n## Closed lists\n\nA label of these metrics takes no other value.\n\n")
    parts.append("| metric | label | values |\n|---|---|---|\n")
    parts += [_closed(metric, label) for metric in CATALOGUE.values() for label in metric.labels]
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.unit} | {metric.help} |\n"


def _closed(metric: Metric, label: str) -> str:
    values = closed_list(metric.name, label)
    return (
        "" if values is None else f"| `{metric.name}` | `{label}` | {', '.join(f'`{value}`' for value in values)} |\n"
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
