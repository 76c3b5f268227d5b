"""What the engine's own endpoint says, in words."""

from __future__ import annotations

from budget_exporter.facts.endpoint import EndpointState, HealthState
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.page.figures import age, count, utc

__all__ = ["health", "use"]

_MEANING: dict[HealthState, str] = {
    "ok": "ok",
    "unavailable": "unavailable: the engine's core is dead, its server still answers",
    "refused": "refused: nobody listens (yet, or any more)",
    "timeout": "timeout: no answer in time, it hangs or is overloaded",
    "unknown": "unknown",
}


def health(state: EngineState, now: float) -> str | None:
    """Return how the engine's endpoint is and since when; ``now`` is the Unix time ages are counted to."""
    endpoint = state.endpoint
    if endpoint is None:
        return None
    why = f": {endpoint.why}" if endpoint.why else ""
    since = f", for {age(now - endpoint.since)} (since {utc(endpoint.since)})" if endpoint.since is not None else ""
    return _MEANING[endpoint.health] + why + since


def use(state: EngineState, now: float) -> str | None:
    """Return how full the KV pool is and with how many requests."""
    endpoint = state.endpoint or EndpointState()
    facts = endpoint.facts
    if facts is None or endpoint.told_at is None:
        return None
    parts = [
        "" if facts.kv_usage is None else f"{facts.kv_usage:.1%} of the pool",
        "" if facts.running is None else f"{count(facts.running)} running",
        "" if facts.waiting is None else f"{count(facts.waiting)} waiting",
    ]
    text = ", ".join(part for part in parts if part)
    return f"{text} ({age(now - endpoint.told_at)} ago)" if text else None
