"""Engines on the CPU in the sidecar: the host's memory is their device, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from budget_exporter import config
from budget_exporter.demo import procfs_tree
from budget_exporter.demo.host import DEVICES, Host
from budget_exporter.demo.player import HEALTHY
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES
from budget_exporter.units import GIB, KIB, MIB

OFF = frozenset({"systemd", "journal"})
PID = 7000
NODE = "cpu/node0"


def lay_node(host: Host) -> None:
    """Give the host one node of 64 GiB, 40 GiB of them used, and 8 CPUs."""
    folder = host.roots.sysfs / "devices/system/node/node0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpulist").write_text("0-7\n")
    kib = {"MemTotal": 64, "MemFree": 20, "Active(file)": 1, "Inactive(file)": 2, "SReclaimable": 1}
    (folder / "meminfo").write_text("".join(f"Node 0 {name}: {gib * GIB // KIB} kB\n" for name, gib in kib.items()))


def start_on_cpu(host: Host, *flags: str, limit: int | None = None) -> None:
    """Start an engine that says on its command line that it runs on the CPU."""
    argv = ["/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "org/tiny", "--port", "7771", "--device", "cpu"]
    root = host.roots.rootfs.with_name("small")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    if limit is not None:
        (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    for process in procfs_tree.vllm_engine(PID, [*argv, *flags], {}, root=root):
        procfs_tree.add(host.roots.procfs, process)
        (host.roots.procfs / str(process.pid) / "smaps_rollup").write_text("Rss: 9 kB\nPss: 2048 kB\n")


class Watched:
    """A sidecar that runs, and its newest Snapshot."""

    def __init__(self, host: Host) -> None:
        self.made: list[Snapshot] = []
        self.sidecar = Sidecar(config.load(host.config, frozenset(SOURCES)), Options(roots=host.roots, off=OFF))
        self.sidecar.publish = self.made.append

    async def until(self, look: Callable[[Snapshot], object]) -> Snapshot:
        """Wait for a Snapshot for which ``look`` holds; return it."""
        deadline = time.monotonic() + 15
        while not (self.made and look(self.made[-1])):
            assert time.monotonic() < deadline, f"not within 15 s: {self.made[-1:]}"
            await asyncio.sleep(0.02)
        return self.made[-1]


@contextlib.asynccontextmanager
async def watching(host: Host) -> AsyncIterator[Watched]:
    watched = Watched(host)
    task = asyncio.create_task(watched.sidecar.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    made.build()
    made.config.write_text("")
    lay_node(made)
    return made


def has_run(made: Snapshot) -> bool:
    return any(source.name == "host" and source.runs > 1 and source.success for source in made.sources)


async def test_a_host_with_cards_shows_no_memory_of_its_own(host: Host) -> None:
    host.start(9000, HEALTHY)
    async with watching(host) as watched:
        made = await watched.until(lambda made: has_run(made) and any(e.ledger for e in made.engines))
        assert [device.identity.device for device in made.devices] == sorted(DEVICES)
        assert {p.device for engine in made.engines for p in engine.placements} == set(DEVICES)
        # Nobody asks the kernel to walk through the pages of an engine that is on a card.
        assert watched.sidecar._threads.on_host == frozenset()


async def test_an_engine_on_the_cpu_has_the_node_for_its_device_and_a_budget(host: Host) -> None:
    start_on_cpu(host, "--kv-cache-memory-bytes", "64M")
    async with watching(host) as watched:
        made = await watched.until(lambda made: any(e.rank_memory for e in made.engines))
        (engine,) = made.engines
        assert [(p.rank, p.device, p.why) for p in engine.placements] == [("0", NODE, "")]
        (node,) = [device for device in made.devices if device.identity.platform == "host"]
        assert (node.memory.size, node.memory.used) == (64 * GIB, 40 * GIB)
        assert node.ownership is not None
        # A share is told, but not what belongs to nobody: not all processes are looked at.
        assert (node.ownership.attributed, node.ownership.foreign_bytes) == (engine.rank_memory["0"].used, None)
        assert engine.ledger is not None
        assert engine.ledger.law == "vllm_cpu"
        pool = engine.ledger.ranks["0"].kv_pool
        assert pool is not None
        assert (pool.bytes, engine.ledger.ranks["0"].size) == (64 * MIB, 64 * GIB)
        assert engine.verdict.ranks["0"].margin_now == 24 * GIB
        procfs_tree.remove(host.roots.procfs, PID)
        made = await watched.until(lambda made: not any(e.up for e in made.engines))


async def test_the_limit_of_a_container_is_the_size_and_the_node_s_margin_is_not_the_engine_s(host: Host) -> None:
    start_on_cpu(host, "--gpu-memory-utilization", "0.5", limit=16 * GIB)
    async with watching(host) as watched:
        made = await watched.until(
            lambda made: any(e.ledger and e.ledger.ranks["0"].size == 16 * GIB for e in made.engines)
        )
        (engine,) = made.engines
        assert engine.ledger is not None
        assert engine.ledger.ranks["0"].requested == 8 * GIB
        rank = engine.verdict.ranks.get("0")
        assert rank is None or rank.margin_now is None
        assert any("container's limit of 16.00 GiB" in note for note in engine.ledger.notes)
