"""Four exporters, one Prometheus, one Alertmanager: the scenery of the end-to-end tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.demo import boot_log
from budget_exporter.demo.host import Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from tests.integration.paging import Paging
from tests.integration.processes import Exporter, exporter

__all__ = ["Incident", "scenery", "serve"]


@dataclass(frozen=True)
class Incident:
    """What runs: exporters by the ``instance`` label of their target, and the host that the tests drive."""

    exporters: dict[str, Exporter]
    driven: Host
    paging: Paging


def serve(host: Host, log: Path, *words: str) -> contextlib.AbstractContextManager[Exporter]:
    """Run the exporter on a synthetic host."""
    roots = host.roots
    return exporter(
        log,
        "serve",
        f"--config.file={host.config}",
        f"--path.sysfs={roots.sysfs}",
        f"--path.procfs={roots.procfs}",
        f"--path.rootfs={roots.rootfs}",
        "--no-source.systemd",
        "--no-source.journal",
        *words,
    )


def serving_host(folder: Path) -> tuple[Host, Engine]:
    """
    Return a synthetic host whose engine has just come to serve, with 0.89 GiB free on both cards.

    It died once before anybody watched, of a request: its log holds two boots and a death.
    """
    host = Host(folder)
    host.build()
    before, engine = (Engine(host, number, HEALTHY, boot_log.SHAPE_G) for number in range(2))
    died = before.say(boot_log.first_request_oom(before.pids))
    for _, act in (*before.boot(HEALTHY_FREE), *died, (0.0, before.end), *engine.boot(HEALTHY_FREE)):
        act()
    return host, engine


@contextlib.contextmanager
def scenery(folder: Path) -> Iterator[Incident]:
    """Start the healthy host first, then the others, then what watches them; end all."""
    with contextlib.ExitStack() as stack:

        def demo(scenario: str) -> Exporter:
            run = exporter(folder / f"{scenario}.log", "demo", "--scenario", scenario)
            return stack.enter_context(run).ready()

        exporters = {name: demo(name) for name in ("healthy", "knife-edge", "crash-loop")}
        driven, _ = serving_host(folder / "driven")
        exporters["driven"] = stack.enter_context(serve(driven, folder / "driven.log")).ready()
        paging = Paging(folder, {name: running.address for name, running in exporters.items()})
        stack.callback(paging.close)
        yield Incident(exporters, driven, paging)
