"""Whose memory it is, over time: foreign, left behind, largest; through restarts of engines and of the exporter."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter import config, state
from budget_exporter.demo import amdgpu_tree, boot_log, procfs_tree
from budget_exporter.demo.host import DEVICES, SIZE, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, RESERVE, Engine
from budget_exporter.demo.procfs_tree import Process
from budget_exporter.facts.device import (
    DeviceIdentity,
    DeviceReport,
    DeviceSample,
    Holders,
    MemorySample,
    ProcessMemory,
)
from budget_exporter.facts.ownership import DeviceOwnership, RankMemory
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.sidecar.devices import Board
from budget_exporter.sidecar.owners import Owners
from budget_exporter.sidecar.peaks import UNSEEN
from budget_exporter.sidecar.reports import fold
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES
from budget_exporter.units import GIB, MIB

OFF = frozenset({"systemd", "journal", "podman", "docker", "containers"})
HELD = SIZE - RESERVE - HEALTHY_FREE
FIRST, SECOND = DEVICES
STRANGER = 9000


class Scene:
    """The sidecar on the synthetic host, and every Snapshot it has made."""

    def __init__(self, host: Host, state_file: Path | None = None, off: frozenset[str] = frozenset()) -> None:
        self.made: list[Snapshot] = []
        loaded = config.load(host.config, frozenset(SOURCES))
        self.sidecar = Sidecar(loaded, Options(roots=host.roots, off=OFF | off, state_file=state_file))
        self.sidecar.publish = self.made.append

    @property
    def engine(self) -> EngineState:
        return next(e for e in self.made[-1].engines if e.name == "vllm-qwen")

    @property
    def ranks(self) -> dict[str, RankMemory]:
        return dict(self.engine.rank_memory)

    def owned(self, device: str = SECOND) -> DeviceOwnership:
        return next(s.ownership for s in self.made[-1].devices if s.identity.device == device and s.ownership)

    def foreign(self, device: str = SECOND) -> list[int]:
        return [process.pid for process in self.owned(device).foreign or ()]

    def leftover(self, device: str = SECOND) -> list[tuple[str, int]]:
        return [(name, process.pid) for name, process in self.owned(device).leftover]

    def zombie(self) -> bool | None:
        return self.engine.verdict.findings.get("zombie_memory")

    async def until(self, look: Callable[[], object]) -> None:
        """Wait until ``look`` holds; what is not there yet may be missing."""
        deadline = time.monotonic() + 20.0
        while not self._holds(look):
            assert time.monotonic() < deadline, self.made[-1:]
            await asyncio.sleep(0.02)

    @staticmethod
    def _holds(look: Callable[[], object]) -> bool:
        try:
            return bool(look())
        except (StopIteration, LookupError):
            return False


@contextlib.asynccontextmanager
async def watching(
    host: Host, state_file: Path | None = None, off: frozenset[str] = frozenset()
) -> AsyncIterator[Scene]:
    scene = Scene(host, state_file, off)
    task = asyncio.create_task(scene.sidecar.run())
    try:
        yield scene
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    made.build()
    return made


def boot(host: Host, number: int = 0) -> Engine:
    engine = Engine(host, number, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    return engine


def kill_all_but_its_last_worker(host: Host, engine: Engine, *, left: str = "S") -> int:
    """End the engine; a worker stays, an orphan in the state ``left``, and the driver counts what it holds."""
    worker = engine.pids.workers[1]
    others = [engine.pids.api, engine.pids.api + 1, engine.pids.core, engine.pids.workers[0]]
    procfs_tree.remove(host.roots.procfs, worker)
    title = "VLLM::Worker_TP1"
    procfs_tree.add(host.roots.procfs, Process(worker, 1, comm=title[:15], title=title, state=left, start_ticks=9))
    host.end(others)
    host.hold(FIRST, RESERVE)
    return worker


async def test_a_worker_that_outlives_its_engine_is_its_own_finding_and_nobody_s_until_it_lets_go(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also over a restart of the exporter, and after the engine's next start."""
    caplog.set_level(logging.INFO, "budget_exporter.foreign")
    file = tmp_path / "state.json"
    async with watching(host, file) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["1"].used == HELD)
        assert scene.zombie() is False
        worker = kill_all_but_its_last_worker(host, engine)
        await scene.until(lambda: scene.leftover() == [("vllm-qwen", worker)])
        assert scene.foreign() == []
        assert scene.engine.up is False
        assert scene.zombie() is False, "as at any stop, where some end a moment after the main process"
        await scene.until(scene.zombie)
        assert [(p.pid, p.used) for p in scene.engine.leftover] == [(worker, HELD)]
    async with watching(host, file) as again:
        await again.until(lambda: again.leftover() == [("vllm-qwen", worker)])
        assert all(not s.ownership.foreign for made in again.made for s in made.devices if s.ownership)
        # The next start finds the card taken; its own use is told apart from what was left behind.
        following = Engine(host, 1, HEALTHY, boot_log.SHAPE_G)
        following.start()
        host.own(1, following.pids.workers[1], GIB)
        await again.until(lambda: again.engine.up and again.ranks["1"].used == GIB)
        assert again.leftover() == [("vllm-qwen", worker)]
        assert again.zombie() is True
        host.end([worker])
        await again.until(lambda: again.leftover() == [])
        assert again.zombie() is False
        assert again.foreign() == []
    assert "held by no known engine" not in caplog.text


async def test_a_zombie_is_listed_with_its_state(host: Host) -> None:
    async with watching(host) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["1"].used == HELD)
        worker = kill_all_but_its_last_worker(host, engine, left="Z")
        await scene.until(lambda: [(p.pid, p.state) for p in scene.engine.leftover] == [(worker, "Z")])


async def test_while_the_list_of_processes_is_not_there_what_was_left_behind_is_not_forgotten(host: Host) -> None:
    """A list that fails for a while must not make the engine's own worker a stranger."""
    kfd = host.roots.sysfs / "class/kfd/kfd/proc"
    aside = host.roots.sysfs / "aside"
    async with watching(host) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["1"].used == HELD)
        worker = kill_all_but_its_last_worker(host, engine)
        await scene.until(lambda: scene.leftover() == [("vllm-qwen", worker)])
        real = kfd.resolve()
        real.rename(aside)
        await scene.until(lambda: all(s.ownership is None or not s.ownership.leftover for s in scene.made[-1].devices))
        aside.rename(real)
        await scene.until(lambda: scene.leftover() == [("vllm-qwen", worker)])
        assert all(not s.ownership.foreign for made in scene.made for s in made.devices if s.ownership)


async def test_a_process_that_got_the_pid_of_what_was_left_behind_is_foreign(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with watching(host, file) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["1"].used == HELD)
    worker = kill_all_but_its_last_worker(host, engine)
    procfs_tree.remove(host.roots.procfs, worker)
    procfs_tree.add(host.roots.procfs, Process(worker, comm="stranger"))
    async with watching(host, file) as again:
        await again.until(lambda: again.foreign() == [worker])
        assert again.leftover() == []


async def test_after_a_boot_of_the_host_nothing_is_left_of_the_engines_before(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with watching(host, file) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["1"].used == HELD)
    worker = kill_all_but_its_last_worker(host, engine)
    (host.roots.procfs / "sys/kernel/random/boot_id").write_text("0d2a9c11-5a4e-4a3e-9a53-111111111111\n")
    Engine(host, 1, HEALTHY, boot_log.SHAPE_G).start()
    async with watching(host, file) as again:
        await again.until(lambda: again.foreign() == [worker])


async def test_a_stranger_is_named_in_the_log_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "budget_exporter.foreign")
    async with watching(host) as scene:
        await scene.until(lambda: scene.owned().foreign == ())
        procfs_tree.add(host.roots.procfs, Process(STRANGER, comm="stranger"))
        amdgpu_tree.add_kfd_process(host.roots.sysfs, STRANGER, {SECOND: GIB})
        await scene.until(lambda: scene.foreign() == [STRANGER])
        seen = len(scene.made)
        await scene.until(lambda: len(scene.made) >= seen + 3)
        amdgpu_tree.remove_kfd_process(host.roots.sysfs, STRANGER)
        await scene.until(lambda: scene.foreign() == [])
    assert [record.message for record in caplog.records if record.name == "budget_exporter.foreign"] == [
        f"{SECOND}: held by no known engine: stranger (PID {STRANGER})",
        "works again",
    ]


async def test_an_engine_in_a_pid_namespace_owns_by_the_host_s_pids_and_never_by_its_inner_ones(host: Host) -> None:
    """Inside its container the worker is PID 33, and so is another process of the host that holds memory."""
    async with watching(host) as scene:
        engine = boot(host)
        for nth, pid in enumerate([engine.pids.api, engine.pids.core, *engine.pids.workers]):
            status = host.roots.procfs / f"{pid}/status"
            status.write_text(status.read_text().replace(f"NSpid:\t{pid}\n", f"NSpid:\t{pid}\t{30 + nth}\n"))
        procfs_tree.add(host.roots.procfs, Process(33, comm="stranger"))
        amdgpu_tree.add_kfd_process(host.roots.sysfs, 33, {SECOND: GIB})
        await scene.until(lambda: scene.foreign() == [33] and scene.ranks["1"].used == HELD)
        owned = scene.owned()
        assert (owned.attributed, owned.foreign_bytes) == (HELD + GIB, GIB)


async def test_a_process_that_two_namespaces_show_is_counted_once_and_nobody_is_foreign(host: Host) -> None:
    """
    Our procfs is a container's: it shows the workers under PIDs of its own, the driver lists them by the host's.

    The two lists must not be added, and what is not ours by PID is not foreign for it.
    """
    init = host.roots.procfs / "1/ns/pid"
    init.unlink()
    init.symlink_to("pid:[4026532999]")
    for rank, device in enumerate(DEVICES):
        amdgpu_tree.add_kfd_process(host.roots.sysfs, 70_000 + rank, {device: HELD})
    async with watching(host) as scene:
        engine = boot(host)
        for worker in engine.pids.workers:
            # Of these the driver knows nothing: they are what our procfs calls the two above.
            amdgpu_tree.remove_kfd_process(host.roots.sysfs, worker)
        shown = HELD // 1024 * 1024  # fdinfo counts KiB
        await scene.until(lambda: {r: m.used for r, m in scene.ranks.items()} == {"0": shown, "1": shown})
        for device in DEVICES:
            owned = scene.owned(device)
            assert (owned.attributed, owned.foreign, owned.foreign_bytes, owned.unattributed) == (
                shown,
                None,
                None,
                None,
            )


async def test_the_largest_use_of_a_rank_survives_the_exporter_and_not_its_engine(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with watching(host, file) as scene:
        engine = boot(host)
        await scene.until(lambda: scene.ranks["0"].used == HELD)
        host.own(0, engine.pids.workers[0], HELD + 64 * MIB)
        await scene.until(lambda: scene.ranks["0"].used == HELD + 64 * MIB)
        host.own(0, engine.pids.workers[0], HELD)
        await scene.until(lambda: scene.ranks["0"].used == HELD)
    async with watching(host, file) as again:
        await again.until(lambda: again.ranks["0"].used == HELD)
        assert {rank: m.used_high_water for rank, m in again.ranks.items()} == {"0": HELD + 64 * MIB, "1": HELD}
        engine.end()
        await again.until(lambda: again.engine.up is False)
        following = Engine(host, 1, HEALTHY, boot_log.SHAPE_G)
        following.start()
        host.own(0, following.pids.workers[0], GIB)
        await again.until(lambda: again.engine.up and again.ranks["0"].used == GIB)
        assert again.ranks["0"].used_high_water == GIB


async def test_after_a_longer_absence_nothing_is_said_to_be_the_largest_use(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with watching(host, file) as scene:
        boot(host)
        await scene.until(lambda: scene.ranks["0"].used_high_water == HELD)
    saved = state.load(file)
    memory = saved.engines["vllm-qwen"]
    assert set(memory.peaks) == {"0", "1"}
    old = {rank: replace(peak, looked=peak.looked - UNSEEN - 5) for rank, peak in memory.peaks.items()}
    state.save(file, replace(saved, engines={"vllm-qwen": replace(memory, peaks=old)}))
    async with watching(host, file) as again:
        await again.until(lambda: again.ranks["0"].used == HELD)
        assert {m.used_high_water for m in again.ranks.values()} == {None}


async def test_an_engine_that_was_there_before_the_exporter_has_no_largest_use(host: Host) -> None:
    before = Engine(Host(host.roots.sysfs.parent, clock=lambda: time.time() - 3 * UNSEEN), 0, HEALTHY, boot_log.SHAPE_G)
    before.start()
    host.own(0, before.pids.workers[0], HELD)
    async with watching(host) as scene:
        await scene.until(lambda: scene.ranks["0"].used == HELD)
        assert scene.ranks["0"].used_high_water is None


def test_what_all_programs_of_a_host_hold_is_not_what_no_process_of_the_card_accounts_for() -> None:
    """A chip without memory of its own has the host's figures; its list of processes is of the card all the same."""
    for sampler, unattributed in (("nvml_v2", 7 * GIB), ("meminfo", None)):
        board = Board()
        identity = DeviceIdentity(FIRST, "nvidia", "chip", "580", sampler)
        sample = DeviceSample(identity, MemorySample(100.0, 64 * GIB, 8 * GIB))
        listed = Holders(FIRST, 100.0, (ProcessMemory(STRANGER, GIB),), complete=True)
        folded = fold(None, DeviceReport((sample,), holders=(listed,)))
        board.update(folded.windows, {})
        board.tell("nvidia", folded, 100.0, 1.0)
        owned = Owners({}).divide(board, [], {}, 100.0).division.devices[FIRST]
        assert (owned.foreign_bytes, owned.unattributed) == (GIB, unattributed)
