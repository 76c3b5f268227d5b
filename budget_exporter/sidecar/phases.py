"""The phase an engine is in, and since when."""

from __future__ import annotations

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.sidecar.fleet import Engine

__all__ = ["Phases"]

_ANSWERING: frozenset[Phase] = frozenset({"warming_up", "serving", "sleeping", "unknown"})
"""Phases in which a core can be dead behind its server: before them nobody listens yet, after them it is known."""
_ENDS: frozenset[Phase] = frozenset({"failing", "stopped", "unknown"})


class Phases:
    """Remember when each engine's phase began."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Phase, ProcessKey | None, float]] = {}

    def of(self, engine: Engine, now: float) -> tuple[Phase, float | None]:
        """
        Return the phase of ``engine`` and the Unix time it began.

        Without a line of its log, or while the log cannot be read, the phase of a running engine is unknown: a boot
        that nobody hears the end of must not look like one that goes on. An engine that is gone is stopped, whatever
        its last line was; where nobody has looked lately its phase is unknown too.

        Where no log tells, the engine's endpoint may: one that is well serves (or sleeps). Since when may not be known
        then. One whose core is dead behind a server that still answers is failing, though its log be silent on it.
        """
        told = self._endpoint(engine)
        if told is not None:
            self._since[engine.name] = (told[0], engine.main, now)
            _keep(engine, told[0])
            return told
        phase, at = self._now(engine)
        _keep(engine, phase)
        known, main, since = self._since.get(engine.name, (None, None, now))
        if known != phase or main != engine.main:
            since = now if at is None else at
        self._since[engine.name] = (phase, engine.main, since)
        return phase, since

    @staticmethod
    def _now(engine: Engine) -> tuple[Phase, float | None]:
        if engine.up is None:
            return "unknown", None
        if engine.running is None:
            return "stopped" if engine.main is not None else "unknown", engine.ended_at
        if engine.heard and engine.report is not None and engine.report.phase != "unknown":
            return engine.report.phase, engine.report.phase_at
        return "unknown", engine.started_at

    @staticmethod
    def _endpoint(engine: Engine) -> tuple[Phase, float | None] | None:
        """Return the phase by the endpoint, None where that tells none or the log knows better."""
        endpoint = engine.endpoint
        if engine.running is None or endpoint is None:
            return None
        phase = Phases._now(engine)[0]
        if endpoint.health == "unavailable" and phase in _ANSWERING:
            return "failing", endpoint.since
        if endpoint.health != "ok" or phase != "unknown":
            return None
        if endpoint.facts is not None and endpoint.facts.asleep:
            # Health does not tell when it fell asleep.
            return "sleeping", None
        return "serving", endpoint.since

    def forget(self, names: set[str]) -> None:
        """Forget the engines that are not among ``names``."""
        self._since = {name: entry for name, entry in self._since.items() if name in names}


def _keep(engine: Engine, phase: Phase) -> None:
    """Keep for the day of its death what was known of the present process."""
    if engine.running is not None:
        engine.shown = phase
        engine.worked = engine.worked if phase in _ENDS else phase
