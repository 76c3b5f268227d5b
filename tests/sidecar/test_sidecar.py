"""The sidecar on a synthetic host: what it must not claim when something it looks at hangs, vanishes or changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter import config, state
from budget_exporter.demo import amdgpu_tree, boot_log
from budget_exporter.demo.host import DEVICES, UNIT, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from budget_exporter.errors import ConfigError
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES

OFF = frozenset({"systemd", "journal"})
ENGINE = "vllm-qwen"


class Watched:
    """A sidecar that runs, and every Snapshot it has made."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.made: list[Snapshot] = []
        sidecar.publish = self.made.append

    @property
    def last(self) -> Snapshot:
        """Return the newest Snapshot."""
        return self.made[-1]

    def engine(self, name: str = ENGINE) -> EngineState | None:
        """Return an engine of the newest Snapshot."""
        return next((e for e in self.last.engines if e.name == name), None) if self.made else None

    async def until(self, look: Callable[[EngineState], object], name: str = ENGINE, limit: float = 15.0) -> None:
        """Wait until ``look`` holds for the engine ``name``."""
        deadline = time.monotonic() + limit
        while not ((engine := self.engine(name)) and look(engine)):
            assert time.monotonic() < deadline, f"not within {limit} s: {engine}"
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def watching(host: Host, *, off: frozenset[str] = OFF, state_file: Path | None = None) -> AsyncIterator[Watched]:
    loaded = config.load(host.config, frozenset(SOURCES))
    watched = Watched(Sidecar(loaded, Options(roots=host.roots, off=off, state_file=state_file)))
    task = asyncio.create_task(watched.sidecar.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def idle(tmp_path: Path) -> Host:
    host = Host(tmp_path / "host")
    host.build()
    return host


def boot(host: Host, number: int = 0) -> Engine:
    engine = Engine(host, number, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    return engine


async def test_nobody_claims_an_engine_up_while_the_finder_hangs(idle: Host) -> None:
    """A FIFO in the place of proc/stat hangs every look at the processes."""
    boot(idle)
    stat = idle.roots.procfs / "stat"
    text = stat.read_text()
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up)
        restarts = watched.made[-1].engines[0].restarts
        stat.unlink()
        os.mkfifo(stat)
        await watched.until(lambda e: e.up is None)
        assert watched.engine().phase == "unknown"  # type: ignore[union-attr]
        await asyncio.to_thread(stat.write_text, text)  # lets the hanging read go
        stat.unlink()
        stat.write_text(text)
        await watched.until(lambda e: e.up)
        assert watched.made[-1].engines[0].restarts == restarts
        assert all(e.up is not False for s in watched.made for e in s.engines)


async def test_without_a_finder_nothing_is_said_of_a_configured_engine(idle: Host) -> None:
    async with watching(idle, off=OFF | {"procfs"}) as watched:
        await watched.until(lambda e: e.phase == "unknown")
        await asyncio.sleep(1.5)
        assert {e.up for s in watched.made for e in s.engines} == {None}
        assert {d.high_water.baseline for d in watched.last.devices} == {None}


async def test_a_remembered_engine_that_runs_is_never_said_to_be_down_nor_forgotten(idle: Host, tmp_path: Path) -> None:
    """The exporter was away for a day; the engine went on all the while."""
    file = tmp_path / "state.json"
    idle.config.write_text("")
    boot(idle)
    async with watching(idle, state_file=file) as first:
        await first.until(lambda e: e.up)
    old = state.load(file)
    memory = old.engines[ENGINE]
    assert memory.last_seen is not None
    state.save(file, replace(old, engines={ENGINE: replace(memory, restarts=7, last_seen=memory.last_seen - 86400)}))
    async with watching(idle, state_file=file) as again:
        await again.until(lambda e: e.up)
        assert again.engine().restarts == 7  # type: ignore[union-attr]
        assert all(e.up is not False and e.phase != "stopped" for s in again.made for e in s.engines)


async def test_flags_that_break_the_law_cost_only_their_own_budget(idle: Host) -> None:
    boot(idle)
    odd = replace(HEALTHY, kv_cache_memory_bytes=10**400)
    idle.start(9000, odd)
    async with watching(idle) as watched:
        await watched.until(lambda e: e.ledger is not None)
        assert len(watched.last.engines) == 2
        assert sum(e.ledger is None for e in watched.last.engines) <= 1


async def test_a_log_that_cannot_even_be_asked_for_is_a_failure_and_not_silence(idle: Host) -> None:
    idle.config.write_text(
        f'engines:\n  - name: {ENGINE}\n    match: {{unit: {UNIT}}}\n    log: {{file: "/var/log/a\\0b"}}\n'
    )
    boot(idle)
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up)

        def failing(_: EngineState) -> bool:
            return any(s.name == "file" and not s.success and s.error for s in watched.last.sources)

        await watched.until(failing)


async def test_an_engine_whose_devices_are_not_known_is_no_baseline(idle: Host) -> None:
    """Ranks that Ray places are on none: the card is held by an engine all the same."""
    boot(idle)
    argv = (idle.roots.procfs / "4242" / "cmdline").read_bytes()
    (idle.roots.procfs / "4242" / "cmdline").write_bytes(argv + b"--distributed-executor-backend\0ray\0")
    async with watching(idle, off=OFF | {"amd_processes"}) as watched:
        await watched.until(lambda e: e.up and {p.device for p in e.placements} == {None})
        await asyncio.sleep(2.5)
        assert {d.high_water.baseline for d in watched.last.devices} == {None}


async def test_the_ranks_of_a_running_engine_stay_where_they_are_when_a_card_vanishes(idle: Host) -> None:
    boot(idle)
    async with watching(idle) as watched:
        await watched.until(lambda e: [p.device for p in e.placements] == list(DEVICES))
        amdgpu_tree.remove_card(idle.roots.sysfs, DEVICES[0])
        await watched.until(lambda _: [d.identity.device for d in watched.last.devices] == [DEVICES[1]])
        await asyncio.sleep(1.5)
        placed = {(p.rank, p.device) for s in watched.made for e in s.engines for p in e.placements}
        assert ("0", DEVICES[1]) not in placed


async def test_a_renamed_engine_is_the_same_engine_under_its_new_name(idle: Host) -> None:
    boot(idle)
    text = idle.config.read_text()
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up and e.phase == "serving")
        idle.config.write_text(text.replace(f"name: {ENGINE}", "name: prod"))
        watched.sidecar.reload(lambda: config.load(idle.config, frozenset(SOURCES)))
        await watched.until(lambda e: e.up and e.phase == "serving", "prod")
        await asyncio.sleep(1.2)
        assert [(e.name, e.up, e.restarts) for e in watched.last.engines] == [("prod", True, 0)]
        idle.config.write_text("")
        watched.sidecar.reload(lambda: config.load(idle.config, frozenset(SOURCES)))
        await asyncio.sleep(1.2)
        assert [(e.name, e.up) for e in watched.last.engines] == [("prod", True)]


async def test_a_name_that_is_configured_is_not_given_to_what_does_not_match(idle: Host) -> None:
    idle.config.write_text(f"engines:\n  - name: {ENGINE}\n    match: {{port: 1}}\n")
    boot(idle)
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up is False)
        await watched.until(lambda e: e.up, f"{ENGINE}@7770")


async def test_two_running_engines_on_one_log_have_no_words_of_their_own(idle: Host) -> None:
    """Two servers in one unit: whose line is whose cannot be told, so nothing is taken from that log."""
    idle.config.write_text(
        "engines:\n"
        f"  - {{name: a, match: {{port: 7770}}, log: {{file: /{idle.log.relative_to(idle.roots.rootfs)}}}}}\n"
        f"  - {{name: b, match: {{port: 7771}}, log: {{file: /{idle.log.relative_to(idle.roots.rootfs)}}}}}\n"
    )
    with pytest.raises(ConfigError, match=r"engines\[1\]\.log\.file: engine 'a' has the same log"):
        config.load(idle.config, frozenset(SOURCES))


async def test_a_log_that_hangs_holds_back_readiness_until_its_time_is_up(idle: Host) -> None:
    """The first look at a log is part of the first full cycle."""
    boot(idle)
    async with watching(idle) as watched:
        await watched.until(lambda _: watched.last.ready)
        first = next(s for s in watched.made if s.ready)
        (engine,) = first.engines
        assert engine.report is not None
        assert engine.report.kv_tokens == 401408


async def test_it_stays_ready_once_it_was(idle: Host) -> None:
    async with watching(idle) as watched:
        await watched.until(lambda _: watched.last.ready)
        boot(idle)
        await watched.until(lambda e: e.phase == "serving")
        at = next(i for i, s in enumerate(watched.made) if s.ready)
        assert all(s.ready for s in watched.made[at:])


async def test_a_disk_that_hangs_holds_up_neither_the_snapshots_nor_the_end(idle: Host, tmp_path: Path) -> None:
    """A FIFO where the state is drafted hangs the write for ever."""
    os.mkfifo(tmp_path / f".state.json.{os.getpid()}")
    async with watching(idle, state_file=tmp_path / "state.json") as watched:
        await watched.until(lambda e: e.up is False)
        watched.sidecar._saved = float("-inf")  # the next save is due
        before = len(watched.made)
        await watched.until(lambda _: len(watched.made) > before + 2)
        began = time.monotonic()
    assert time.monotonic() - began < 1


async def test_a_configuration_that_hangs_holds_up_nothing_and_is_taken_when_it_comes(idle: Host) -> None:
    pipe = idle.config.with_name("slow.yaml")
    os.mkfifo(pipe)
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up is False)
        watched.sidecar.reload(lambda: config.load(pipe, frozenset(SOURCES)))
        before = len(watched.made)
        await watched.until(lambda _: len(watched.made) > before + 2)
        await asyncio.to_thread(pipe.write_text, "engines:\n  - name: other\n")
        await watched.until(lambda _: True, "other")
        assert watched.last.exporter.reload_successful


async def test_an_engine_that_a_reload_brings_and_an_end_at_once_lose_no_state(idle: Host, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with watching(idle, state_file=file) as watched:
        await watched.until(lambda e: e.up is False)
        loaded = config.Config(engines=(config.EngineConfig(name="late"),))
        watched.sidecar._reconfigure(loaded, ())
    assert "late" in state.load(file).engines


async def test_a_burst_of_events_makes_no_burst_of_snapshots(idle: Host) -> None:
    async with watching(idle) as watched:
        await watched.until(lambda e: e.up is False)
        before, began = len(watched.made), time.monotonic()
        while time.monotonic() < began + 1:
            watched.sidecar._event.set()
            await asyncio.sleep(0.001)
        assert len(watched.made) - before <= 12


async def test_an_engine_that_says_it_runs_on_the_cpu_sits_on_no_card(idle: Host) -> None:
    idle.start(4242, HEALTHY)
    flags = "model='m', max_seq_len=512, tensor_parallel_size=2, kv_cache_dtype=auto, device_config=cpu, seed=0"
    stamp = "INFO 11-30 02:13:01"
    idle.say(
        [
            f"(APIServer pid=4242) {stamp} [api_utils.py:286] version 0.32.0",
            f"(EngineCore pid=4244) {stamp} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: {flags}",
        ]
    )
    async with watching(idle) as watched:
        await watched.until(lambda e: e.report and e.report.device_type == "cpu")
        await watched.until(lambda e: {p.device for p in e.placements} == {None})
        assert watched.engine().ledger is None  # type: ignore[union-attr]


async def test_an_engine_on_an_integrated_device_is_told_that_its_memory_is_the_hosts(tmp_path: Path) -> None:
    host = Host(tmp_path / "host", cards=tuple(replace(c, cpu_cores=16) for c in amdgpu_tree.R9700_PAIR))
    host.build()
    boot(host)
    async with watching(host) as watched:
        await watched.until(lambda e: e.ledger and any("memory is the host's" in note for note in e.ledger.notes))
