"""Collect samples of catalogue metrics and refuse every other name, label set or closed-list value."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from budget_exporter.publish.catalogue import CATALOGUE, Metric, closed_list
from budget_exporter.publish.text import presentable

__all__ = ["Families"]

_Labels = tuple[str, ...]

# Looked up for every sample once a second, so worked out once.
_LABEL_SETS = {metric.name: frozenset(metric.labels) for metric in CATALOGUE.values()}
_CLOSED = {
    metric.name: tuple((label, values) for label in metric.labels if (values := closed_list(metric.name, label)))
    for metric in CATALOGUE.values()
}


class Families:
    """
    The samples of one Snapshot, made anew each time so that no series outlives its cause.

    An absent fact (None) adds nothing. A label set that was added before keeps its first value, as Prometheus would:
    two engines or devices of one name must not cost the whole scrape.
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[_Labels, float]] = {}

    def add(self, name: str, value: float | None, /, **labels: str) -> None:
        """
        Add one sample; None and integers beyond a double's range add nothing.

        Raise KeyError for a name outside the catalogue, ValueError for labels that are not exactly the catalogue's or a
        value outside a closed list: both are errors of this program, never of the watched host.
        """
        metric = CATALOGUE[name]
        key = _key(metric, labels)
        if value is None:
            return
        try:
            number = float(value)
        except OverflowError:
            return
        self._samples.setdefault(name, {}).setdefault(key, number)

    def add_states(self, name: str, label: str, present: str, /, **labels: str) -> None:
        """Add one sample for each value of ``label``'s closed list: 1 for ``present``, 0 for the others."""
        for state in closed_list(name, label) or ():
            self.add(name, state == present, **{label: state}, **labels)

    def collect(self) -> list[Family]:
        """Return the families in the catalogue's order; a metric without a sample has none."""
        return [_family(metric, self._samples[name]) for name, metric in CATALOGUE.items() if name in self._samples]


def _key(metric: Metric, labels: Mapping[str, str]) -> _Labels:
    if labels.keys() != _LABEL_SETS[metric.name]:
        raise ValueError(f"{metric.name}: labels {sorted(labels)} are not the catalogue's {sorted(metric.labels)}")
    for label, values in _CLOSED[metric.name]:
        if labels[label] not in values:
            raise ValueError(f"{metric.name}: {labels[label]!r} is not in the closed list of {label}")
    return tuple([presentable(labels[label]) for label in metric.labels])


def _family(metric: Metric, samples: dict[_Labels, float]) -> Family:
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    # OpenMetrics allows a unit only where the name ends in it; client_python would append it.
    unit = metric.unit if name.endswith(f"_{metric.unit}") else ""
    family = Family(name, metric.help, metric.kind, unit)
    family.samples = [Sample(metric.name, dict(zip(metric.labels, key, strict=True)), n) for key, n in samples.items()]
    return family
