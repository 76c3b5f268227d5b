"""High-water marks over restarts of the exporter: kept for the same engine on the same card, and for nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from budget_exporter import config
from budget_exporter.demo import amdgpu_tree, boot_log
from budget_exporter.demo.amdgpu_tree import R9700_PAIR
from budget_exporter.demo.host import DEVICES, SIZE, Host
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE, Engine
from budget_exporter.facts.device import HighWater
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.sidecar.wiring import Options, Sidecar
from budget_exporter.sources import SOURCES
from budget_exporter.units import GIB, MIB

CARD, OTHER = DEVICES
PEAK = SIZE - 300 * MIB
OFF = frozenset({"systemd", "journal", "podman", "docker", "containers"})


class Watched:
    """A sidecar that runs, and its newest Snapshot."""

    def __init__(self, host: Host, file: Path) -> None:
        self.made: list[Snapshot] = []
        loaded = config.load(host.config, frozenset(SOURCES))
        self.sidecar = Sidecar(loaded, Options(roots=host.roots, off=OFF, state_file=file))
        self.sidecar.publish = self.made.append

    def mark(self, device: str = CARD) -> HighWater | None:
        """Return the mark of a card that is sampled."""
        states = self.made[-1].devices if self.made else ()
        return next((state.high_water for state in states if state.identity.device == device), None)

    def up(self) -> bool | None:
        return self.made[-1].engines[0].up if self.made else None

    async def until(self, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20.0
        while not look():
            assert time.monotonic() < deadline, (self.mark(), self.up())
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def watching(host: Host, file: Path) -> AsyncIterator[Watched]:
    watched = Watched(host, file)
    task = asyncio.create_task(watched.sidecar.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def boot(host: Host, number: int) -> Engine:
    engine = Engine(host, number, HEALTHY, boot_log.SHAPE_G)
    for _, act in engine.boot(HEALTHY_FREE):
        act()
    return engine


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    made.build()
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


async def peaked(host: Host, file: Path) -> Engine:
    """Let an engine reach its peak under an exporter that then ends; the card holds 20 GiB afterwards."""
    async with watching(host, file) as first:
        await first.until(lambda: (m := first.mark()) and m.baseline is not None)
        engine = boot(host, 0)
        await first.until(lambda: first.up() and (m := first.mark()) and m.epoch)
        host.hold(CARD, PEAK)
        await first.until(lambda: (m := first.mark()) and m.used == PEAK)
        host.hold(CARD, 20 * GIB)
    return engine


async def test_the_same_engine_on_the_same_card_keeps_its_mark(host: Host, file: Path) -> None:
    await peaked(host, file)
    async with watching(host, file) as second:
        await second.until(lambda: second.up() and second.mark())
        mark = second.mark()
        assert mark is not None
        assert (mark.used, mark.all_time) == (PEAK, PEAK)
        assert mark.at < mark.window[-1][0] + 1
        assert mark.since <= mark.at
        assert all(made.devices[0].high_water.used == PEAK for made in second.made if made.devices)


async def test_an_engine_that_was_started_while_nobody_watched_begins_its_own(host: Host, file: Path) -> None:
    (await peaked(host, file)).end()
    boot(host, 1)
    host.hold(CARD, 21 * GIB)
    async with watching(host, file) as second:
        await second.until(lambda: second.up() and (m := second.mark()) and m.used == 21 * GIB)
        mark = second.mark()
        assert mark is not None
        assert (mark.all_time, mark.baseline is not None) == (PEAK, True)
        assert {m.devices[0].high_water.used for m in second.made if m.devices} == {21 * GIB}


@pytest.mark.parametrize("uuid", [0x6B1C00FFFFFFFFFF, 0])
async def test_another_card_in_the_slot_has_nothing_of_the_one_before(host: Host, file: Path, uuid: int) -> None:
    """Told by its own id, or where it has none by its size."""
    await peaked(host, file)
    card = R9700_PAIR[0]
    amdgpu_tree.remove_card(host.roots.sysfs, CARD)
    size = card.size if uuid else card.size // 2
    amdgpu_tree.add_card(host.roots.sysfs, dataclasses.replace(card, unique_id=uuid, size=size, used=3 * GIB))
    async with watching(host, file) as second:
        await second.until(lambda: second.up() and second.mark())
        mark, other = second.mark(), second.mark(OTHER)
        assert mark is not None
        assert other is not None
        assert (mark.used, mark.all_time, mark.baseline, {used for _, used in mark.window}) == (
            3 * GIB, 3 * GIB, None, {3 * GIB},
        )  # fmt: skip
        assert other.baseline is not None


async def test_a_card_that_is_exchanged_under_a_running_exporter_begins_anew(host: Host, file: Path) -> None:
    async with watching(host, file) as first:
        boot(host, 0)
        host.hold(CARD, PEAK)
        await first.until(lambda: first.up() and (m := first.mark()) and m.used == PEAK)
        amdgpu_tree.remove_card(host.roots.sysfs, CARD)
        await first.until(lambda: first.mark() is None)
        amdgpu_tree.add_card(
            host.roots.sysfs, dataclasses.replace(R9700_PAIR[0], unique_id=0x6B1C00FFFFFFFFFF, used=3 * GIB)
        )
        await first.until(lambda: (m := first.mark()) and (m.used, m.all_time) == (3 * GIB, 3 * GIB))
