"""Wiring: start the sources, fold what they say into a Snapshot once a second and at once on an event, swap it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from budget_exporter import registries, sources, state
from budget_exporter.config import Config
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ledger import RegistryEntry
from budget_exporter.facts.snapshot import ExporterState, FreeAtInit, Snapshot
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar import assemble, devices
from budget_exporter.sidecar.attendants import Attendants
from budget_exporter.sidecar.containers import Containers
from budget_exporter.sidecar.endpoints import Endpoints
from budget_exporter.sidecar.fleet import Engine, Fleet, Running
from budget_exporter.sidecar.keeper import Keeper
from budget_exporter.sidecar.owners import Owners
from budget_exporter.sidecar.past import Trends
from budget_exporter.sidecar.phases import Phases
from budget_exporter.sidecar.placing import Places
from budget_exporter.sidecar.reload import Reload
from budget_exporter.sidecar.runner import StateLog
from budget_exporter.sidecar.starts import Starts
from budget_exporter.sidecar.threads import Report, Threads
from budget_exporter.verdicts.cause import deduced

__all__ = ["Options", "Sidecar"]

TICK = 1.0
"""Seconds between two Snapshots."""
SOON = 0.1
"""Seconds between two Snapshots at least, so that a burst of events makes one."""
SETTLE = 5.0
"""Seconds a source may take for its first run before it no longer holds back readiness."""
SAVE_EVERY = 10.0
LAST_WRITE = 0.2
"""Seconds the state file has to be written when the exporter stops."""
_LOG = logging.getLogger("budget_exporter")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides."""

    roots: Roots = field(default_factory=Roots)
    state_file: Path | None = None
    off: frozenset[str] = frozenset()
    """Names of the sources that a flag turns off."""
    on: frozenset[str] = frozenset()
    """Names of the sources that a flag turns on: of those that are off by default, or by the configuration."""
    demo: bool = False
    version: str = ""
    revision: str = ""
    python_version: str = ""


class Sidecar:
    """Everything with a lifetime; ``snapshot`` is what the outside sees."""

    def __init__(self, config: Config, options: Options, clock: Callable[[], float] = time.time) -> None:
        self.snapshot: Snapshot | None = None
        self.publish: Callable[[Snapshot], object] = lambda _: None
        """Called with each new Snapshot, before anybody else sees it."""
        self._options = options
        self._clock = clock
        self._config = config
        self._registry = registries.load(config)
        remembered = state.load(options.state_file) if options.state_file else state.State()
        self._board = devices.Board(remembered.devices)
        self._fleet = Fleet(config, remembered.engines)
        self._phases = Phases()
        self._owners, self._places = Owners(remembered.engines), Places()
        self._trends = Trends()
        self._event = asyncio.Event()
        off = sources.switched_off(options.off, options.on, config.switched())
        self._attendants = Attendants(options.roots, off, self._event.set, TICK, clock)
        self._threads = Threads(config, options.roots, off, self._wake, clock)
        self._containers = Containers(options.roots, off, self._event.set, TICK)
        self._endpoints = Endpoints(options.roots, off, self._event.set, config.interval("endpoint"))
        self._starts = Starts(options.roots, off, config.interval("pending"), clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reload = Reload(self._reconfigure, clock)
        self._born = time.monotonic()
        self._ready = False
        self._keeper = Keeper(options.state_file) if options.state_file else None
        self._saved = time.monotonic()
        self._trouble = StateLog("snapshot")

    def reload(self, read: Callable[[], Config]) -> None:
        """Take a new configuration soon; one that is wrong leaves the old one in force and says so in the metric."""
        self._reload.ask(read)

    def _reconfigure(self, config: Config, registry: tuple[RegistryEntry, ...]) -> None:
        if config.sources != self._config.sources:
            _LOG.warning("sources: what is new of them holds from the next start of the exporter")
        self._config, self._registry = config, registry
        self._fleet.configure(config)
        self._event.set()

    async def run(self) -> None:
        """Run until cancelled; then save the state and let go of everything that does not hang."""
        self._loop = asyncio.get_running_loop()
        self._threads.start()
        self._containers.start()
        self._starts.start()
        try:
            while True:
                self._event.clear()
                self._make_safely()
                self._save_when_due()
                await asyncio.sleep(SOON)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._event.wait(), TICK - SOON)
        finally:
            await self.close()

    def look(self) -> None:
        """Run what blocks once and make a Snapshot: for who has a clock of their own, in place of ``run``."""
        self._threads.once()
        self._starts.once()
        self._make_safely()

    async def close(self) -> None:
        """Let go of everything that does not hang, and save the state."""
        await self._attendants.close()
        await self._containers.close()
        await self._endpoints.close()
        self._threads.stop()
        self._starts.stop()
        await self._save_at_last()

    def _wake(self) -> None:
        """Ask for a Snapshot now; called in any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants one any more
                self._loop.call_soon_threadsafe(self._event.set)

    def _make_safely(self) -> None:
        """Make a Snapshot; where that fails there is none, since an old one would be shown as live."""
        try:
            self._make()
        except Exception as error:  # noqa: BLE001 - what is watched must never end the watcher
            _LOG.debug("no snapshot", exc_info=True)
            self.snapshot = None
            self._trouble.note(f"no snapshot could be made: {type(error).__name__}: {error}")
        else:
            self._trouble.note("")

    def _make(self) -> None:
        now = self._clock()
        seen = self._threads.found()
        found = self._containers.merge(seen, now)
        started = self._fleet.observe(found.running, now, complete=found.all)
        reports = self._reports()
        fresh = [window.identity for report in reports for window in report.folded.windows.values()]
        identities = self._board.identities(fresh, now)
        placed = self._places.of(self._fleet.engines.values(), identities, self._board.holders(now))
        known = found.all and self._all_placed(placed)
        for report in reports:
            self._board.update(report.folded.windows, self._epochs(placed), known=known, interval=report.interval)
            self._board.tell(report.source, report.folded, now, report.interval)
        owned = self._owners.divide(self._board, self._fleet.engines.values(), placed, now)
        shown = devices.shown(self._board.states(now), placed.values())
        states = {state.identity.device: owned.of_device(state) for state in shown}
        on_host = devices.on_host(placed, identities)
        self._threads.interest = _pids(seen.running)
        self._threads.on_host = _pids(e.running for name, e in self._fleet.engines.items() if name in on_host)
        for name in started:
            self._measure_free(self._fleet.engines[name], placed[name])
        self._attendants.attend(self._fleet.engines.values(), now)
        self._hear(now)
        self._endpoints.attend(self._fleet.engines.values())
        self._starts.attend(self._fleet.engines.values())
        self._phases.forget(set(self._fleet.engines))
        self._trends.forget(list(self._fleet.engines.values()))
        health = self._health()
        self._ready = self._ready or all(h.settled for h in health) or time.monotonic() - self._born > SETTLE
        made = Snapshot(
            at=now,
            ready=self._ready,
            devices=tuple(states.values()),
            engines=tuple(
                assemble.engine_state(
                    engine,
                    self._config,
                    self._registry,
                    states,
                    placed[name],
                    self._attendants.supervision(name),
                    self._phases.of(engine, now),
                    now,
                    held=owned.of_engine(name),
                    trends=self._trends,
                )
                for name, engine in sorted(self._fleet.engines.items())
            ),
            sources=tuple(health),
            exporter=self._exporter(),
        )
        self.publish(made)
        self.snapshot = made

    def _reports(self) -> list[Report]:
        """Return what was sampled, but not before it is known which engines hold the devices."""
        if not all(health.settled for health in self._threads.finders()):
            return []
        return list(self._threads.reports())

    def _all_placed(self, placed: Mapping[str, tuple[Placement, ...]]) -> bool:
        """Return whether every running engine's devices are known: what one of the others holds is no baseline."""
        running = (name for name, engine in self._fleet.engines.items() if engine.running is not None)
        return all(placed[name] and all(p.device is not None for p in placed[name]) for name in running)

    def _epochs(self, placed: Mapping[str, tuple[Placement, ...]]) -> dict[str, tuple[str, float]]:
        """Return the newest engine on each device and its start."""
        newest: dict[str, tuple[str, float]] = {}
        for name, engine in self._fleet.engines.items():
            if engine.running is None or engine.started_at is None or engine.main is None:
                continue
            # Not the name: an engine that is renamed by a reload goes on.
            epoch = f"{engine.main.boot_id}:{engine.main.pid}@{engine.main.start_ticks}"
            for device in (p.device for p in placed[name] if p.device is not None):
                if device not in newest or newest[device][1] < engine.started_at:
                    newest[device] = (epoch, engine.started_at)
        return newest

    def _measure_free(self, engine: Engine, placements: Iterable[Placement]) -> None:
        """Note what was free just before a witnessed start; the engine's own figure, once printed, goes before it."""
        if not engine.witnessed or engine.started_at is None:
            return
        for placement in placements:
            device = placement.device
            # A sample of the time when the process before still held the device tells nothing.
            free = self._board.free_before(device, engine.started_at, engine.vacant_since) if device else None
            if free is not None:
                engine.free_at_init[placement.rank] = FreeAtInit(free, 0, "measured")

    def _hear(self, now: float) -> None:
        """Take in what logs and supervisors said since the last time."""
        for name, engine in self._fleet.engines.items():
            engine.heard = self._attendants.heard(name)
            own = assemble.associate(engine, *self._attendants.reading(name))
            for told in self._attendants.told(name):
                shape = engine.last.shape if engine.last else None
                failure = deduced(told.failure, engine.report if own and told.newest else None, shape)
                engine.deaths.tell(failure, present=told.newest and own and engine.running is not None)
            past = self._attendants.past_failure(name)
            if past is not None and engine.deaths.last is None:
                engine.deaths.last = past
            troubled = self._attendants.troubled(name)
            self._fleet.supervised(engine, self._attendants.supervision(name), now, troubled=troubled)

    def _health(self) -> list[SourceHealth]:
        healths = self._threads.health() + self._containers.health() + self._attendants.health()
        return sorted(healths + self._endpoints.health() + self._starts.health(), key=lambda h: h.name)

    def _exporter(self) -> ExporterState:
        options = self._options
        return ExporterState(
            version=options.version,
            revision=options.revision,
            python_version=options.python_version,
            demo=options.demo,
            reload_successful=self._reload.successful,
            reload_at=self._reload.at,
            unparsed_lines=self._attendants.unparsed(),
        )

    def _save_when_due(self) -> None:
        now = time.monotonic()
        if self._keeper is not None and now - self._saved >= SAVE_EVERY:
            self._saved = now
            self._keeper.keep(self._state())

    async def _save_at_last(self) -> None:
        if self._keeper is None:
            return
        # What the logs told since the last Snapshot lies before the places in them that are saved.
        self._hear(self._clock())
        self._keeper.keep(self._state())
        await asyncio.to_thread(self._keeper.close, LAST_WRITE)

    def _state(self) -> state.State:
        memories = self._owners.remember(self._fleet.memories(self._attendants.cursors()))
        return state.State(saved_at=self._clock(), devices=self._board.marks, engines=memories)


def _pids(found: Iterable[Running | None]) -> frozenset[int]:
    """Return the PIDs of all processes of what runs."""
    sightings = [running.sighting for running in found if running is not None]
    return frozenset(pid for each in sightings for pid in (each.main.pid, *(worker.pid for worker in each.workers)))
