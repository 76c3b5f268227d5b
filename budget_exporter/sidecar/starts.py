"""How engines would start next time: looked at in a thread of its own, told to each running engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from budget_exporter import sources
from budget_exporter.engines.start import Start, Watched
from budget_exporter.facts.engine import Pending, ProcessKey
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.runner import Runner

__all__ = ["Starts"]

NAME = "pending"
JOIN = 0.2
"""Seconds the thread has to end when the exporter stops; one that hangs is left alone."""
Found = Mapping[ProcessKey, Pending]


class _Source(Protocol):
    interval: float

    def look(self, engines: Iterable[Watched]) -> tuple[Found, list[str]]: ...


class Starts:
    """The one source of what is pending; where it is off there is no thread."""

    def __init__(
        self, roots: Roots, off: frozenset[str], interval: float | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._watched: tuple[Watched, ...] = ()
        self._found: Found = {}
        self._runner: Runner[Found, Found] | None = None
        if NAME not in off:
            source: _Source = sources.load(NAME, roots, interval)
            self._runner = Runner(
                NAME, source.interval, lambda: source.look(self._watched), lambda _, new: new, clock=clock
            )

    def start(self) -> None:
        """Start the thread."""
        if self._runner is not None:
            self._runner.start()

    def once(self) -> None:
        """Look once, in the caller's thread; not together with ``start``."""
        if self._runner is not None:
            self._runner.once()

    def stop(self) -> None:
        """End it, unless it hangs."""
        if self._runner is not None:
            self._runner.stop()
            self._runner.join(JOIN)

    def attend(self, engines: Iterable[Engine]) -> None:
        """Give each running engine what was last found of its main process, and ask for all that run now."""
        if self._runner is None:
            return
        found = self._runner.take()
        self._found = self._found if found is None else found
        everyone = list(engines)
        for engine in everyone:
            # Of another process, and of files nobody has looked at lately, nothing is known.
            main = engine.main if engine.running is not None and self._runner.fresh else None
            engine.pending = None if main is None else self._found.get(main)
        self._watched = tuple(watched for engine in everyone if (watched := _watched(engine)) is not None)

    def health(self) -> list[SourceHealth]:
        """Return the health of the source, none where it is off."""
        return [] if self._runner is None else [self._runner.health()]


def _watched(engine: Engine) -> Watched | None:
    start = _start(engine)
    if start is None or engine.running is None:
        return None
    return Watched(engine.name, engine.running.sighting, engine.running.shape.version, start)


def _start(engine: Engine) -> Start | None:
    """Return where it is written how the engine starts: as configured, else in its unit."""
    configured = engine.config.pending if engine.config is not None else None
    if configured is not None:
        ((kind, name),) = configured.given
        return Start(kind, name, configured.service or "", configured=True)
    return Start("unit", engine.unit) if engine.unit is not None else None
