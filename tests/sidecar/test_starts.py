"""What the next start would change, from a unit's file to the Snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from budget_exporter import config
from budget_exporter.demo import boot_log
from budget_exporter.demo.host import UNIT, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES

OFF = frozenset({"systemd", "journal", "amdgpu", "file", "endpoint", "containers"})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Give a host on which an engine runs; its starts are looked at each second."""
    host = Host(tmp_path / "host")
    host.build()
    with host.config.open("a", encoding="utf-8") as file:
        file.write("sources:\n  pending: {interval: 1s}\n")
    for _, act in Engine(host, 0, HEALTHY, boot_log.SHAPE_G).boot(HEALTHY_FREE):
        act()
    return host


@contextlib.asynccontextmanager
async def running(host: Host, off: frozenset[str] = OFF) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(config.load(host.config, frozenset(SOURCES)), Options(roots=host.roots, off=off))
    task = asyncio.create_task(sidecar.run())
    try:
        yield sidecar
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(sidecar: Sidecar, look: Callable[[EngineState], object], limit: float = 20.0) -> EngineState:
    deadline = time.monotonic() + limit
    while True:
        for engine in sidecar.snapshot.engines if sidecar.snapshot else ():
            if look(engine):
                return engine
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


def write_unit(host: Host, line: str) -> None:
    file = host.roots.rootfs / "etc/systemd/system" / UNIT
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[Service]\nExecStart={line}\n", encoding="utf-8")


async def test_a_unit_that_is_edited_and_edited_back(host: Host) -> None:
    async with running(host) as sidecar:
        up = await until(sidecar, lambda e: e.up)
        assert up.sighting is not None
        line = shlex.join(up.sighting.argv)
        write_unit(host, line)
        await until(sidecar, lambda e: e.pending is not None and e.pending.flags == ())
        write_unit(host, f"{line} --max-num-seqs 77")
        await until(sidecar, lambda e: e.pending is not None and e.pending.flags == ("max-num-seqs",))
        write_unit(host, "/opt/start.sh")
        engine = await until(sidecar, lambda e: e.pending is not None and e.pending.flags is None)
        assert engine.pending is not None
        assert "no vLLM server" in engine.pending.why
        assert sidecar.snapshot is not None
        # A unit that starts a script is no trouble of ours.
        assert [s.success for s in sidecar.snapshot.sources if s.name == "pending"] == [True]


async def test_without_the_source_nothing_is_said(host: Host) -> None:
    write_unit(host, "/opt/venv/bin/vllm serve M")
    async with running(host, OFF | {"pending"}) as sidecar:
        engine = await until(sidecar, lambda e: e.up)
        assert engine.pending is None
        assert sidecar.snapshot is not None
        assert "pending" not in {s.name for s in sidecar.snapshot.sources}


async def test_a_start_that_was_configured_and_is_not_there_is_a_failed_run(host: Host) -> None:
    text = host.config.read_text(encoding="utf-8")
    host.config.write_text(text.replace("\n    match:", "\n    pending: {env_file: /etc/none.env}\n    match:", 1))
    async with running(host) as sidecar:
        await until(sidecar, lambda e: e.pending is not None and e.pending.flags is None)
        (source,) = [s for s in sidecar.snapshot.sources if s.name == "pending"] if sidecar.snapshot else []
        assert source.error == "vllm-qwen: env_file /etc/none.env: the file is not there"
