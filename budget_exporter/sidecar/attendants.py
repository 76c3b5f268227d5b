"""The tasks that attend to engines: a follower for each log, a watcher for each supervised unit or container."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from budget_exporter import sources
from budget_exporter.engines import Supervisor
from budget_exporter.evidence import LogSource
from budget_exporter.facts.boot import Failure
from budget_exporter.facts.engine import Supervision, SupervisorName
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.follower import Follower, Reading, Resumed, Told
from budget_exporter.sidecar.health import Health
from budget_exporter.sidecar.logs import Log, logs_of
from budget_exporter.sidecar.runner import StateLog
from budget_exporter.sidecar.watcher import Watcher

__all__ = ["Attendants"]

CLOSE = 0.3
"""Seconds the tasks have to end when the exporter stops."""


@dataclass(slots=True)
class _Attended:
    """The tasks of one engine."""

    log: Log | None = None
    follower: Follower | None = None
    follower_task: asyncio.Task[None] | None = None
    supervised_by: tuple[SupervisorName, str] | None = None
    watcher: Watcher | None = None
    watcher_task: asyncio.Task[None] | None = None


class Attendants:
    """Start and end the tasks as engines come, change and go; ``interval`` are the seconds between two looks."""

    def __init__(
        self,
        roots: Roots,
        off: frozenset[str],
        wake: Callable[[], None],
        interval: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._roots = roots
        self._off = off
        self._wake = wake
        self._interval = interval
        self._clock = clock
        self._attended: dict[str, _Attended] = {}
        self._logs: dict[str, LogSource] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._healths: dict[str, Health] = {}
        self._unparsed: Counter[str] = Counter()
        """Lines that did not parse, of the followers that are no more."""
        self._sharing = StateLog("logs")
        self._ended: set[asyncio.Task[None]] = set()

    def attend(self, engines: Iterable[Engine], now: float) -> None:
        """See to it that each engine has the tasks it should have."""
        present = {engine.name: engine for engine in engines}
        for name in self._attended.keys() - present.keys():
            attended = self._attended.pop(name)
            self._end_follower(attended)
            self._end_watcher(attended)
        logs, shared = logs_of(present.values(), self._off, now)
        told = f"several running engines write to {', '.join(shared)}: whose line is whose cannot be told"
        self._sharing.note(told if shared else "")
        for name, engine in present.items():
            attended = self._attended.setdefault(name, _Attended())
            # Where nobody has looked lately, what is known of the engine is no reason to change anything.
            if engine.up is not None:
                self._attend_log(engine, attended, logs.get(name))
            self._attend_supervisor(engine, attended)

    def _attend_log(self, engine: Engine, attended: _Attended, log: Log | None) -> None:
        if log is attended.log or (log is not None and log.same(attended.log)):
            return
        self._end_follower(attended)
        attended.log = log
        if log is None:
            return
        resumed = _resumed(engine, log)
        written = partial(_written, self._roots.rootfs, log.target.path)
        health, source = self._health(log.source), self._log(log.source)
        follower = Follower(log.target, source, health, self._wake, resumed=resumed, written=written, clock=self._clock)
        health.joined(follower)
        attended.follower = follower
        attended.follower_task = asyncio.create_task(follower.run(), name=f"log {engine.name}")

    def _attend_supervisor(self, engine: Engine, attended: _Attended) -> None:
        by = engine.supervised_by
        if by is not None and (by[0] in self._off or sources.SOURCES.get(by[0]) != "supervisors"):
            by = None
        if by == attended.supervised_by:
            return
        self._end_watcher(attended)
        attended.supervised_by = by
        if by is None:
            return
        name, unit = by
        health = self._health(name)
        attended.watcher = Watcher(unit, self._supervisor(name), health, self._wake)
        health.joined(attended.watcher)
        attended.watcher_task = asyncio.create_task(attended.watcher.run(), name=f"{name} {unit}")

    def _end_follower(self, attended: _Attended) -> None:
        follower = attended.follower
        if follower is not None:
            self._unparsed[follower.source_name] += follower.reading.unparsed
            self._health(follower.source_name).left(follower)
        self._end(attended.follower_task)
        attended.log = attended.follower = attended.follower_task = None

    def _end_watcher(self, attended: _Attended) -> None:
        if attended.watcher is not None and attended.supervised_by is not None:
            self._health(attended.supervised_by[0]).left(attended.watcher)
        self._end(attended.watcher_task)
        attended.supervised_by = attended.watcher = attended.watcher_task = None

    def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)

    def _log(self, name: str) -> LogSource:
        if name not in self._logs:
            self._logs[name] = sources.load(name, self._roots, clock=self._clock)
        return self._logs[name]

    def _supervisor(self, name: str) -> Supervisor:
        if name not in self._supervisors:
            self._supervisors[name] = sources.load(name, self._roots)
        return self._supervisors[name]

    def _health(self, name: str) -> Health:
        return self._healths.setdefault(name, Health(name, self._interval, self._clock))

    def _of(self, name: str) -> _Attended:
        return self._attended.get(name) or _Attended()

    def reading(self, name: str) -> tuple[Reading | None, Resumed | None]:
        """Return what the log of the engine ``name`` has said so far, and where its follower took it up."""
        follower = self._of(name).follower
        return (follower.reading, follower.resumed) if follower else (None, None)

    def heard(self, name: str) -> bool:
        """Return whether the log of the engine ``name`` is followed now, and known to its end."""
        follower = self._of(name).follower
        return follower is not None and follower.heard

    def told(self, name: str) -> list[Told]:
        """Return the deaths found in the log since the last call."""
        follower = self._of(name).follower
        return follower.take_told() if follower else []

    def troubled(self, name: str) -> bool:
        """Return whether the log of the engine may still tell of a death that has been."""
        follower = self._of(name).follower
        return follower is not None and follower.troubled

    def past_failure(self, name: str) -> Failure | None:
        """Return the newest death in a log that was there before us."""
        follower = self._of(name).follower
        return follower.past_failure if follower else None

    def supervision(self, name: str) -> Supervision | None:
        """Return what the supervisor last said of the engine ``name``, None while it cannot be heard."""
        watcher = self._of(name).watcher
        return watcher.latest if watcher else None

    def cursors(self) -> dict[str, tuple[str, str | None]]:
        """Return each engine's log and the place reached in it."""
        return {
            name: (attended.log.name, attended.follower.cursor)
            for name, attended in self._attended.items()
            if attended.log is not None and attended.follower is not None
        }

    def unparsed(self) -> Mapping[str, int]:
        """Return how many budget lines did not parse, by log source."""
        total = Counter(self._unparsed)
        for follower in (attended.follower for attended in self._attended.values()):
            if follower is not None:
                total[follower.source_name] += follower.reading.unparsed
        return total

    def health(self) -> list[SourceHealth]:
        """Return the health of the sources in use."""
        return [health.health() for health in self._healths.values() if health.used]

    async def close(self) -> None:
        """End all tasks; those that do not end in time are left to the end of the process."""
        for attended in self._attended.values():
            self._end(attended.follower_task)
            self._end(attended.watcher_task)
        if self._ended:
            await asyncio.wait(set(self._ended), timeout=CLOSE)


def _resumed(engine: Engine, log: Log) -> Resumed | None:
    """Return where to go on in the log and what was known there, if the state file knows this log; taken up once."""
    memory, engine.remembered = engine.remembered, None
    if memory is None or memory.log != log.name or memory.cursor is None:
        return None
    return Resumed(memory.cursor, memory.main, memory.report)


def _written(rootfs: Path, path: str | None) -> float | None:
    """Return the Unix time at which a log file was last written to, None where the log is no file or is not there."""
    if path is None:
        return None
    try:
        return (rootfs / path.lstrip("/")).stat().st_mtime
    except OSError:
        return None
