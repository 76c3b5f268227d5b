"""Print, side by side in one run, what the exporter costs: a sample, a scrape, a log, its memory, its CPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from budget_exporter.units import MIB
from tests.bench import bench_log, bench_sample, bench_scrape, bench_spikes
from tests.integration.incident import serve, serving_host
from tests.integration.processes import until
from tests.integration.test_idle_host import bare, cost

SECONDS = 20.0
PEER = "import aiohttp.web, prometheus_client, yaml, msgspec, time; time.sleep(60)"


def main() -> None:
    """Measure and print everything."""
    bench_sample.main()
    print()  # noqa: T201 - a report
    bench_spikes.main()
    print()  # noqa: T201 - a report
    bench_scrape.main()
    print()  # noqa: T201 - a report
    bench_log.main()
    print()  # noqa: T201 - a report
    _process()


def _process() -> None:
    """Print memory and CPU of an exporter at 10 Hz, of one that has nothing to do, and of its libraries alone."""
    with tempfile.TemporaryDirectory() as folder:
        host, _ = serving_host(Path(folder) / "host")
        with serve(host, Path(folder) / "exporter.log") as running:
            running.ready()
            until(lambda: running.value("budget_reported_kv_pool_tokens"), "the log is read")
            watching = cost(running, SECONDS)
        with bare(Path(folder) / "bare", Path(folder) / "bare.log") as running:
            running.ready()
            idle = cost(running, SECONDS)
    peer = subprocess.Popen([sys.executable, "-c", PEER])
    try:
        time.sleep(3)
        alone = psutil.Process(peer.pid).memory_info().rss / MIB
    finally:
        peer.kill()
        peer.wait()
    print(f"{'the exporter, not scraped':<56} {'RSS MiB':>8} {'CPU %':>8} {'threads':>8}")  # noqa: T201 - a report
    rows = {"2 cards at 10 Hz, 1 engine": watching, "all sources on, a host with nothing to watch": idle}
    for what, found in rows.items():
        print(f"{what:<56} {found.resident / MIB:>8.1f} {100 * found.cpu:>8.2f} {found.threads:>8}")  # noqa: T201 - a report
    print(f"{'a process that only imports its four libraries':<56} {alone:>8.1f} {0:>8.2f} {1:>8}")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
