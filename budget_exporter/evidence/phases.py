"""Which cause an allocation that fails in a phase has, and which phases come before which."""

from __future__ import annotations

from collections.abc import Mapping

from budget_exporter.facts.boot import Cause, Phase

__all__ = ["CAUSE_OF_PHASE", "earlier"]

CAUSE_OF_PHASE: Mapping[Phase, Cause] = {
    "loading": "weights_oom",
    "profiling": "profile_oom",
    "allocating_kv": "kv_alloc_oom",
    "capturing": "graph_capture_oom",
    "warming_up": "warmup_oom",
    "serving": "runtime_oom",
    "sleeping": "wakeup_oom",
}
"""What an allocation that fails in a phase is called; a phase that is not here does not tell the cause."""
_ORDER: tuple[Phase, ...] = ("starting", "loading", "profiling", "allocating_kv", "capturing", "warming_up", "serving")


def earlier(one: Phase, other: Phase) -> bool:
    """Return whether a boot passes ``one`` before ``other``; False where one of them is no step of a boot."""
    return one in _ORDER and other in _ORDER and _ORDER.index(one) < _ORDER.index(other)
