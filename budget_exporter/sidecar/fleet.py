"""Which engines there are: names, main processes, restarts and deaths, remembered while they are down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from budget_exporter.config import Config, EngineConfig
from budget_exporter.facts.boot import CAUSES, BootReport, Cause, Failure
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape, Supervision, UnitState
from budget_exporter.facts.snapshot import FreeAtInit
from budget_exporter.sidecar.restarts import RestartCount
from budget_exporter.sidecar.runner import StateLog
from budget_exporter.state import EngineMemory

__all__ = ["Engine", "Fleet", "Running"]

FORGET_AFTER = 3600.0
"""Seconds after which an engine that is gone and not configured is forgotten."""
FRESH = 5.0
"""Seconds within which a process must be found for its start to have been witnessed."""
DEFAULT_PORT = 8000
"""vLLM's port where no flag gives one (entrypoints/openai/cli_args.py)."""
SUFFIX = ".service"
DEAD: frozenset[UnitState] = frozenset({"failed", "auto_restart"})


@dataclass(frozen=True, slots=True)
class Running:
    """An engine as it was found, and its flags."""

    sighting: EngineSighting
    shape: Shape


@dataclass(slots=True)
class Engine:
    """Everything known of one engine, by name; changes while it lives and dies."""

    name: str
    config: EngineConfig | None
    running: Running | None = None
    last: Running | None = None
    main: ProcessKey | None = None
    started_at: float | None = None
    witnessed: bool = False
    """Whether the present main process was seen within seconds of its start."""
    last_seen: float | None = None
    ended_at: float | None = None
    mourned: bool = True
    """Whether the last death has been judged: by a line of the log, or by the supervisor's word."""
    restarts: RestartCount = field(default_factory=RestartCount)
    failures: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    last_failure: Failure | None = None
    report: BootReport | None = None
    boot: int = 0
    """Ordinal of the boot in the log that belongs to the present main process; boots up to ``floor`` are older."""
    floor: int = 0
    free_at_init: dict[str, FreeAtInit] = field(default_factory=dict)
    remembered: EngineMemory | None = None
    """What the state file said, until the log follower has taken it up."""
    trouble: StateLog = field(init=False)
    """Logs why there is no budget for this engine, when that changes."""

    def __post_init__(self) -> None:
        """Name the log after the engine."""
        self.trouble = StateLog(f"engine.{self.name}")

    @property
    def unit(self) -> str | None:
        """Return the unit that supervises the engine: from its configuration, else from its processes."""
        config = self.config
        if config is not None and (config.unit or (config.match and config.match.unit)):
            return config.unit or (config.match.unit if config.match else None)
        return self.last.sighting.unit if self.last else None

    def fail(self, failure: Failure) -> None:
        """Count a death."""
        self.failures[failure.cause] += 1
        self.last_failure = failure
        self.mourned = True


class Fleet:
    """All engines, and the rules by which one stays the same engine."""

    def __init__(self, config: Config, remembered: Mapping[str, EngineMemory]) -> None:
        self.engines: dict[str, Engine] = {}
        self.configure(config)
        for name, memory in remembered.items():
            self._recall(name, memory)

    def configure(self, config: Config) -> None:
        """Take a new configuration: configured engines exist from the start."""
        self._config = {engine.name: engine for engine in config.engines}
        for name, engine in self.engines.items():
            engine.config = self._config.get(name)
        for name, entry in self._config.items():
            self.engines.setdefault(name, Engine(name, entry))

    def _recall(self, name: str, memory: EngineMemory) -> None:
        engine = self.engines.setdefault(name, Engine(name, self._config.get(name)))
        engine.main, engine.started_at, engine.last_seen = memory.main, memory.started_at, memory.last_seen
        engine.restarts = RestartCount(memory.restarts, memory.nrestarts)
        engine.failures.update(memory.failures)
        engine.last_failure, engine.report = memory.last_failure, memory.report
        engine.free_at_init = dict(memory.free_at_init)
        engine.remembered = memory
        engine.ended_at = memory.last_seen

    def observe(self, found: Sequence[Running], now: float) -> list[str]:
        """Take in what runs at ``now``; return the names of engines whose main process is new."""
        started: list[str] = []
        named = self._name(found)
        for name, running in named.items():
            engine = self.engines.setdefault(name, Engine(name, self._config.get(name)))
            if engine.main != running.sighting.main:
                self._begin(engine, running.sighting, now)
                started.append(name)
            engine.running = engine.last = running
            engine.last_seen, engine.ended_at = now, None
        for name, engine in list(self.engines.items()):
            if name not in named:
                self._absent(engine, now)
        return started

    def _begin(self, engine: Engine, sighting: EngineSighting, now: float) -> None:
        if engine.main is not None:
            engine.restarts.process(now)
        engine.main, engine.started_at = sighting.main, sighting.started_at
        engine.witnessed = now - sighting.started_at <= FRESH
        engine.floor = max(engine.floor, engine.boot)
        engine.report, engine.free_at_init, engine.mourned = None, {}, False

    def _absent(self, engine: Engine, now: float) -> None:
        engine.running = None
        if engine.ended_at is None and engine.main is not None:
            engine.ended_at = now
        gone = engine.ended_at is None or now - engine.ended_at > FORGET_AFTER
        if engine.config is None and gone:
            del self.engines[engine.name]

    def supervised(self, engine: Engine, supervision: Supervision | None, now: float) -> None:
        """Take the supervisor's word: its counter, and a death that no log line explained."""
        if supervision is None:
            return
        engine.restarts.counter(supervision.nrestarts, now)
        if engine.running is None and not engine.mourned and engine.ended_at is not None:
            self._mourn(engine, supervision, now)

    @staticmethod
    def _mourn(engine: Engine, supervision: Supervision, now: float) -> None:
        if engine.ended_at is None or now - engine.ended_at < FRESH:
            return  # the log may still tell
        if supervision.state in DEAD:
            phase = engine.report.phase if engine.report else "unknown"
            engine.fail(Failure(at=engine.ended_at, phase=phase, cause="unknown"))
        engine.mourned = True

    def _name(self, found: Sequence[Running]) -> dict[str, Running]:
        """Return what runs by name: those known keep theirs, a second holder of a name gets ``@port``."""
        known = {engine.main: name for name, engine in self.engines.items() if engine.main is not None}
        named: dict[str, Running] = {}
        fresh: list[Running] = []
        for running in found:
            name = known.get(running.sighting.main)
            if name is None or name in named:
                fresh.append(running)
            else:
                named[name] = running
        for running in sorted(fresh, key=lambda r: (r.sighting.started_at, r.sighting.main.pid)):
            name = self._configured(running) or automatic_name(running)
            if name in named:
                name = f"{name}@{running.shape.port or DEFAULT_PORT}"
            named.setdefault(name, running)
        return named

    def _configured(self, running: Running) -> str | None:
        return next((e.name for e in self._config.values() if e.match and matches(e, running)), None)

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
        failures=dict(engine.failures),
        last_failure=engine.last_failure,
        report=engine.report,
        log=log,
        cursor=cursor,
        free_at_init=dict(engine.free_at_init),
    )


def matches(config: EngineConfig, running: Running) -> bool:
    """Return whether ``running`` is the engine that ``config`` describes."""
    match = config.match
    if match is None:
        return False
    sighting, shape = running.sighting, running.shape
    return (
        (match.unit is not None and match.unit == sighting.unit)
        or (match.container is not None and match.container == sighting.container)
        or (match.served_model_name is not None and match.served_model_name == (shape.served_model_name or shape.model))
        or (match.port is not None and match.port == (shape.port or DEFAULT_PORT))
    )


def automatic_name(running: Running) -> str:
    """Return the name of an engine without configuration: unit, container, served model name, port."""
    sighting, shape = running.sighting, running.shape
    return (
        (sighting.unit or "").removesuffix(SUFFIX)
        or sighting.container
        or shape.served_model_name
        or _model_name(shape.model)
        or str(shape.port or DEFAULT_PORT)
    )


def _model_name(model: str | None) -> str | None:
    """Return a hub's name as it is, and only the last part of a path: paths are no names."""
    return model.rstrip("/").rpartition("/")[2] if model and model.startswith(("/", ".", "~")) else model


def keys(found: Iterable[Running]) -> frozenset[ProcessKey]:
    """Return the main processes of what was found."""
    return frozenset(running.sighting.main for running in found)
