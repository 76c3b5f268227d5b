"""Turn a Snapshot into metric families: the whole catalogue as far as the Snapshot knows it."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric as Family

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish import (
    device_metrics,
    engine_metrics,
    exporter_metrics,
    failure_metrics,
    model_metrics,
    rank_metrics,
    reported_metrics,
)
from budget_exporter.publish.families import Families

__all__ = ["families"]


def families(snapshot: Snapshot) -> list[Family]:
    """Return the families of ``snapshot`` in the catalogue's order; facts it does not hold have no series."""
    out = Families()
    for device in snapshot.devices:
        device_metrics.add(out, device)
    for engine in snapshot.engines:
        rank_metrics.add(out, engine)
        model_metrics.add(out, engine)
        reported_metrics.add(out, engine)
        engine_metrics.add(out, engine)
        failure_metrics.add(out, engine)
    exporter_metrics.add(out, snapshot)
    return out.collect()
