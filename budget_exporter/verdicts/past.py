"""Findings that only an engine's past can tell."""

from __future__ import annotations

from budget_exporter.facts.history import Creep, Past
from budget_exporter.facts.verdict import Finding
from budget_exporter.verdicts import boots
from budget_exporter.verdicts.logic import any_known

__all__ = ["of_past"]


def of_past(past: Past | None) -> dict[Finding, bool]:
    """Return the findings of ``past`` that could be evaluated; none of them without one."""
    if past is None:
        return {}
    answers: dict[Finding, bool | None] = {
        "leak": any_known(_leaks(trend) for trend in past.trends.values()),
        "crash_loop": past.crash_loop,
        "kv_changed_since_last_boot": boots.kv_changed(past.boots),
        "free_at_init_falling": boots.free_falling(past.boots),
        "zombie_memory": past.leftover,
    }
    return {finding: answer for finding, answer in answers.items() if answer is not None}


def _leaks(trend: Creep | None) -> bool:
    """Return whether use creeps and load does not rise; where the engine does not tell its load, use alone decides."""
    return trend is not None and trend.load_rises is not True
