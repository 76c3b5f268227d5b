"""
Print what a scrape costs from bytes rendered once per Snapshot, beside rendering it for every request.

All in one run on one machine: server and client share one event loop and one kept-alive connection over loopback, so a
figure is the work of both, and the proportions are the point. The request is the one Prometheus sends.
"""

from __future__ import annotations

import asyncio
import gzip
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from aiohttp import web
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish.exposition import CONTENT_TYPES, Exposition
from budget_exporter.publish.http import application
from budget_exporter.publish.metrics import families
from tests.publish import snapshots

WARM_UP = 50
SCRAPES = 600
REQUEST = (
    b"GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept-Encoding: gzip\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n\r\n"
)


def eight_ranks() -> Snapshot:
    """Return four engines of two ranks each, on the two cards of the hand-built host."""
    before = snapshots.healthy()
    return replace(before, engines=tuple(replace(before.engines[0], name=f"vllm-{n}") for n in range(4)))


class _Collector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Family]:
        return families(self._snapshot)


def by_the_client(snapshot: Snapshot) -> web.Application:
    """Return an application that renders with client_python for every request."""
    collector = _Collector(snapshot)

    async def metrics(_: web.Request) -> web.Response:
        body = gzip.compress(generate_latest(collector))  # type: ignore[no-untyped-call]  # client_python's
        headers = {"Content-Type": CONTENT_TYPES["openmetrics"], "Content-Encoding": "gzip"}
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


async def latencies(app: web.Application) -> list[float]:
    """Return the milliseconds each scrape took, first byte sent to last byte read."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        taken = [await _scrape(reader, writer) for _ in range(WARM_UP + SCRAPES)]
        writer.close()
        await writer.wait_closed()
    finally:
        await runner.cleanup()
    return taken[WARM_UP:]


async def _scrape(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    start = time.perf_counter()
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not served: {head[:80]!r}")
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))
    return (time.perf_counter() - start) * 1e3


def milliseconds(run: Callable[[], object], repeat: int = 50) -> float:
    """Return the median time of ``run`` in milliseconds."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def main() -> None:
    """Measure and print the table."""
    snapshot = eight_ranks()
    samples = sum(len(family.samples) for family in families(snapshot))
    size = len(Exposition().render(snapshot).openmetrics)

    def anew() -> Snapshot:
        return replace(snapshot)  # another Snapshot of the same content: it is rendered again

    rows = [
        ("from bytes, rendered once per Snapshot", application(lambda: snapshot)),
        ("rendered for every request", by_the_client(snapshot)),
    ]
    print(f"{f'scrape of {samples} samples, {size} B, gzip':<56} {'p50 ms':>8} {'p99 ms':>8}")  # noqa: T201 - a report
    for what, app in rows:
        cuts = statistics.quantiles(asyncio.run(latencies(app)), n=100)
        print(f"{what:<56} {cuts[49]:>8.2f} {cuts[98]:>8.2f}")  # noqa: T201 - a report
    exposition = Exposition()
    once = milliseconds(lambda: exposition.render(anew()))
    print(f"{'one rendering: both formats, plain and gzip':<56} {once:>8.2f}")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
