"""Every source there is, on a host that has none of what they read: what that costs and that nothing is said of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from budget_exporter.demo import amdgpu_tree
from budget_exporter.demo.procfs_tree import Process, build
from budget_exporter.sources import SOURCES
from budget_exporter.units import MIB
from tests.integration.processes import Exporter, exporter, until

ALLOWED = 56 * MIB
SECONDS = 5.0
ASKED_FOR = {"neuron_monitor", "journal", "systemd"}
"""Those that may say that what they were told to ask is not there."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process takes: bytes resident, threads, the share of one core."""

    resident: int
    threads: int
    cpu: float


def bare(folder: Path, log: Path) -> contextlib.AbstractContextManager[Exporter]:
    """Run the exporter with all sources on, on a host with one process and no device."""
    amdgpu_tree.build(folder / "sys", cards=())
    build(folder / "proc", [Process(1, comm="init")], int(time.time()) - 1000, "b")
    (folder / "root").mkdir()
    roots = [
        f"--path.{name}={folder / path}" for name, path in (("sysfs", "sys"), ("procfs", "proc"), ("rootfs", "root"))
    ]
    return exporter(log, "serve", *roots, *(f"--source.{name}" for name in SOURCES))


def cost(running: Exporter, seconds: float) -> Cost:
    """Return what the exporter takes over ``seconds``."""
    process = psutil.Process(running.pid)
    before, began = process.cpu_times(), time.monotonic()
    threading.Event().wait(seconds)
    after, passed = process.cpu_times(), time.monotonic() - began
    cpu = (after.user + after.system - before.user - before.system) / passed
    return Cost(process.memory_info().rss, process.num_threads(), cpu)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    folder = tmp_path_factory.mktemp("bare")
    with bare(folder, folder / "log") as started:
        yield started.ready()


def test_no_source_fails_for_a_platform_that_is_not_there(running: Exporter) -> None:
    success = "budget_source_success"

    def failing() -> set[str]:
        return {
            dict(labels)["source"]
            for (name, labels), value in running.series().items()
            if name == success and not value
        }

    until(lambda: failing() <= ASKED_FOR, "all are content")
    assert not {name for name, _ in running.series() if name.startswith(("budget_device_", "budget_engine_"))}
    assert not [line for line in running.log.splitlines() if "ERROR" in line or "Traceback" in line]


def test_all_sources_together_fit_in_56_mib_and_idle(running: Exporter) -> None:
    found = cost(running, SECONDS)
    print(  # noqa: T201 - the figures of this test
        f"{len(SOURCES)} sources on a bare host: RSS {found.resident / MIB:.1f} MiB, {found.threads} threads, "
        f"{100 * found.cpu:.1f} % of a core"
    )
    assert found.resident <= ALLOWED
    # One for each source that blocks (ten devices', the process list, what is pending), and a few for small jobs.
    assert found.threads <= 18
    assert found.cpu < 0.2
