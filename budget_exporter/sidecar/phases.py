"""The phase an engine is in, and since when."""

from __future__ import annotations

from budget_exporter.facts.boot import Phase
from budget_exporter.sidecar.fleet import Engine

__all__ = ["Phases"]


class Phases:
    """Remember when each engine's phase began."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Phase, float]] = {}

    def of(self, engine: Engine, now: float) -> tuple[Phase, float | None]:
        """
        Return the phase of ``engine`` and the Unix time it began.

        It is unknown where nobody has looked lately, and for a running engine without a line of its log, or whose log
        cannot be heard now. An engine that is gone is stopped, whatever its last line was.
        """
        phase, at = self._now(engine)
        old = self._since.get(engine.name)
        if old is None or old[0] != phase:
            self._since[engine.name] = (phase, at if at is not None else now)
        return self._since[engine.name]

    @staticmethod
    def _now(engine: Engine) -> tuple[Phase, float | None]:
        if engine.up is None:
            return "unknown", None
        if not engine.up:
            return ("stopped", engine.ended_at) if engine.main is not None else ("unknown", None)
        if engine.report is not None and engine.report.phase != "unknown" and engine.heard:
            return engine.report.phase, engine.report.phase_at
        return "unknown", engine.started_at

    def forget(self, names: set[str]) -> None:
        """Forget the engines that are not among ``names``."""
        self._since = {name: entry for name, entry in self._since.items() if name in names}
