"""Place the ranks of all engines, and remember where their processes showed that they hold memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.engines.placement import ranks_by_memory
from budget_exporter.facts.device import DeviceIdentity, Holders
from budget_exporter.facts.engine import EngineSighting, Placement, ProcessKey
from budget_exporter.sidecar.assemble import place
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.outcome import StateLog

__all__ = ["Places"]


@dataclass(slots=True)
class _Shown:
    """What the processes of one run of an engine have shown."""

    main: ProcessKey | None
    devices: dict[str, str] = field(default_factory=dict)
    """The device of each rank. A process does not move: what it showed holds while it sleeps, or cannot be seen."""


class Places:
    """Keep the places of the ranks, by engine."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        self._logs: dict[str, StateLog] = {}

    def of(
        self, engines: Iterable[Engine], devices: Sequence[DeviceIdentity], holders: Mapping[str, Holders]
    ) -> dict[str, tuple[Placement, ...]]:
        """
        Return where the ranks of each engine run.

        ``devices`` are all of the host, ``holders`` the processes that hold memory, by device. Where they part from
        flags and environment that is logged once.
        """
        present = {engine.name: engine for engine in engines}
        self._shown = {name: shown for name, shown in self._shown.items() if name in present}
        self._logs = {name: log for name, log in self._logs.items() if name in present}
        placed = {}
        for name, engine in present.items():
            shown = self._shown.get(name)
            if shown is None or shown.main != engine.main:
                shown = self._shown[name] = _Shown(engine.main)
            log = self._logs.setdefault(name, StateLog(f"placement.{name}"))
            try:
                placed[name] = self._place(engine, shown, devices, holders)
            except Exception as error:  # noqa: BLE001 - what one engine was given must not cost the others their figures
                placed[name] = ()
                log.note(f"its ranks cannot be placed: {type(error).__name__}: {error}")
            else:
                self._note(log, placed[name])
        return placed

    @staticmethod
    def _place(
        engine: Engine, shown: _Shown, devices: Sequence[DeviceIdentity], holders: Mapping[str, Holders]
    ) -> tuple[Placement, ...]:
        running = engine.running
        if running is not None:
            held = _held(running.sighting, devices, holders)
            shown.devices |= ranks_by_memory(running.shape, running.sighting.workers, held, devices)
        return place(engine, devices, shown.devices)

    @staticmethod
    def _note(log: StateLog, placements: Iterable[Placement]) -> None:
        parted = [p for p in placements if p.contradicted is not None]
        log.note("; ".join(f"rank {p.rank}: {p.device}: {p.why}" for p in parted))


def _held(
    sighting: EngineSighting, devices: Iterable[DeviceIdentity], holders: Mapping[str, Holders]
) -> dict[int, dict[str, int]]:
    """Return the bytes that each process of the engine holds, by device."""
    own = {sighting.main.pid, *(worker.pid for worker in sighting.workers)}
    held: dict[int, dict[str, int]] = {}
    for device in devices:
        listed = holders.get(device.device)
        for process in listed.processes if listed is not None else ():
            if process.pid in own:
                # Where the card's memory is the host's its processes hold it there.
                used = process.gtt_used if device.sampler == "amdgpu_gtt" else process.used
                held.setdefault(process.pid, {})[device.device] = used or 0
    return held
