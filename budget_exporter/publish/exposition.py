"""Render a Snapshot's metrics once, in every format a scraper may ask for."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import PlatformCollector, ProcessCollector, exposition as text_format
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish.metrics import families
from budget_exporter.publish.negotiate import Format

__all__ = ["CONTENT_TYPES", "Exposition", "Rendered", "own_collectors"]

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_GZIP_LEVEL = 1  # a tenth of the time of level 9 for a fifth more bytes


@dataclass(frozen=True, slots=True)
class Rendered:
    """One Snapshot's exposition, ready to be sent."""

    text: bytes
    openmetrics: bytes
    text_gzip: bytes
    openmetrics_gzip: bytes

    def body(self, form: Format, *, gzipped: bool) -> bytes:
        """Return the bytes of one format, compressed or plain."""
        if form == "openmetrics":
            return self.openmetrics_gzip if gzipped else self.openmetrics
        return self.text_gzip if gzipped else self.text


def own_collectors() -> tuple[Collector, ...]:
    """Return collectors of this process's own figures; they read the real /proc, wherever the host's is mounted."""
    return (ProcessCollector(registry=None), PlatformCollector(registry=None))


class Exposition:
    """
    The rendering of the newest Snapshot, made at most once for each.

    ``render`` may be called from any thread: the sidecar calls it when it has made a Snapshot, so that a scrape finds
    the bytes done; a scrape that comes first waits for them.
    """

    def __init__(self, own: Sequence[Collector] | None = None) -> None:
        """Take collectors of the process's own figures; None for the usual ones, ``()`` for none."""
        self._own = tuple(own_collectors() if own is None else own)
        self._lock = threading.Lock()
        self._last: tuple[Snapshot | None, Rendered] | None = None

    def render(self, snapshot: Snapshot | None) -> Rendered:
        """Return the exposition of ``snapshot``; None (before the first one) has the process's own figures only."""
        with self._lock:
            if self._last is None or self._last[0] is not snapshot:
                self._last = (snapshot, self._render(snapshot))
            return self._last[1]

    def _render(self, snapshot: Snapshot | None) -> Rendered:
        host = [] if snapshot is None else families(snapshot)
        own = [family for collector in self._own for family in collector.collect()]
        metrics = _Families([_without_created(family) for family in (*host, *own)])
        text = text_format.generate_latest(metrics)
        openmetrics = openmetrics_format.generate_latest(metrics)  # type: ignore[no-untyped-call]  # client_python's
        return Rendered(
            text=text,
            openmetrics=openmetrics,
            text_gzip=gzip.compress(text, _GZIP_LEVEL, mtime=0),
            openmetrics_gzip=gzip.compress(openmetrics, _GZIP_LEVEL, mtime=0),
        )


class _Families(Collector):
    """Families made beforehand, in the shape that client_python renders."""

    def __init__(self, metrics: Sequence[Family]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Family]:
        return self._metrics


def _without_created(family: Family) -> Family:
    """Return ``family`` without ``_created``, which says when a counter of this process began; ours outlive it."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family
