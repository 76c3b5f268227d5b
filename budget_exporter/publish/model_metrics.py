"""Series of the model: what the law says, the limits that go with it, and what verdicts draw from both."""

from __future__ import annotations

from collections import Counter

from budget_exporter.facts.ledger import Ledger, RankLedger, Term
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.families import Families

__all__ = ["add", "arena_of", "utilization_of"]


def add(out: Families, state: EngineState) -> None:
    """Add the series of the engine's ledger, floors, contract and drift."""
    engine = state.name
    out.add("budget_law_margin_floor_bytes", state.floors.critical, engine=engine, severity="critical")
    out.add("budget_law_margin_floor_bytes", state.floors.warning, engine=engine, severity="warning")
    out.add("budget_kv_contract_tokens", state.verdict.contract_tokens, engine=engine)
    out.add("budget_engine_graph_charge_suggested_bytes", state.verdict.graph_charge_suggested, engine=engine)
    for rank, verdict in state.verdict.ranks.items():
        out.add("budget_estimator_gap_bytes", verdict.estimator_gap, engine=engine, rank=rank)
        out.add("budget_graph_drift_bytes", verdict.drift, engine=engine, rank=rank)
    if state.ledger is not None:
        _ledger(out, engine, state.ledger)
        for rank, ledger in state.ledger.ranks.items():
            _rank(out, engine, rank, ledger)
            share = utilization_of(ledger, state.ledger.utilization_ratio)
            out.add("budget_engine_memory_utilization_ratio", share, engine=engine, rank=rank)


def _ledger(out: Families, engine: str, ledger: Ledger) -> None:
    assumed = "true" if ledger.assumed else "false"
    out.add("budget_law_info", 1, engine=engine, law=ledger.law, version=ledger.version, assumed=assumed)
    out.add("budget_model_kv_pool_tokens", ledger.kv_pool_tokens, engine=engine)
    out.add("budget_kv_min_tokens", ledger.kv_min_tokens, engine=engine)
    out.add("budget_neuron_kv_minimum_bytes", ledger.kv_min_bytes, engine=engine)
    for source, price in ledger.kv_bytes_per_token.items():
        out.add("budget_kv_bytes_per_token", price, engine=engine, source=source)
    for component, size in _by_name(ledger.host).items():
        out.add("budget_model_host_bytes", size, engine=engine, component=component)


def _rank(out: Families, engine: str, rank: str, ledger: RankLedger) -> None:
    out.add("budget_model_requested_bytes", ledger.requested, engine=engine, rank=rank)
    for component, size in _by_name(ledger.charges).items():
        out.add("budget_model_charge_bytes", size, engine=engine, rank=rank, component=component)
    for term in ledger.charges:
        out.add("budget_model_charge_info", 1, engine=engine, rank=rank, component=term.name, source=term.source)
    # Not the pool of the partition: where the flags override its blocks, its bytes are asked for and not known.
    arena, kv_pool = arena_of(ledger), ledger.kv_pool
    residents = _by_name(ledger.within).get("resident_experts")
    out.add("budget_model_resident_experts_bytes", residents, engine=engine, rank=rank)
    out.add("budget_model_kv_pool_bytes", None if kv_pool is None else kv_pool.bytes, engine=engine, rank=rank)
    out.add("budget_model_arena_bytes", None if arena is None else arena.bytes, engine=engine, rank=rank)
    out.add("budget_neuron_kv_cap_bytes", ledger.kv_cap, engine=engine, rank=rank)
    out.add("budget_model_arena_slots", ledger.arena_slots, engine=engine, rank=rank)
    out.add("budget_model_margin_bytes", ledger.margin, engine=engine, rank=rank)
    limit = None if ledger.limit is None else ledger.limit.ratio
    out.add("budget_law_utilization_limit_ratio", limit, engine=engine, rank=rank)


def _by_name(terms: tuple[Term, ...]) -> Counter[str]:
    """Sum the terms of one name, so that the parts go on summing to the whole."""
    sums: Counter[str] = Counter()
    for term in terms:
        sums[term.name] += term.bytes
    return sums


def arena_of(ledger: RankLedger) -> Term | None:
    """Return the expert arena, which is what the charges leave under the expert-offload law."""
    return ledger.pool if ledger.pool is not None and ledger.pool.name == "arena" else None


def utilization_of(ledger: RankLedger, asked: float | None) -> float | None:
    """
    Return the share of the device the flags request, explicit KV sizes included.

    Where the request is ``asked`` (the flag's ratio) of the size to the byte, that ratio is the share: the quotient of
    two whole numbers would differ from a limit of the same ratio in the tenth digit.
    """
    if ledger.size <= 0:
        return None
    if asked is not None and abs(asked * ledger.size - ledger.requested) <= 1:
        return asked
    return ledger.requested / ledger.size
