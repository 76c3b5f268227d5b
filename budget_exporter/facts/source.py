"""Health of a source, kept apart from its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How the runs of one source went; ``error`` is the latest failure's sentence, empty when it succeeded."""

    name: str
    interval: float
    """Seconds between two runs."""
    success: bool
    duration: float
    """Seconds the latest finished run took."""
    last_success: float | None
    """Unix time; None before the first success."""
    runs: int
    failures: int
    error: str = ""
    settled: bool = False
    """True once the first run ended or timed out: the source no longer holds back readiness."""
