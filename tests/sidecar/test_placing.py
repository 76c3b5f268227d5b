"""Where ranks run, from procfs and the drivers' files to a Snapshot: processes go before the environment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from budget_exporter import config
from budget_exporter.demo import boot_log
from budget_exporter.demo.host import DEVICES, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import EngineSighting, Placement, ProcessKey, Shape
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.sidecar import fleet
from budget_exporter.sidecar.placing import Places
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES

OFF = frozenset({"systemd", "journal", "podman", "docker", "containers"})
FIRST, SECOND = DEVICES


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    made.build()
    return made


@contextlib.asynccontextmanager
async def watching(host: Host) -> AsyncIterator[list[Snapshot]]:
    sidecar = Sidecar(config.load(host.config, frozenset(SOURCES)), Options(roots=host.roots, off=OFF))
    made: list[Snapshot] = []
    sidecar.publish = made.append
    task = asyncio.create_task(sidecar.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(made: list[Snapshot], look: Callable[[EngineState], object]) -> EngineState:
    deadline = time.monotonic() + 20.0
    while True:
        engine = next(iter(made[-1].engines), None) if made else None
        if engine is not None and look(engine):
            return engine
        assert time.monotonic() < deadline, engine
        await asyncio.sleep(0.02)


def turn(host: Host) -> None:
    """Let the environment name the two cards the other way round than the processes use them."""
    environ = host.roots.procfs / "4242/environ"
    before = environ.read_bytes()
    assert b"HIP_VISIBLE_DEVICES=0,1" in before
    environ.write_bytes(before.replace(b"HIP_VISIBLE_DEVICES=0,1", b"HIP_VISIBLE_DEVICES=1,0"))


def devices(engine: EngineState) -> list[str | None]:
    return [placement.device for placement in engine.placements]


async def test_processes_go_before_the_environment_and_that_is_said_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    caplog.set_level(logging.WARNING, "budget_exporter")
    async with watching(host) as made:
        engine.start()
        turn(host)
        # Nobody holds anything yet.
        await until(made, lambda e: devices(e) == [SECOND, FIRST])
        engine.hold(20 << 30)
        state = await until(made, lambda e: devices(e) == [FIRST, SECOND])
        assert [p.contradicted for p in state.placements] == [SECOND, FIRST]
        # A process does not move: one that sleeps, or is not seen for a while, is where it was.
        engine.hold(0)
        await until(made, lambda e: all((m.used or 0) == 0 for m in e.rank_memory.values()))
        seen = len(made)
        await until(made, lambda _: len(made) > seen + 2)
        assert devices(made[-1].engines[0]) == [FIRST, SECOND]
        said = [r.getMessage() for r in caplog.records if r.name.startswith("budget_exporter.placement")]
        assert len(said) == 1
        assert SECOND in said[0]
        engine.end()
        engine.start()
        again = await until(made, lambda e: e.restarts == 1 and e.up)
        assert again.placements == (Placement("0", FIRST), Placement("1", SECOND))
    assert {p.device for s in made for e in s.engines for p in e.placements} == {FIRST, SECOND}


async def test_processes_tell_where_the_environment_cannot(host: Host) -> None:
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    argv = host.roots.procfs / "4242/cmdline"
    argv.write_bytes(argv.read_bytes() + b"--distributed-executor-backend\0ray\0")
    async with watching(host) as made:
        state = await until(made, lambda e: devices(e) and None not in devices(e))
    assert state.placements == (Placement("0", FIRST), Placement("1", SECOND))


def test_an_engine_whose_ranks_cannot_be_placed_costs_no_other_its_place(caplog: pytest.LogCaptureFixture) -> None:
    """What its flags make of the laws of placement is not foreseen in all: such a one is logged, once."""
    never: Any = {"data-parallel-rank": 5}
    engines = []
    for name, given in (("bad", never), ("good", {})):
        made = fleet.Engine(name, None)
        sighting = EngineSighting("procfs", ProcessKey(10, 1), 0.0, ("vllm", "serve", "m"), {})
        made.running = made.last = fleet.Running(sighting, Shape(given=given))
        engines.append(made)
    places, card = Places(), DeviceIdentity(FIRST, "amd", "card", "amdgpu", "amdgpu_vram", order=0)
    for _ in range(2):
        placed = places.of(engines, [card], {})
        assert placed["bad"] == ()
        assert [p.device for p in placed["good"]] == [FIRST]
    assert [r.name for r in caplog.records] == ["budget_exporter.placement.bad"]
    assert "its ranks cannot be placed: TypeError" in caplog.text
