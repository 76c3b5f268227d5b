"""What the supervisor says of an engine, in words: who ended it, and whether it comes back by itself."""

from __future__ import annotations

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.page.figures import age

__all__ = ["booting", "fate"]

_BOOT: tuple[Phase, ...] = ("starting", "loading", "profiling", "allocating_kv", "capturing", "warming_up")
_ENDED = {
    "oom-kill": "it was killed for want of host memory",
    "watchdog": "it missed the watchdog's deadline",
    "core-dump": "it crashed and left a core dump",
}


def fate(state: EngineState) -> str:
    """Return how the engine ended and what becomes of it, as far as its supervisor tells; a sentence or nothing."""
    word = state.supervision
    if word is None or word.state in ("active", "activating", "unknown"):
        return ""
    if word.state == "auto_restart":
        return _sentence(_ENDED.get(word.result), f"{word.supervisor} is about to start it again")
    if word.result == "start-limit-hit":
        return _sentence(None, f"{word.supervisor} has given up starting it (start limit): it stays down until started")
    if word.asked:
        return _sentence(None, "it was stopped on request")
    if word.state == "failed":
        return _sentence(_ENDED.get(word.result), f"{word.supervisor} does not start it again")
    return _sentence(None, "it ended by itself with exit code 0") if word.exit_code == 0 and word.asked is False else ""


def booting(state: EngineState, now: float) -> str | None:
    """Return for how long the engine has been booting and in its present phase, None where it does not boot."""
    if not state.up or state.sighting is None or state.phase not in _BOOT:
        return None
    whole = f"for {age(now - state.sighting.started_at)}"
    return whole if state.phase_since is None else f"{whole}, {state.phase} for {age(now - state.phase_since)}"


def _sentence(*parts: str | None) -> str:
    text = "; ".join(part for part in parts if part)
    return f"{text[:1].upper()}{text[1:]}."
