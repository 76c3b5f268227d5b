"""Fold the runs of one device source until a Snapshot takes them: windows of samples, newest of all else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from budget_exporter.facts.device import (
    CrossCheck,
    DeviceReport,
    DeviceSample,
    DeviceWindow,
    Holders,
    MemoryLimit,
    MemorySample,
    RuntimeMemory,
)

__all__ = ["Folded", "Windows", "fold"]

Windows = Mapping[str, DeviceWindow]


@dataclass(frozen=True, slots=True)
class Folded:
    """What one source said since the last time it was asked."""

    windows: Windows = field(default_factory=dict)
    holders: tuple[Holders, ...] = ()
    cross_checks: tuple[CrossCheck, ...] = ()
    runtime: tuple[RuntimeMemory, ...] = ()
    limits: tuple[MemoryLimit, ...] = ()


def fold(folded: Folded | None, report: DeviceReport) -> Folded:
    """Return ``folded`` with one run added: newest, smallest and largest use of each device, the newest of the rest."""
    windows = dict(folded.windows) if folded else {}
    for sample in report.devices:
        windows[sample.identity.device] = _widen(windows.get(sample.identity.device), sample)
    return Folded(windows, report.holders, report.cross_checks, report.runtime, report.limits)


def _widen(window: DeviceWindow | None, sample: DeviceSample) -> DeviceWindow:
    memory = sample.memory
    most, most_at = _most(memory)
    if window is None or window.identity != sample.identity or window.newest.size != memory.size:
        return DeviceWindow(sample.identity, memory, memory.used, most, most_at, 1, memory.at)
    larger = most > window.used_max
    return DeviceWindow(
        identity=sample.identity,
        newest=memory,
        used_min=min(window.used_min, memory.used),
        used_max=most if larger else window.used_max,
        used_max_at=most_at if larger else window.used_max_at,
        samples=window.samples + 1,
        began=window.began,
        gap=max(window.gap, memory.at - window.newest.at),
    )


def _most(memory: MemorySample) -> tuple[int, float]:
    """Return the largest use this sample knows of, and when that was at the earliest."""
    if memory.reached is None or memory.reached_at is None or memory.reached <= memory.used:
        return memory.used, memory.at
    return memory.reached, memory.reached_at
