"""Which log each engine is read from; a log that two running engines write to is nobody's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from budget_exporter.config import LogConfig
from budget_exporter.evidence import LogTarget
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.sidecar.fleet import Engine

__all__ = ["Log", "logs_of"]

_FILES = frozenset({"k8s-file", "json-file", "local"})
"""Log drivers of podman and docker that write to a file of the runtime's and to nothing else."""
LINGER = 60.0
"""Seconds after which the log of an engine that is gone, and that nobody configured, is no longer followed."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log source and what to ask it for."""

    source: str
    target: LogTarget

    @property
    def name(self) -> str:
        """Return which log it is: the file, the unit's journal, the container's, or the pod's."""
        target = self.target
        if self.source == "pods":
            return f"pod={target.pod or target.container_id}"
        return target.path or (f"unit={target.unit}" if target.unit else f"container={target.container}")

    def same(self, other: Log | None) -> bool:
        """Return whether following ``other`` is following this one, whenever its engine started."""
        return other is not None and (self.source, _place(self.target)) == (other.source, _place(other.target))


def logs_of(engines: Iterable[Engine], off: frozenset[str], now: float) -> tuple[dict[str, Log], list[str]]:
    """
    Return the log of each engine, by name, and the logs that are nobody's because several running engines share them.

    ``off`` are the sources that are switched off.
    """
    sharing: dict[str, list[tuple[Engine, Log]]] = {}
    for engine in engines:
        log = _log_of(engine, off)
        if log is not None and not _over(engine, now):
            sharing.setdefault(log.name, []).append((engine, log))
    owned = {name: _owner(among) for name, among in sharing.items()}
    logs = {engine.name: log for own in owned.values() if own is not None for engine, log in [own]}
    return logs, sorted(name for name, own in owned.items() if own is None)


def _owner(among: Sequence[tuple[Engine, Log]]) -> tuple[Engine, Log] | None:
    """Return the engine whose log it is: the one that runs, or that ran last; none where several run."""
    running = [each for each in among if each[0].running is not None]
    if len(running) > 1:
        return None
    return running[0] if running else max(among, key=lambda each: each[0].last_seen or 0.0)


def _over(engine: Engine, now: float) -> bool:
    return engine.config is None and engine.ended_at is not None and now - engine.ended_at > LINGER


def _log_of(engine: Engine, off: frozenset[str]) -> Log | None:
    """
    Return the log of ``engine``, None where it has none or its source is switched off.

    The configuration decides; without a word in it, an engine with a unit is read from the journal, one in a pod from
    the kubelet's files, and one in a container from the daemon that has told of it, else from the journal. Of a
    container under a unit the journal has nothing where its runtime writes to a file of its own.
    """
    configured = engine.config.log if engine.config else None
    log = _configured(engine, configured) if configured is not None else _automatic(engine, off)
    return None if log is None or log.source in off else log


def _configured(engine: Engine, log: LogConfig) -> Log | None:
    if log.file is not None:
        return Log("file", LogTarget(engine.name, path=log.file))
    if log.pods is not None:
        return Log("pods", LogTarget(engine.name, pod=log.pods))
    if log.container is not None:
        return Log("container_logs", _contained(engine, log.container))
    return _journal(engine) if log.journal else None


def _automatic(engine: Engine, off: frozenset[str]) -> Log | None:
    sighting = engine.last.sighting if engine.last else None
    if engine.unit is None and sighting is not None:
        if sighting.supervisor == "kubernetes" and sighting.container_id is not None and "pods" not in off:
            return Log("pods", LogTarget(engine.name, container_id=sighting.container_id))
        if _told(sighting, off):
            return Log("container_logs", _contained(engine, str(sighting.container)))
    if sighting is not None and sighting.log_driver in _FILES and _told(sighting, off):
        return Log("container_logs", _contained(engine, str(sighting.container)))
    return _journal(engine)


def _told(sighting: EngineSighting, off: frozenset[str]) -> bool:
    """Return whether a daemon has told of the container, and may be asked for its log."""
    known = sighting.container is not None and sighting.container_socket is not None
    return known and "container_logs" not in off


def _contained(engine: Engine, container: str) -> LogTarget:
    """Return the target of a container; where a daemon has told of it, that one is asked."""
    sighting = engine.last.sighting if engine.last else None
    socket = sighting.container_socket if sighting is not None and sighting.container == container else None
    return LogTarget(engine.name, container=container, socket=socket, since=engine.started_at)


def _journal(engine: Engine) -> Log | None:
    unit, container = engine.unit, engine.last.sighting.container if engine.last else None
    if unit is None and container is None:
        return None
    return Log("journal", LogTarget(engine.name, unit=unit, container=container, since=engine.started_at))


def _place(target: LogTarget) -> tuple[str | None, ...]:
    return target.path, target.unit, target.container, target.pod, None if target.container else target.container_id
