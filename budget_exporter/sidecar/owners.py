"""Tell whose memory is on the devices: which PIDs are which engine's now, and which were an ended engine's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from budget_exporter.budget import ownership
from budget_exporter.engines.placement import rank_name
from budget_exporter.facts.device import ProcessMemory, RuntimeMemory
from budget_exporter.facts.engine import EngineSighting, Placement, Shape
from budget_exporter.facts.ownership import Owner, Ownership, RankMemory
from budget_exporter.facts.snapshot import DeviceState
from budget_exporter.sidecar.devices import Board
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.leftovers import Leftovers
from budget_exporter.sidecar.outcome import StateLog
from budget_exporter.sidecar.peaks import Peaks
from budget_exporter.sidecar.totals import Totals
from budget_exporter.state import EngineMemory

__all__ = ["Held", "Owned", "Owners"]


@dataclass(frozen=True, slots=True)
class Held:
    """What is known of one engine's own memory: by rank, in its runtime's words by rank, and what it left behind."""

    ranks: Mapping[str, RankMemory]
    runtime: Mapping[str, RuntimeMemory]
    leftover: tuple[ProcessMemory, ...] = ()
    container_limit: int | None = None
    """The host memory its container lets it have, where the engine runs on the CPU."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Whose memory is on the devices at one moment."""

    division: Ownership
    differences: Mapping[str, Mapping[str, int]]
    runtime: Mapping[tuple[str, str], RuntimeMemory]
    limits: Mapping[str, int]
    """What its container lets each engine have of the host's memory."""
    leftover: Mapping[str, tuple[ProcessMemory, ...]]
    """What each engine left behind, and not only a moment ago."""

    def of_device(self, state: DeviceState) -> DeviceState:
        """Return ``state`` with what is known of the holders of its memory."""
        device = state.identity.device
        return replace(
            state, ownership=self.division.devices.get(device), differences=dict(self.differences.get(device, {}))
        )

    def of_engine(self, name: str) -> Held:
        """Return what the engine ``name`` holds, and what it left behind."""
        return Held(
            {rank: held for (engine, rank), held in self.division.ranks.items() if engine == name},
            {rank: told for (engine, rank), told in self.runtime.items() if engine == name},
            self.leftover.get(name, ()),
            self.limits.get(name),
        )


class Owners:
    """Keep whose memory it was: of ranks the largest use, of engines that ended what they left behind."""

    def __init__(self, remembered: Mapping[str, EngineMemory]) -> None:
        self._leftovers = Leftovers(remembered)
        self._peaks = Peaks(remembered)
        self._totals = Totals()
        self._foreign = StateLog("foreign")

    def divide(
        self, board: Board, engines: Iterable[Engine], placed: Mapping[str, tuple[Placement, ...]], now: float
    ) -> Owned:
        """Return whose memory is on the devices of ``board`` at ``now``; ``placed`` are the ranks of each engine."""
        present = list(engines)
        holders = board.holders(now)
        owners = self._leftovers.take(holders, _owners(present), present, now)
        # What no process on the device accounts for of the host's own memory is all other programs.
        states = (state for state in board.states(now) if not state.identity.of_everybody)
        used = {state.identity.device: state.memory.used for state in states}
        divided = ownership.divide(holders, used, owners, placed)
        division = Ownership(
            self._totals.take(divided.devices, holders),
            self._peaks.take(divided.ranks, present, placed, holders.keys(), now),
        )
        self._foreign.note(_named(division))
        runtime = {
            (owners[pid].engine, rank): told
            for pid, told in board.runtime(now).items()
            if pid in owners and not owners[pid].ended and (rank := _rank(owners[pid], told, placed)) is not None
        }
        limits: dict[str, int] = {}
        for pid, limit in board.limits(now).items():
            if pid in owners and not owners[pid].ended:
                engine = owners[pid].engine
                limits[engine] = min(limit, limits.get(engine, limit))
        leftover: dict[str, tuple[ProcessMemory, ...]] = {}
        for device, owned in division.devices.items():
            for engine, process in owned.leftover:
                # By the time of the list: one from before the end says nothing of what was there after it.
                if self._leftovers.lasts(process.pid, holders[device].at):
                    leftover[engine] = (*leftover.get(engine, ()), process)
        return Owned(division, board.differences(now), runtime, limits, leftover)

    def remember(self, memories: Mapping[str, EngineMemory]) -> dict[str, EngineMemory]:
        """Return ``memories``, by engine, with what is to be remembered of what the engines hold."""
        return {
            name: replace(memory, peaks=self._peaks.of(memory.main), processes=self._leftovers.of(name))
            for name, memory in memories.items()
        }


def _owners(engines: Iterable[Engine]) -> dict[int, Owner]:
    owners: dict[int, Owner] = {}
    for engine in engines:
        # Where nobody has looked lately the processes seen last are still its own.
        known = engine.running or (engine.last if engine.up is None else None)
        if known is not None:
            owners.update(_processes(engine.name, known.sighting, known.shape))
    return owners


def _processes(engine: str, sighting: EngineSighting, shape: Shape) -> dict[int, Owner]:
    names = {worker.pid: rank_name(worker, shape) for worker in sighting.workers}
    if any("Worker" in worker.title and names[worker.pid] is None for worker in sighting.workers):
        # A replica's core names the replica, its worker does not: the core alone is not all that the rank holds.
        names |= {worker.pid: None for worker in sighting.workers if "EngineCore" in worker.title}
    return {sighting.main.pid: Owner(engine), **{pid: Owner(engine, name) for pid, name in names.items()}}


def _rank(owner: Owner, told: RuntimeMemory, placed: Mapping[str, tuple[Placement, ...]]) -> str | None:
    """Return the rank's name: the process's own, else the one that was told, where the engine has such a rank."""
    if owner.rank is not None or told.rank is None:
        return owner.rank
    names = {placement.rank for placement in placed.get(owner.engine, ())}
    possible = (str(told.rank), None if told.replica is None else f"d{told.replica}.{told.rank}")
    return next((name for name in possible if name in names), None)


def _named(division: Ownership) -> str:
    """Return one line that names who holds memory and belongs to no engine; empty where nobody does."""
    return "; ".join(
        f"{device}: held by no known engine: " + ", ".join(f"{p.name or 'process'} (PID {p.pid})" for p in held.foreign)
        for device, held in sorted(division.devices.items())
        if held.foreign
    )
