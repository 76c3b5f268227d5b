"""Add up what outlasts one look at the holders: the evicted time of those that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from budget_exporter.facts.device import Holders
from budget_exporter.facts.ownership import DeviceOwnership

__all__ = ["Totals"]


class Totals:
    """Sums over the time that this exporter has watched."""

    def __init__(self) -> None:
        self._evicted: dict[str, float] = {}
        """Seconds by device."""
        self._known: dict[tuple[str, int], float] = {}
        """What each process said last, by device and PID; kept after its end, in case it is read again."""

    def take(
        self, devices: Mapping[str, DeviceOwnership], holders: Mapping[str, Holders]
    ) -> dict[str, DeviceOwnership]:
        """Return ``devices`` with evicted times that never fall; ``holders`` is what they were made of."""
        for device, listed in holders.items():
            for process in listed.processes:
                if process.evicted_seconds:
                    self._count(device, process.pid, process.evicted_seconds)
        return {name: self._with_evicted(device) for name, device in devices.items()}

    def _count(self, device: str, pid: int, seconds: float) -> None:
        before = self._known.get((device, pid), 0.0)
        # Less than before: another process has the PID.
        more = seconds - before if seconds >= before else seconds
        self._known[device, pid] = seconds
        self._evicted[device] = self._evicted.get(device, 0.0) + more

    def _with_evicted(self, device: DeviceOwnership) -> DeviceOwnership:
        total = self._evicted.get(device.device, device.evicted_seconds)
        return device if total is None else replace(device, evicted_seconds=total)
