"""
Record the healthy demo host anew: ``python -m tests.alerts.record > tests/alerts/healthy_host.prom``.

It takes two minutes: the engine boots, and its spikes leave the window of the last minute. Needed when series are new
or are named otherwise; what changes in the figures is to be looked at before it is committed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.integration.processes import exporter, until

__all__ = ["main"]

BOOTED = 120.0
"""Seconds a boot of the demo may take."""
SETTLED = 75.0
"""Seconds of serving after which the window holds none of the boot's spikes."""


def main() -> None:
    """Run the demo with ready exporter, wait until it is calm, write its exposition to standard output."""
    with (
        tempfile.TemporaryDirectory() as folder,
        exporter(Path(folder) / "log", "demo", "--scenario", "healthy") as running,
    ):
        until(lambda: running.value("budget_engine_phase", phase="serving") == 1, "the engine serves", BOOTED)
        since = running.value("budget_engine_phase_start_time_seconds") or 0.0
        until(lambda: time.time() - since > SETTLED, "the window forgets the boot", 2 * SETTLED, 1.0)
        sys.stdout.write(running.get()[1])


if __name__ == "__main__":
    main()
