"""Findings that only an engine's past can tell."""

from __future__ import annotations

from budget_exporter.facts.boot import Failure
from budget_exporter.facts.history import Creep, Past
from budget_exporter.facts.verdict import Finding
from budget_exporter.units import gib_text
from budget_exporter.verdicts import boots
from budget_exporter.verdicts.crash_loop import loop_said
from budget_exporter.verdicts.logic import any_known

__all__ = ["of_past", "said_of_past", "sentences_of_past"]


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
        # Only ever a reason more: figures may find the same without it.
        "knife_edge": True if past.first_request is not None else None,
    }
    return {finding: answer for finding, answer in answers.items() if answer is not None}


def _leaks(trend: Creep | None) -> bool:
    """Return whether use creeps and load does not rise; where the engine does not tell its load, use alone decides."""
    return trend is not None and trend.load_rises is not True


def said_of_past(past: Past | None) -> dict[Finding, str]:
    """Return what there is to say of findings of ``past`` beyond what each of them means."""
    return {} if past is None or past.loop is None else {"crash_loop": loop_said(past.loop)}


def sentences_of_past(past: Past | None) -> tuple[str, ...]:
    """Return the sentence for a shape that was seen to boot and to die of its first request."""
    if past is None or past.first_request is None:
        return ()
    sizes = _sizes(past.first_request)
    return (f"with these flags it booted and died of its first request{sizes}",)


def _sizes(failure: Failure) -> str:
    tried = "" if failure.tried is None else f"tried {gib_text(failure.tried.bytes)}"
    free = "" if failure.free is None else f"{gib_text(failure.free.bytes)} were free"
    told = ", ".join(text for text in (tried, free) if text)
    return f": {told}" if told else ""
