"""Keep the latest of each device while it is fresh: its samples, its holders, what others measured of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from budget_exporter.budget import high_water
from budget_exporter.facts.device import CrossCheck, DeviceIdentity, DeviceWindow, HighWater, Holders, RuntimeMemory
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.snapshot import DeviceState
from budget_exporter.sidecar.reports import Folded, Windows

__all__ = ["Board", "on_host", "shown"]

STALE_AFTER = 3.0
"""Seconds after which a sample is no longer shown, at least: stale data is never shown as live."""
RUNS_KEPT = 2.5
"""A source that is slower than that has its samples shown for so many of its intervals."""
GONE_AFTER = 600.0
"""Seconds after which a device that does not answer is taken to have left the host, as its source takes it."""
HISTORY = 30.0
"""Seconds of samples kept to tell what a device held just before an engine started."""


@dataclass(slots=True)
class _Seen:
    window: DeviceWindow
    kept_for: float = STALE_AFTER
    history: deque[tuple[float, int]] = field(default_factory=deque)


class Board:
    """The devices as they are now, and the marks that outlive them."""

    def __init__(self, marks: Iterable[HighWater] = ()) -> None:
        self._seen: dict[str, _Seen] = {}
        self._marks = {mark.device: mark for mark in marks}
        self._identities: dict[str, tuple[DeviceIdentity, float]] = {}
        self._told: dict[str, tuple[Folded, float]] = {}
        """What each source said beside samples, and until when it holds."""
        self._differences: dict[str, dict[str, int]] = {}
        """How far each source's figures were above ours when it told them, by device."""

    @property
    def marks(self) -> tuple[HighWater, ...]:
        """Return every mark, those of absent devices too."""
        return tuple(self._marks.values())

    def update(
        self, windows: Windows, epochs: Mapping[str, tuple[str, float]], *, known: bool = True, interval: float = 0.0
    ) -> None:
        """
        Take in the windows of one source; ``epochs`` names the newest engine on each device and its start.

        ``interval`` are the seconds between two runs of the source: a slow one's samples are shown for longer.

        Where it is not ``known`` which engines run, what a device without one holds is no baseline.
        """
        for device, window in windows.items():
            seen = self._seen.get(device)
            if seen is None or _card(seen.window) != _card(window):
                seen = self._seen[device] = _Seen(window)
            seen.window = window
            seen.kept_for = max(STALE_AFTER, RUNS_KEPT * interval)
            seen.history.append((window.newest.at, window.newest.used))
            while seen.history and seen.history[0][0] < window.newest.at - HISTORY:
                seen.history.popleft()
            epoch, started = epochs.get(device, (None, None))
            mark = self._marks.get(device)
            self._marks[device] = high_water.fold(mark, window, epoch, started, engines_known=known)

    def states(self, now: float) -> tuple[DeviceState, ...]:
        """Return the devices with a fresh sample; the others' series end."""
        fresh = {name: s for name, s in self._seen.items() if abs(now - s.window.newest.at) <= s.kept_for}
        self._seen = fresh
        return tuple(
            DeviceState(seen.window.identity, seen.window.newest, self._expired(device, now))
            for device, seen in sorted(fresh.items())
        )

    def tell(self, source: str, folded: Folded, now: float, interval: float) -> None:
        """Take in what ``source`` said beside samples; its next run replaces it."""
        self._told[source] = (folded, now + max(STALE_AFTER, RUNS_KEPT * interval))
        # Now, while the samples of that time are still there: a slow check is shown for longer than they are kept.
        compared = ((check, self._used_at(check)) for check in folded.cross_checks)
        self._differences[source] = {check.device: check.used - ours for check, ours in compared if ours is not None}

    def holders(self, now: float) -> dict[str, Holders]:
        """Return the processes that hold memory, by device; where several sources list them the complete list."""
        result: dict[str, Holders] = {}
        for _, folded in self._fresh(now):
            for holders in folded.holders:
                known = result.get(holders.device)
                if known is None or (holders.complete and not known.complete):
                    result[holders.device] = holders
        return result

    def differences(self, now: float) -> dict[str, dict[str, int]]:
        """Return how far each cross-check was above our sample nearest to it in time, by device and source."""
        result: dict[str, dict[str, int]] = {}
        for source, _ in self._fresh(now):
            for device, difference in self._differences[source].items():
                result.setdefault(device, {})[source] = difference
        return result

    def runtime(self, now: float) -> dict[int, RuntimeMemory]:
        """Return what runtimes say inside the engines, by the worker's PID."""
        return {memory.pid: memory for _, folded in self._fresh(now) for memory in folded.runtime}

    def limits(self, now: float) -> dict[int, int]:
        """Return the bytes of host memory that containers let processes have, by PID."""
        return {limit.pid: limit.limit for _, folded in self._fresh(now) for limit in folded.limits}

    def _fresh(self, now: float) -> list[tuple[str, Folded]]:
        self._told = {source: told for source, told in self._told.items() if told[1] >= now}
        return [(source, folded) for source, (folded, _) in sorted(self._told.items())]

    def _used_at(self, check: CrossCheck) -> int | None:
        seen = self._seen.get(check.device)
        if seen is None or not seen.history:
            return None
        at, used = min(seen.history, key=lambda sample: abs(sample[0] - check.at))
        return used if abs(at - check.at) <= STALE_AFTER else None

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


def shown(states: Iterable[DeviceState], placed: Iterable[Iterable[Placement]]) -> list[DeviceState]:
    """Return the devices there is something to say of: the host's memory only where an engine runs on the CPU."""
    used = {placement.device for ranks in placed for placement in ranks}
    return [each for each in states if each.identity.platform != "host" or each.identity.device in used]


def on_host(placed: Mapping[str, Iterable[Placement]], identities: Iterable[DeviceIdentity]) -> set[str]:
    """Return the engines of which a rank's device is the host's memory; ``placed`` are the ranks of each engine."""
    nodes = {identity.device for identity in identities if identity.platform == "host"}
    return {name for name, ranks in placed.items() if any(placement.device in nodes for placement in ranks)}


def _card(window: DeviceWindow) -> tuple[str | None, int]:
    return window.identity.uuid, window.newest.size
