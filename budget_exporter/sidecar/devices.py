"""Fold the samples of device sources into windows, and keep the latest of each device while it is fresh."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from budget_exporter.budget import high_water
from budget_exporter.facts.device import DeviceIdentity, DeviceReport, DeviceSample, DeviceWindow, HighWater
from budget_exporter.facts.snapshot import DeviceState

__all__ = ["Board", "Windows", "fold"]

Windows = Mapping[str, DeviceWindow]
STALE_AFTER = 3.0
"""Seconds after which a sample is no longer shown: stale data is never shown as live."""
GONE_AFTER = 600.0
"""Seconds after which a device that does not answer is taken to have left the host, as its source takes it."""
HISTORY = 30.0
"""Seconds of samples kept to tell what a device held just before an engine started."""


def fold(windows: Windows | None, report: DeviceReport) -> Windows:
    """Return ``windows`` with one run of a source added: newest, smallest and largest use of each device."""
    result = dict(windows or {})
    for sample in report.devices:
        result[sample.identity.device] = _widen(result.get(sample.identity.device), sample)
    return result


def _widen(window: DeviceWindow | None, sample: DeviceSample) -> DeviceWindow:
    memory = sample.memory
    if window is None or window.identity != sample.identity or window.newest.size != memory.size:
        return DeviceWindow(sample.identity, memory, memory.used, memory.used, memory.at, samples=1)
    larger = memory.used > window.used_max
    return DeviceWindow(
        identity=sample.identity,
        newest=memory,
        used_min=min(window.used_min, memory.used),
        used_max=memory.used if larger else window.used_max,
        used_max_at=memory.at if larger else window.used_max_at,
        samples=window.samples + 1,
    )


@dataclass(slots=True)
class _Seen:
    window: DeviceWindow
    history: deque[tuple[float, int]] = field(default_factory=deque)


class Board:
    """The devices as they are now, and the marks that outlive them."""

    def __init__(self, marks: Iterable[HighWater] = ()) -> None:
        self._seen: dict[str, _Seen] = {}
        self._marks = {mark.device: mark for mark in marks}
        self._identities: dict[str, tuple[DeviceIdentity, float]] = {}

    @property
    def marks(self) -> tuple[HighWater, ...]:
        """Return every mark, those of absent devices too."""
        return tuple(self._marks.values())

    def update(self, windows: Windows, epochs: Mapping[str, tuple[str, float]], *, known: bool = True) -> None:
        """
        Take in the windows of one source; ``epochs`` names the newest engine on each device and its start.

        Where it is not ``known`` which engines run, what a device without one holds is no baseline.
        """
        for device, window in windows.items():
            seen = self._seen.get(device)
            if seen is None or _card(seen.window) != _card(window):
                seen = self._seen[device] = _Seen(window)
            seen.window = window
            seen.history.append((window.newest.at, window.newest.used))
            while seen.history and seen.history[0][0] < window.newest.at - HISTORY:
                seen.history.popleft()
            epoch, started = epochs.get(device, (None, None))
            mark = self._marks.get(device)
            self._marks[device] = high_water.fold(mark, window, epoch, started, engines_known=known)

    def states(self, now: float) -> tuple[DeviceState, ...]:
        """Return the devices with a fresh sample; the others' series end."""
        fresh = {name: s for name, s in self._seen.items() if abs(now - s.window.newest.at) <= STALE_AFTER}
        self._seen = fresh
        return tuple(
            DeviceState(seen.window.identity, seen.window.newest, self._expired(device, now))
            for device, seen in sorted(fresh.items())
        )

    def _expired(self, device: str, now: float) -> HighWater:
        mark = self._marks[device]
        return replace(mark, window=tuple(entry for entry in mark.window if entry[0] > now - high_water.WINDOW))

    def identities(self, fresh: Iterable[DeviceIdentity], now: float) -> list[DeviceIdentity]:
        """
        Return the devices of this host: ``fresh`` ones, and those seen within the last minutes.

        A device that fails for a while still has its place among the others: without it a rank would seem to move.
        """
        known = {i.device: i for i, at in self._identities.values() if now - at <= GONE_AFTER}
        new = {identity.device: identity for identity in fresh}
        self._identities.update({device: (identity, now) for device, identity in new.items()})
        return list({**known, **new}.values())

    def free_before(self, device: str, started: float, since: float = float("-inf")) -> int | None:
        """Return the bytes free on ``device`` in the last sample from ``since`` to ``started``, None without one."""
        seen = self._seen.get(device)
        if seen is None:
            return None
        before = [used for at, used in seen.history if since <= at <= started]
        return seen.window.newest.size - before[-1] if before else None


def _card(window: DeviceWindow) -> tuple[str | None, int]:
    return window.identity.uuid, window.newest.size
