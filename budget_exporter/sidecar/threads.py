"""The blocking sources, each in its thread: devices that are sampled, engines that are found."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from budget_exporter import sources
from budget_exporter.config import Config
from budget_exporter.devices import AsyncDeviceSource, DeviceSource
from budget_exporter.engines import EngineSource, address, arguments
from budget_exporter.engines.installed import installed_version
from budget_exporter.engines.procfs import read_config
from budget_exporter.facts.device import DeviceReport
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Running, keys
from budget_exporter.sidecar.reports import Folded, fold
from budget_exporter.sidecar.runner import Runner
from budget_exporter.sidecar.task_runner import TaskRunner

__all__ = ["Found", "Report", "Threads"]

JOIN = 0.2
"""Seconds a thread has to end when the exporter stops; one that hangs is left alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """What runs, by the finders that have looked lately; where not ``all`` have, what is missing may run unseen."""

    running: list[Running]
    all: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What the device source of this name said since the last time; ``interval`` are the seconds between its runs."""

    source: str
    interval: float
    folded: Folded


_Sampler = Runner[DeviceReport, Folded] | TaskRunner[DeviceReport, Folded]


class Threads:
    """
    All threads; ``interest`` are the PIDs whose memory the device sources are asked for.

    The host's memory is asked for ``on_host`` only: nobody wants what others hold of it, and to look costs them.
    """

    def __init__(
        self,
        config: Config,
        roots: Roots,
        off: frozenset[str],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interest: frozenset[int] = frozenset()
        self.on_host: frozenset[int] = frozenset()
        self._roots = roots
        self._changed = changed
        self._clock = clock
        self._found: dict[str, list[Running]] = {}
        self._samplers: list[tuple[DeviceSource | AsyncDeviceSource, _Sampler]] = []
        self._finders: list[Runner[list[Running], list[Running]]] = []
        for name in sources.enabled("devices", off):
            device_source: DeviceSource | AsyncDeviceSource = sources.load(
                name, roots, config.interval(name), clock, config.url(name)
            )
            self._samplers.append((device_source, self._sampler(device_source)))
        for name in sources.enabled("engines", off):
            finder: EngineSource = sources.load(name, roots, config.interval(name))
            find, wake = self._finder(finder), self._waker()
            self._finders.append(Runner(name, finder.interval, find, _newest, wake=wake, clock=clock))

    def start(self) -> None:
        """Start them all."""
        for _, sampler in self._samplers:
            sampler.start()
        for finder in self._finders:
            finder.start()

    def once(self) -> None:
        """Run each source that blocks once, in the caller's thread; not together with ``start``."""
        for _, sampler in self._samplers:
            if isinstance(sampler, Runner):
                sampler.once()
        for finder in self._finders:
            finder.once()

    def stop(self) -> None:
        """End those that do not hang, and close their sources."""
        for _, sampler in self._samplers:
            sampler.stop()
        for finder in self._finders:
            finder.stop()
        for device_source, sampler in self._samplers:
            if isinstance(sampler, TaskRunner) or sampler.join(JOIN):
                device_source.close()

    def found(self) -> Found:
        """Return what runs, by the newest result of each finder that has one which is not old."""
        lately = [finder for finder in self._finders if finder.fresh]
        for finder in lately:
            found = finder.take()
            if found is not None:
                self._found[finder.name] = found
        running = [running for finder in lately for running in self._found.get(finder.name, ())]
        return Found(running, all=bool(lately) and len(lately) == len(self._finders))

    def reports(self) -> Iterator[Report]:
        """Yield what each sampler has folded since the last time."""
        for source, sampler in self._samplers:
            folded = sampler.take()
            if folded is not None:
                # A source may also look less often than it is asked.
                yield Report(source.name, max(source.interval, sampler.pace), folded)

    def finders(self) -> list[SourceHealth]:
        """Return the health of the engine finders."""
        return [finder.health() for finder in self._finders]

    def health(self) -> list[SourceHealth]:
        """Return the health of all of them."""
        return [sampler.health() for _, sampler in self._samplers] + self.finders()

    def _sampler(self, source: DeviceSource | AsyncDeviceSource) -> _Sampler:
        if inspect.iscoroutinefunction(source.read):
            reader = self._async_reader(cast("AsyncDeviceSource", source))
            return TaskRunner(source.name, source.interval, reader, fold, clock=self._clock)
        reading = self._reader(cast("DeviceSource", source))
        return Runner(source.name, source.interval, reading, fold, clock=self._clock)

    def _async_reader(self, source: AsyncDeviceSource) -> Callable[[], Awaitable[tuple[DeviceReport, list[str]]]]:
        async def run() -> tuple[DeviceReport, list[str]]:
            report = await source.read(self.interest)
            return report, list(report.faults)

        return run

    def _reader(self, source: DeviceSource) -> Callable[[], tuple[DeviceReport, list[str]]]:
        def run() -> tuple[DeviceReport, list[str]]:
            report = source.read(self.on_host if source.name == "host" else self.interest)
            return report, list(report.faults)

        return run

    def _finder(self, source: EngineSource) -> Callable[[], tuple[list[Running], list[str]]]:
        """
        Return a run that finds engines and reads their flags.

        Flags do not change while a process lives, so they are read once; but those that could not be read, or not yet,
        are tried again.
        """
        shapes: dict[ProcessKey, Shape] = {}
        addresses: dict[ProcessKey, address.Address] = {}

        def run() -> tuple[list[Running], list[str]]:
            sightings, faults = source.find()
            for sighting in sightings:
                known = shapes.get(sighting.main)
                if known is None or known.faults:
                    known = shapes[sighting.main] = _shape(sighting, self._roots.procfs)
                if sighting.main not in addresses or addresses[sighting.main].why:
                    addresses[sighting.main] = _address(sighting, known, self._roots.procfs)
            for gone in shapes.keys() - {sighting.main for sighting in sightings}:
                del shapes[gone], addresses[gone]
            return [Running(each, shapes[each.main], addresses[each.main]) for each in sightings], faults

        return run

    def _waker(self) -> Callable[[list[Running]], None]:
        """Return a callback, run in the finder's thread, that tells when the main processes are others."""
        known: frozenset[ProcessKey] = frozenset()

        def wake(found: list[Running]) -> None:
            nonlocal known
            if keys(found) != known:
                known = keys(found)
                self._changed()

        return wake


def _shape(sighting: EngineSighting, procfs: Path) -> Shape:
    version = installed_version(procfs, sighting.main.pid, sighting.argv)
    return arguments.shape(sighting.argv, sighting.environ, _config_reader(sighting, procfs), version)


def _address(sighting: EngineSighting, shape: Shape, procfs: Path) -> address.Address:
    return address.own(sighting, _config_reader(sighting, procfs), procfs, shape.version)


def _config_reader(sighting: EngineSighting, procfs: Path) -> Callable[[str], str]:
    return partial(read_config, procfs, sighting.main.pid, sighting.cwd)


def _newest(_: list[Running] | None, found: list[Running]) -> list[Running]:
    return found
