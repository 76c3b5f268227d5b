"""Whose memory it is, from the drivers' files to a Snapshot: ranks, a foreign process, one that outlives its engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from budget_exporter import config
from budget_exporter.demo import amdgpu_tree, boot_log, procfs_tree
from budget_exporter.demo.host import DEVICES, SIZE, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, RESERVE, Engine
from budget_exporter.facts.ownership import DeviceOwnership
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES
from budget_exporter.units import GIB, MIB

OFF = frozenset({"systemd", "journal", "podman", "docker", "containers"})
HELD = SIZE - RESERVE - HEALTHY_FREE


class Scene:
    """A sidecar on the synthetic host, and its newest Snapshot."""

    def __init__(self, host: Host) -> None:
        loaded = config.load(host.config, frozenset(SOURCES))
        self.sidecar = Sidecar(loaded, Options(roots=host.roots, off=OFF))
        self.made: list[Snapshot] = []
        self.sidecar.publish = self.made.append

    @property
    def engine(self) -> EngineState | None:
        return next(iter(self.made[-1].engines), None) if self.made else None

    def owned(self, device: str) -> DeviceOwnership | None:
        return next((s.ownership for s in self.made[-1].devices if s.identity.device == device), None)

    async def until(self, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20.0
        while not (self.made and look()):
            assert time.monotonic() < deadline, self.made[-1:]
            await asyncio.sleep(0.02)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    made.build()
    return made


async def test_ranks_foreign_processes_and_what_outlives_its_engine(host: Host) -> None:
    scene = Scene(host)
    task = asyncio.create_task(scene.sidecar.run())
    try:
        await look_at(host, scene)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def look_at(host: Host, scene: Scene) -> None:
    first, second = DEVICES
    # Nobody runs: everything in use is the driver's.
    await scene.until(lambda: (o := scene.owned(first)) and (o.foreign, o.unattributed) == ((), RESERVE))
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    await scene.until(
        lambda: (e := scene.engine) and {r: h.used for r, h in e.rank_memory.items()} == {"0": HELD, "1": HELD}
    )
    await scene.until(lambda: (o := scene.owned(second)) and (o.foreign_bytes, o.unattributed) == (0, RESERVE))
    # A peak, and rank 0 alone has it.
    host.own(0, engine.pids.workers[0], HELD + 64 * MIB)
    await scene.until(lambda: (e := scene.engine) and e.rank_memory["0"].used == HELD + 64 * MIB)
    host.own(0, engine.pids.workers[0], HELD)
    await scene.until(lambda: (e := scene.engine) and e.rank_memory["0"].used == HELD)
    assert scene.engine is not None
    assert {r: h.used_high_water for r, h in scene.engine.rank_memory.items()} == {"0": HELD + 64 * MIB, "1": HELD}
    # Another program comes to the second card.
    procfs_tree.add(host.roots.procfs, procfs_tree.Process(9000, comm="stranger"))
    amdgpu_tree.add_kfd_process(host.roots.sysfs, 9000, {second: GIB})
    host.hold(second, RESERVE + HELD + GIB // 2)
    await scene.until(
        lambda: (o := scene.owned(second)) and o.foreign_bytes == GIB and o.unattributed == RESERVE - GIB // 2
    )
    owned = scene.owned(second)
    assert owned is not None
    assert [(p.pid, p.name) for p in owned.foreign or ()] == [(9000, "stranger")]
    # The engine's processes go, but the driver still counts what one of them held.
    worker = engine.pids.workers[1]
    engine.end()
    amdgpu_tree.add_kfd_process(host.roots.sysfs, worker, {second: 3 * GIB})
    await scene.until(lambda: (e := scene.engine) and [(p.pid, p.used) for p in e.leftover] == [(worker, 3 * GIB)])
    owned = scene.owned(second)
    assert owned is not None
    assert [name for name, _ in owned.leftover] == ["vllm-qwen"]
    assert owned.foreign_bytes == GIB
