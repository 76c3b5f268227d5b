"""Series of the engine's own words for the terms the model has."""

from __future__ import annotations

from budget_exporter.facts.boot import Printed, RankFacts
from budget_exporter.facts.ledger import Component
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.families import Families
from budget_exporter.publish.ranks import facts_of, ranks_of

__all__ = ["add", "charges_of", "kv_pool_of"]


def add(out: Families, state: EngineState) -> None:
    """Add what the engine printed, per rank, and its free memory at the first snapshot."""
    engine, report = state.name, state.report
    for rank, free in state.free_at_init.items():
        out.add("budget_engine_free_at_init_bytes", free.bytes, engine=engine, rank=rank, source=free.source)
    if report is None:
        return
    out.add("budget_reported_kv_pool_tokens", report.kv_tokens, engine=engine)
    out.add("budget_reported_kv_max_concurrency_ratio", report.kv_concurrency, engine=engine)
    for rank in ranks_of(state):
        facts = facts_of(state, rank)
        if facts is not None:
            _rank(out, engine, rank, facts, charged=report.graph_charge_applied)


def _rank(out: Families, engine: str, rank: str, facts: RankFacts, *, charged: bool | None) -> None:
    for component, printed in charges_of(facts, charged=charged).items():
        out.add("budget_reported_charge_bytes", printed.bytes, engine=engine, rank=rank, component=component)
    out.add("budget_reported_kv_pool_bytes", _bytes(kv_pool_of(facts)), engine=engine, rank=rank)
    out.add("budget_reported_graph_capture_bytes", _bytes(facts.graph_capture), engine=engine, rank=rank)
    out.add("budget_engine_graph_estimate_bytes", _bytes(facts.graph_estimate), engine=engine, rank=rank)
    out.add("budget_engine_graph_charge_applied", charged, engine=engine, rank=rank)
    if facts.plan is not None:
        out.add("budget_reported_arena_bytes", _bytes(facts.plan.arena), engine=engine, rank=rank)
        out.add("budget_reported_arena_slots", facts.plan.slots, engine=engine, rank=rank)


def charges_of(facts: RankFacts, *, charged: bool | None) -> dict[Component, Printed]:
    """
    Return the engine's own figures for its charges, by component; rows it did not print are absent.

    A plan block replaces the plain lines, whose figures mean something else there: what vLLM calls the weights holds
    the arena too. Gaudi's share is of what is free after loading: what was loaded is no charge there. A graph estimate
    is a charge only where it was charged.
    """
    rows: dict[Component, Printed | None]
    if facts.plan is not None:
        rows = {
            "weights": facts.plan.non_expert,
            "kv_reserve": facts.plan.kv_reserve,
            "cuda_graphs": facts.plan.cuda_graphs,
            "runtime_overhead": facts.plan.runtime_overhead,
        }
    elif facts.free_after_load is not None:
        rows = {"graph_reserve": facts.graph_reserve, "dummy_block": facts.dummy_block}
    else:
        rows = {
            "weights": facts.weights,
            # With all that was consumed as one figure (vLLM 0.27) the peak is charged as a transient headroom.
            "headroom" if facts.consumed is not None else "activation": facts.activation,
            "non_torch": facts.non_torch,
            "consumed": facts.consumed,
            "cuda_graphs": facts.graph_estimate if charged else None,
            "multimodal": facts.multimodal,
        }
    return {component: printed for component, printed in rows.items() if printed is not None}


def kv_pool_of(facts: RankFacts) -> Printed | None:
    """Return the KV pool the rank printed: what it found available, else what was set aside by an explicit size."""
    return facts.kv_available if facts.kv_available is not None else facts.kv_reserved


def _bytes(printed: Printed | None) -> int | None:
    return None if printed is None else printed.bytes
