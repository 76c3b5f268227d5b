"""Which engines there are: names, main processes, restarts and deaths, remembered while they are down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.config import Config, EngineConfig
from budget_exporter.facts.boot import BootReport, Phase
from budget_exporter.facts.endpoint import EndpointState
from budget_exporter.facts.engine import EngineSighting, Pending, ProcessKey, Supervision, SupervisorName
from budget_exporter.facts.history import BootMark
from budget_exporter.facts.snapshot import FreeAtInit
from budget_exporter.sidecar.deaths import Deaths, died
from budget_exporter.sidecar.names import Running, automatic_name, configured_name, describes, named
from budget_exporter.sidecar.restarts import RestartCount
from budget_exporter.sidecar.runner import StateLog
from budget_exporter.state import EngineMemory

__all__ = ["Engine", "Fleet", "Running", "keys"]

FORGET_AFTER = 3600.0
"""Seconds after which an engine that is gone and not configured is forgotten."""
GONE_AFTER = 60.0
"""Seconds a unit or container that is gone has to come again, as one that is created anew does."""
FRESH = 5.0
"""Seconds within which a process must be found for its start to have been witnessed."""
TROUBLE: frozenset[Phase] = frozenset({"failing", "unknown"})
"""Phases that do not tell how far a boot has come."""


@dataclass(slots=True)
class Engine:
    """Everything known of one engine, by name; changes while it lives and dies."""

    name: str
    config: EngineConfig | None
    running: Running | None = None
    last: Running | None = None
    looked: bool = False
    """Whether somebody has looked lately; without that it is not known whether the engine runs."""
    main: ProcessKey | None = None
    started_at: float | None = None
    witnessed: bool = False
    """Whether the present main process was seen within seconds of its start."""
    vacant_since: float = float("-inf")
    """Unix time since which no earlier process of the engine held its devices when the present one started."""
    last_seen: float | None = None
    ended_at: float | None = None
    shown: Phase = "unknown"
    """The phase the present main process was last said to be in."""
    worked: Phase = "unknown"
    """The last of its phases that was neither trouble nor its end."""
    restarts: RestartCount = field(default_factory=RestartCount)
    deaths: Deaths = field(default_factory=Deaths)
    report: BootReport | None = None
    heard: bool = False
    """Whether the log that ``report`` comes from is being followed now."""
    endpoint: EndpointState | None = None
    """What its endpoint says now; None where that is not asked."""
    free_at_init: dict[str, FreeAtInit] = field(default_factory=dict)
    remembered: EngineMemory | None = None
    """What the state file said, until the log follower has taken it up."""
    pending: Pending | None = None
    """What its next start would change, of the present main process."""
    gone_since: float | None = None
    """Unix time since which the unit or container it ran in exists no longer."""
    boots: list[BootMark] = field(default_factory=list)
    """Boots that came to serve, oldest first."""
    trouble: StateLog = field(init=False)
    """Logs why there is no budget for this engine, when that changes."""

    def __post_init__(self) -> None:
        """Name the log after the engine."""
        self.trouble = StateLog(f"engine.{self.name}")

    @property
    def up(self) -> bool | None:
        """Return whether it has a main process, None where nobody has looked lately."""
        return True if self.running is not None else False if self.looked else None

    @property
    def unit(self) -> str | None:
        """Return the unit that supervises the engine: from its configuration, else from its processes."""
        config = self.config
        if config is not None and (config.unit or (config.match and config.match.unit)):
            return config.unit or (config.match.unit if config.match else None)
        return self.last.sighting.unit if self.last else None

    @property
    def supervised_by(self) -> tuple[SupervisorName, str] | None:
        """Return whose word counts of what restarts the engine, and what it calls it: its unit, else its container."""
        if self.unit is not None:
            return "systemd", self.unit
        sighting = self.last.sighting if self.last else None
        if sighting is None or sighting.container is None or sighting.supervisor == "none":
            return None
        return sighting.supervisor, sighting.container

    def rename(self, name: str) -> None:
        """Go on under another name."""
        self.name, self.trouble = name, StateLog(f"engine.{name}")


class Fleet:
    """All engines, and the rules by which one stays the same engine."""

    def __init__(self, config: Config, remembered: Mapping[str, EngineMemory]) -> None:
        self.engines: dict[str, Engine] = {}
        self.configure(config)
        for name, memory in remembered.items():
            if name not in self._excluded:
                self._recall(name, memory)

    def configure(self, config: Config) -> None:
        """Take a new configuration: configured engines exist from the start."""
        self._config = {engine.name: engine for engine in config.engines if not engine.exclude}
        self._excluded = {engine.name: engine for engine in config.engines if engine.exclude}
        self.engines = {name: engine for name, engine in self.engines.items() if name not in self._excluded}
        for name, engine in self.engines.items():
            engine.config = self._config.get(name)
        for name, entry in self._config.items():
            self.engines.setdefault(name, Engine(name, entry))

    def _recall(self, name: str, memory: EngineMemory) -> None:
        engine = self.engines.setdefault(name, Engine(name, self._config.get(name)))
        engine.main, engine.started_at, engine.last_seen = memory.main, memory.started_at, memory.last_seen
        engine.restarts = RestartCount(memory.restarts, memory.nrestarts, memory.unit)
        engine.deaths.recall(memory.failures, memory.last_failure, memory.last_deaths)
        engine.boots = list(memory.boots)
        engine.report = memory.report
        engine.free_at_init = dict(memory.free_at_init)
        engine.remembered = memory
        engine.ended_at = memory.last_seen

    def observe(self, found: Sequence[Running], now: float, *, complete: bool = True) -> list[str]:
        """
        Take in what runs at ``now``; return the names of engines whose main process is new.

        Where the look was not ``complete``, an engine that was not found may run all the same.
        """
        started: list[str] = []
        holders = self._holders(self._ours(found))
        for name, running in holders.items():
            engine = self.engines.setdefault(name, Engine(name, self._config.get(name)))
            if engine.main != running.sighting.main:
                self._begin(engine, running.sighting, now)
                started.append(name)
            engine.running = engine.last = running
            engine.looked, engine.gone_since, engine.last_seen, engine.ended_at = True, None, now, None
        for name, engine in list(self.engines.items()):
            if name not in holders:
                engine.running, engine.looked = None, complete
                if complete:
                    self._absent(engine, now)
        return started

    def _ours(self, found: Sequence[Running]) -> list[Running]:
        """Return what runs and is not excluded; what is excluded is forgotten at once, as if it had never been."""
        excluded = {
            running.sighting.main
            for running in found
            if any(describes(entry, running) for entry in self._excluded.values())
        }
        self.engines = {name: engine for name, engine in self.engines.items() if engine.main not in excluded}
        return [running for running in found if running.sighting.main not in excluded]

    def _begin(self, engine: Engine, sighting: EngineSighting, now: float) -> None:
        if engine.main is not None:
            engine.restarts.process(now)
            if engine.ended_at is None:
                self._end(engine, now)
            engine.vacant_since = engine.ended_at or now
        engine.main, engine.started_at = sighting.main, sighting.started_at
        engine.witnessed = now - sighting.started_at <= FRESH
        engine.report, engine.free_at_init = None, {}
        engine.shown = engine.worked = "unknown"
        engine.deaths.began()

    def _absent(self, engine: Engine, now: float) -> None:
        if engine.ended_at is None and engine.main is not None:
            self._end(engine, now)
        gone = engine.gone_since is not None and now - engine.gone_since > GONE_AFTER
        forgotten = engine.ended_at is None or gone or now - engine.ended_at > FORGET_AFTER
        if engine.config is None and forgotten:
            del self.engines[engine.name]

    @staticmethod
    def _end(engine: Engine, now: float) -> None:
        engine.ended_at = now
        told = engine.report.phase if engine.report else "unknown"
        phase = engine.worked if told in TROUBLE and engine.worked != "unknown" else told
        engine.deaths.ended(now, phase)

    def supervised(self, engine: Engine, supervision: Supervision | None, now: float, *, troubled: bool) -> None:
        """
        Take the supervisor's word: its counter, and a death that no log line explained.

        ``troubled`` says that the log may still tell of one.
        """
        if supervision is None:
            engine.restarts.silent(now)
        else:
            known = engine.restarts.nrestarts is not None
            rose = engine.restarts.counter(supervision.nrestarts, now, supervision.unit)
            running = engine.running is not None
            words = engine.report if engine.heard else None
            if rose or died(supervision, words, running=running, failing=engine.shown == "failing"):
                engine.deaths.unasked(now, running=running, restarts=rose)
            elif supervision.asked:
                engine.deaths.asked(now)
            vanished = known and supervision.nrestarts is None and supervision.state == "inactive"
            if supervision.nrestarts is not None:
                engine.gone_since = None
            elif vanished and engine.up is False:
                engine.gone_since = now
        engine.deaths.judge(now, troubled=troubled)

    def _holders(self, found: Sequence[Running]) -> dict[str, Running]:
        """Return what runs by name: what is known keeps its name unless the configuration gives it another."""
        known = {engine.main: name for name, engine in self.engines.items() if engine.main is not None}
        mains = keys(found)
        holders: dict[str, Running] = {}
        fresh: list[Running] = []
        for running in found:
            name = known.get(running.sighting.main)
            wanted = configured_name(running, self._config) or self._late_name(name, running)
            if name is not None and wanted not in (None, name):
                name = self._move(name, str(wanted), mains)
            if name is None or name in holders:
                fresh.append(running)
            else:
                holders[name] = running
        ports = {name: engine.last.port if engine.last else None for name, engine in self.engines.items()}
        return holders | named(fresh, holders, ports, self._config)

    def _late_name(self, name: str | None, running: Running) -> str | None:
        """Return the name of a running engine of whose container was told only now, None for any other."""
        last = self.engines[name].last if name is not None and name not in self._config else None
        if last is None or last.sighting.container_socket is not None or running.sighting.container_socket is None:
            return None
        wanted = automatic_name(running)
        # A configured name belongs to what its entry describes.
        return None if wanted in self._config and self._config[wanted].match is not None else wanted

    def _move(self, name: str, wanted: str, mains: frozenset[ProcessKey]) -> str | None:
        """
        Give the engine ``name`` the name that it should have had, with all that is known of it.

        Where ``wanted`` has a past of its own the process is the next of that engine's, and None is returned; where it
        runs, the name stays.
        """
        holder = self.engines.get(wanted)
        if holder is not None and holder.main in mains:
            return name
        engine = self.engines.pop(name)
        if name in self._config:
            self.engines[name] = Engine(name, self._config[name])
        if holder is not None and holder.main is not None:
            return None
        engine.rename(wanted)
        engine.config = self._config.get(wanted)
        self.engines[wanted] = engine
        return wanted

    def memories(self, cursors: Mapping[str, tuple[str, str | None]]) -> dict[str, EngineMemory]:
        """Return what is worth remembering of each engine; ``cursors`` gives each one's log and place in it."""
        return {name: _memory(engine, *cursors.get(name, ("", None))) for name, engine in self.engines.items()}


def _memory(engine: Engine, log: str, cursor: str | None) -> EngineMemory:
    old = engine.remembered
    if not log and old is not None:
        log, cursor = old.log, old.cursor
    return EngineMemory(
        main=engine.main,
        started_at=engine.started_at,
        last_seen=engine.last_seen,
        restarts=engine.restarts.total,
        nrestarts=engine.restarts.nrestarts,
        unit=engine.restarts.unit,
        failures=dict(engine.deaths.counts),
        last_failure=engine.deaths.last,
        report=engine.report,
        log=log,
        cursor=cursor,
        free_at_init=dict(engine.free_at_init),
        boots=tuple(engine.boots),
        last_deaths=tuple(engine.deaths.lately),
    )


def keys(found: Iterable[Running]) -> frozenset[ProcessKey]:
    """Return the main processes of what was found."""
    return frozenset(running.sighting.main for running in found)
