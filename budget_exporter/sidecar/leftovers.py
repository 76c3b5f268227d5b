"""Remember the processes of engines that ended for as long as they hold memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from budget_exporter.facts.device import Holders
from budget_exporter.facts.ownership import Known, Owner
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.state import EngineMemory

__all__ = ["LASTS", "Leftovers"]

LASTS = 5.0
"""Seconds after which a process is left behind for good: at a normal stop some end a moment after the main one."""


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that held memory for an engine; ``boot_id`` is the host's when it was seen."""

    owner: Owner
    known: Known
    boot_id: str


class Leftovers:
    """Whose each process was that held memory, until the lists of all its devices are there and it is on none."""

    def __init__(self, remembered: Mapping[str, EngineMemory]) -> None:
        self._known: dict[int, _Process] = {
            pid: _Process(Owner(name), known, "" if memory.main is None else memory.main.boot_id)
            for name, memory in remembered.items()
            for pid, known in memory.processes.items()
        }
        self._since: dict[int, float] = {
            pid: memory.last_seen for memory in remembered.values() if memory.last_seen for pid in memory.processes
        }
        """Unix time since which each process is no running engine's."""

    def take(
        self, holders: Mapping[str, Holders], owners: Mapping[int, Owner], engines: Iterable[Engine], now: float
    ) -> dict[int, Owner]:
        """
        Return ``owners``, and beside them those of processes whose engine ended and that still hold memory.

        ``owners`` are the engines of the PIDs that run, ``engines`` all that are known: what is left of any other is
        foreign. Of an engine that nobody has looked for lately it is not said that it ended.
        """
        present = {engine.name: engine for engine in engines}
        boots = {name: "" if engine.main is None else engine.main.boot_id for name, engine in present.items()}
        # Of an engine that only its daemon knows it is not known which boot of the host it runs in.
        booted = {
            boots[name]
            for name, engine in present.items()
            if engine.running is not None and engine.running.sighting.main.pid
        }
        names, where = _listed(holders)
        left = {
            pid: process
            for pid, process in self._known.items()
            if pid not in owners
            and process.owner.engine in present
            # PIDs of another boot of the host are others' now.
            and (not booted or process.boot_id in booted)
            and self._holds(pid, process, holders, names, where)
        }
        self._since = {pid: self._since.get(pid, now) for pid in left}
        running = {
            pid: _Process(owner, self._seen(pid, holders, names, where), boots.get(owner.engine, ""))
            for pid, owner in owners.items()
        }
        self._known = left | {pid: process for pid, process in running.items() if process.known.devices}
        return dict(owners) | {
            pid: replace(process.owner, ended=present[process.owner.engine].up is not None)
            for pid, process in left.items()
        }

    def lasts(self, pid: int, at: float) -> bool:
        """Return whether the process had been left behind for a while when it was listed at the Unix time ``at``."""
        return pid in self._since and at - self._since[pid] >= LASTS

    def of(self, engine: str) -> dict[int, Known]:
        """Return the processes of one engine, to be remembered."""
        return {pid: process.known for pid, process in self._known.items() if process.owner.engine == engine}

    @staticmethod
    def _holds(
        pid: int,
        process: _Process,
        holders: Mapping[str, Holders],
        names: Mapping[int, str],
        where: Mapping[int, set[str]],
    ) -> bool:
        """Return whether the process holds memory as far as can be told: where no list is, it may."""
        if pid not in where:
            return any(device not in holders for device in process.known.devices)
        # Another name: the PID is another process's by now. Of one that cannot be looked at there is none.
        return not names[pid] or not process.known.name or names[pid] == process.known.name

    def _seen(
        self, pid: int, holders: Mapping[str, Holders], names: Mapping[int, str], where: Mapping[int, set[str]]
    ) -> Known:
        """Return what is to be known of a process that runs: of devices without a list what was known before."""
        before = self._known.get(pid)
        unlisted = [] if before is None else [device for device in before.known.devices if device not in holders]
        name = names.get(pid, "") or ("" if before is None else before.known.name)
        return Known(name, tuple(sorted({*where.get(pid, ()), *unlisted})))


def _listed(holders: Mapping[str, Holders]) -> tuple[dict[int, str], dict[int, set[str]]]:
    """Return names and devices of the processes that are listed, by PID."""
    names: dict[int, str] = {}
    where: dict[int, set[str]] = {}
    for device, listed in holders.items():
        for process in listed.processes:
            names[process.pid] = process.name
            where.setdefault(process.pid, set()).add(device)
    return names, where
