"""Series of one rank's own memory: what its processes hold, and what its runtime says from inside."""

from __future__ import annotations

from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.families import Families

__all__ = ["add"]


def add(out: Families, state: EngineState) -> None:
    """Add what each rank of ``state`` holds; a rank whose processes nobody lists has no series."""
    for rank, held in state.rank_memory.items():
        labels = {"engine": state.name, "rank": rank}
        out.add("budget_rank_memory_used_bytes", held.used, **labels)
        out.add("budget_rank_memory_used_high_water_bytes", held.used_high_water, **labels)
        out.add("budget_rank_gtt_used_bytes", held.gtt_used, **labels)
    for rank, told in state.runtime.items():
        labels = {"engine": state.name, "rank": rank}
        out.add("budget_neuron_vnc_memory_used_bytes", told.used, **labels)
        out.add("budget_neuron_vnc_memory_limit_bytes", told.limit, **labels)
