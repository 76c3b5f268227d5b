"""The synthetic host as an ordinary user builds it, and as it changes."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from budget_exporter.demo import boot_log
from budget_exporter.demo.host import DEVICES, Host
from budget_exporter.demo.player import HEALTHY, Engine
from budget_exporter.devices import amd_processes
from budget_exporter.units import GIB


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder anyone may write to, and take root's rights from this process."""
    # Loaded when first used, and the interpreter's own files may be out of an ordinary user's reach.
    codecs.lookup("ascii")
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o777)
        if root:
            os.seteuid(65534)
        try:
            yield Path(path)
        finally:
            if root:
                os.seteuid(0)


def test_an_ordinary_user_can_run_the_demo(folder: Path) -> None:
    host = Host(folder / "host")
    host.build()
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    source = amd_processes.source(host.roots)
    engine.start()
    for used in (5 * GIB, 7 * GIB):
        engine.hold(used)
        report = source.read(frozenset(engine.pids.workers))
        assert report.faults == ()
        assert [holders.device for holders in report.holders] == list(DEVICES)
        for holders, worker in zip(report.holders, engine.pids.workers, strict=True):
            assert {p.pid: p.used for p in holders.processes if p.used} == {worker: used}
            assert holders.complete
    engine.end()
    report = source.read(frozenset())
    assert (report.faults, [holders.processes for holders in report.holders]) == ((), [(), ()])
