"""Keep what outlasts one look at the holders: the largest use of each rank, the evicted time of those that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from budget_exporter.facts.device import Holders
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.ownership import DeviceOwnership, Ownership, RankMemory

__all__ = ["Totals"]


class Totals:
    """Sums and marks over the time that this exporter has watched."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, str], tuple[ProcessKey, int]] = {}
        """Of each engine's rank: the life it was measured in, and the largest use in bytes."""
        self._evicted: dict[str, float] = {}
        """Seconds by device."""
        self._known: dict[tuple[str, int], float] = {}
        """What each process said last, by device and PID; kept after its end, in case it is read again."""

    def take(self, division: Ownership, holders: Mapping[str, Holders], lives: Mapping[str, ProcessKey]) -> Ownership:
        """
        Return ``division`` with the largest use of each rank, and evicted times that never fall.

        ``holders`` is what ``division`` was made of. ``lives`` names the main process of each engine that was watched
        since it started: only of those can a largest use be told.
        """
        for device, listed in holders.items():
            for process in listed.processes:
                if process.evicted_seconds:
                    self._count(device, process.pid, process.evicted_seconds)
        self._peaks = {key: peak for key, peak in self._peaks.items() if lives.get(key[0]) == peak[0]}
        return Ownership(
            {name: self._with_evicted(device) for name, device in division.devices.items()},
            {key: self._with_peak(key, held, lives.get(key[0])) for key, held in division.ranks.items()},
        )

    def _count(self, device: str, pid: int, seconds: float) -> None:
        before = self._known.get((device, pid), 0.0)
        # Less than before: another process has the PID.
        more = seconds - before if seconds >= before else seconds
        self._known[device, pid] = seconds
        self._evicted[device] = self._evicted.get(device, 0.0) + more

    def _with_evicted(self, device: DeviceOwnership) -> DeviceOwnership:
        total = self._evicted.get(device.device, device.evicted_seconds)
        return device if total is None else replace(device, evicted_seconds=total)

    def _with_peak(self, key: tuple[str, str], held: RankMemory, life: ProcessKey | None) -> RankMemory:
        if life is None or held.used is None:
            return held
        _, before = self._peaks.get(key, (life, held.used))
        self._peaks[key] = (life, max(before, held.used))
        return replace(held, used_high_water=self._peaks[key][1])
