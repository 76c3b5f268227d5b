"""
Render a Snapshot's metrics once, in every format a scraper may ask for.

The lines of samples are the same in the text format 0.0.4 and in OpenMetrics 1.0, and they are nearly all of the work:
they are formatted once and put under the head lines of each format. A test holds both against client_python's own.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish.metrics import families
from budget_exporter.publish.negotiate import Format

__all__ = ["CONTENT_TYPES", "Exposition", "Rendered", "own_collectors", "render_families"]

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
        text, openmetrics = render_families([*host, *own])
        return Rendered(
            text=text,
            openmetrics=openmetrics,
            text_gzip=gzip.compress(text, _GZIP_LEVEL, mtime=0),
            openmetrics_gzip=gzip.compress(openmetrics, _GZIP_LEVEL, mtime=0),
        )


def render_families(metrics: Iterable[Family]) -> tuple[bytes, bytes]:
    """
    Return gauges and counters as text format 0.0.4 and as OpenMetrics 1.0, both UTF-8.

    Raise ValueError for any other type: its samples would not look the same in both formats.
    """
    text: list[str] = []
    openmetrics: list[str] = []
    for family in metrics:
        if family.type not in {"gauge", "counter"}:
            raise ValueError(f"{family.name}: {family.type} has no common form in both formats")
        help_text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        text.append(f"# HELP {name} {help_text}\n# TYPE {name} {family.type}\n")
        quoted = help_text.replace('"', r"\"")
        openmetrics.append(f"# HELP {family.name} {quoted}\n# TYPE {family.name} {family.type}\n")
        if family.unit:
            openmetrics.append(f"# UNIT {family.name} {family.unit}\n")
        # A family's _created series says when a counter of this process began; ours outlive it.
        lines = "".join(_line(sample) for sample in family.samples if not sample.name.endswith("_created"))
        text.append(lines)
        openmetrics.append(lines)
    openmetrics.append("# EOF\n")
    return "".join(text).encode(), "".join(openmetrics).encode()


def _line(sample: Sample) -> str:
    labels = ",".join([f'{label}="{_escape(value)}"' for label, value in sorted(sample.labels.items())])
    name = f"{sample.name}{{{labels}}}" if labels else sample.name
    number = floatToGoString(sample.value)  # type: ignore[no-untyped-call]  # client_python leaves it untyped
    return f"{name} {number}\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
