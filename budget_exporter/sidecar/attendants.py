"""The tasks that attend to engines: a follower for each log, a watcher for each supervised unit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from budget_exporter import sources
from budget_exporter.engines import Supervisor
from budget_exporter.evidence import LogSource, LogTarget
from budget_exporter.facts.boot import BootReport, Failure
from budget_exporter.facts.engine import Supervision
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.watcher import Follower, Health, Reading, Watcher

__all__ = ["Attendants"]

CLOSE = 0.3
"""Seconds the tasks have to end when the exporter stops."""


@dataclass(slots=True)
class _Attended:
    """The tasks of one engine."""

    follower: Follower | None = None
    follower_task: asyncio.Task[None] | None = None
    watcher: Watcher | None = None
    watcher_task: asyncio.Task[None] | None = None


class Attendants:
    """Start, restart and end the tasks as engines come, change and go."""

    def __init__(self, roots: Roots, off: frozenset[str], wake: Callable[[], None]) -> None:
        self._roots = roots
        self._off = off
        self._wake = wake
        self._attended: dict[str, _Attended] = {}
        self._logs: dict[str, LogSource] = {}
        self._supervisors: dict[str, Supervisor] = {}
        self._healths: dict[str, Health] = {}
        self._unparsed: dict[str, int] = {}
        self._unparsed_seen: dict[str, tuple[int, int]] = {}
        self._ended: set[asyncio.Task[None]] = set()

    def attend(self, engines: Iterable[Engine]) -> None:
        """See to it that each engine has the tasks it should have."""
        present = {engine.name: engine for engine in engines}
        for name in self._attended.keys() - present.keys():
            attended = self._attended.pop(name)
            self._end(attended.follower_task)
            self._end(attended.watcher_task)
        for engine in present.values():
            attended = self._attended.setdefault(engine.name, _Attended())
            self._attend_log(engine, attended)
            self._attend_unit(engine, attended)

    def _attend_log(self, engine: Engine, attended: _Attended) -> None:
        wanted = log_of(engine, self._off)
        follower = attended.follower
        if wanted is None:
            self._end(attended.follower_task)
            attended.follower = attended.follower_task = None
            return
        name, target = wanted
        if follower is not None and follower.source_name == name and _log_name(follower.target) == _log_name(target):
            return
        self._end(attended.follower_task)
        cursor, initial = _resume(engine, target)
        attended.follower = Follower(
            target, self._log(name), self._health(name), self._wake, cursor=cursor, initial=initial
        )
        attended.follower_task = asyncio.create_task(attended.follower.run(), name=f"log {engine.name}")

    def _attend_unit(self, engine: Engine, attended: _Attended) -> None:
        unit = engine.unit
        if attended.watcher is not None and attended.watcher.unit == unit:
            return
        self._end(attended.watcher_task)
        attended.watcher = attended.watcher_task = None
        if unit is None or "systemd" in self._off:
            return
        attended.watcher = Watcher(unit, self._supervisor("systemd"), self._health("systemd"), self._wake)
        attended.watcher_task = asyncio.create_task(attended.watcher.run(), name=f"unit {unit}")

    def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)

    def _log(self, name: str) -> LogSource:
        if name not in self._logs:
            self._logs[name] = sources.load(name, self._roots)
        return self._logs[name]

    def _supervisor(self, name: str) -> Supervisor:
        if name not in self._supervisors:
            self._supervisors[name] = sources.load(name, self._roots)
        return self._supervisors[name]

    def _health(self, name: str) -> Health:
        return self._healths.setdefault(name, Health(name, 1.0))

    def reading(self, name: str) -> Reading | None:
        """Return what the log of the engine ``name`` has said so far."""
        follower = self._attended[name].follower
        return follower.reading if follower else None

    def failures(self, name: str) -> list[Failure]:
        """Return the deaths found in the log since the last call."""
        follower = self._attended[name].follower
        return follower.take_failures() if follower else []

    def past_failure(self, name: str) -> Failure | None:
        """Return the newest death in a log that was there before us."""
        follower = self._attended[name].follower
        return follower.past_failure if follower else None

    def supervision(self, name: str) -> Supervision | None:
        """Return what the supervisor last said of the engine ``name``."""
        watcher = self._attended[name].watcher
        return watcher.latest if watcher else None

    def cursors(self) -> dict[str, tuple[str, str | None]]:
        """Return each engine's log and the place reached in it."""
        return {
            name: (_log_name(a.follower.target), a.follower.cursor)
            for name, a in self._attended.items()
            if a.follower is not None
        }

    def unparsed(self) -> Mapping[str, int]:
        """Return how many budget lines did not parse, by log source; boots that are over stay counted."""
        for name, attended in self._attended.items():
            if attended.follower is None:
                continue
            reading, source = attended.follower.reading, attended.follower.source_name
            boots, count = self._unparsed_seen.get(name, (reading.boots, 0))
            new = reading.report.unparsed - (count if boots == reading.boots else 0)
            self._unparsed[source] = self._unparsed.get(source, 0) + max(new, 0)
            self._unparsed_seen[name] = (reading.boots, reading.report.unparsed)
        return dict(self._unparsed)

    def health(self) -> list[SourceHealth]:
        """Return the health of the sources in use."""
        return [health.health() for health in self._healths.values()]

    async def close(self) -> None:
        """End all tasks; those that do not end in time are left to the end of the process."""
        for attended in self._attended.values():
            self._end(attended.follower_task)
            self._end(attended.watcher_task)
        if self._ended:
            await asyncio.wait(set(self._ended), timeout=CLOSE)


def log_of(engine: Engine, off: frozenset[str]) -> tuple[str, LogTarget] | None:
    """
    Return the log source of ``engine`` and its target, None where it has none or it is switched off.

    The configuration decides; without a word in it, an engine with a unit or a container is read from the journal.
    """
    configured = engine.config.log if engine.config else None
    sighting = engine.last.sighting if engine.last else None
    if configured is not None and configured.file is not None:
        return ("file", LogTarget(engine.name, path=configured.file)) if "file" not in off else None
    if (configured is not None and configured.none) or "journal" in off:
        return None
    unit, container = engine.unit, sighting.container if sighting else None
    if unit is None and container is None:
        return None
    return "journal", LogTarget(engine.name, unit=unit, container=container, since=engine.started_at)


def _log_name(target: LogTarget) -> str:
    return target.path or f"unit={target.unit or ''} container={target.container or ''}"


def _resume(engine: Engine, target: LogTarget) -> tuple[str | None, BootReport | None]:
    """Return where to go on in the log and what was known there, if the state file knows this log."""
    memory = engine.remembered
    if memory is None or memory.log != _log_name(target):
        return None, None
    return memory.cursor, memory.report
