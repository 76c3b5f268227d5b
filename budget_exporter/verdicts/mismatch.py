"""
Where the law and the engine's own words part.

Only figures of different origin are compared: a term that the law took from the log would agree with the log by itself.
What flags, environment and registry give is held against what was printed, and what printed charges leave against the
printed rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from budget_exporter.facts.boot import Plan, Printed, RankFacts
from budget_exporter.facts.ledger import Ledger, RankLedger, Term
from budget_exporter.units import GIB

__all__ = ["FITTED", "Comparison", "comparisons", "mismatch", "of_tokens"]

FITTED = GIB // 100
"""Bytes within which a fitted constant must land: sources state them with two decimals of GiB."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure from both sides, in bytes, and how far apart they may be."""

    name: str
    model: int
    reported: int
    tolerance: int

    @property
    def apart(self) -> bool:
        """Return whether the two differ by more than rounding and fit explain."""
        return abs(self.model - self.reported) > self.tolerance


def mismatch(ledger: RankLedger, facts: RankFacts) -> bool | None:
    """Return whether any comparison of the rank is apart, None where nothing can be compared."""
    apart = [comparison.apart for comparison in comparisons(ledger, facts)]
    return any(apart) if apart else None


def of_tokens(ledger: Ledger | None, reported: int | None) -> bool | None:
    """
    Return whether the KV pool's tokens by the model's geometry part from those the engine printed.

    None where one of them is unknown, and where the price came from elsewhere: a registry's is fitted to a reserve.
    """
    if ledger is None or ledger.kv_pool_tokens is None or ledger.kv_pool_tokens_source is None or reported is None:
        return None
    return Comparison("kv_tokens", ledger.kv_pool_tokens, reported, ledger.kv_pool_tokens_rounding).apart


def comparisons(ledger: RankLedger, facts: RankFacts) -> Iterator[Comparison]:
    """Yield what can be compared on one rank."""
    plan = facts.plan or Plan()
    model = {term.name: term for term in ledger.registry}
    # Where the size of the mamba pages is unknown the registry holds them with the weights, the engine in its reserve.
    yield from _fitted(
        "weights and kv_reserve", [model.get("weights"), model.get("kv_reserve")], [plan.non_expert, plan.kv_reserve]
    )
    yield from _fitted("cuda_graphs", [model.get("cuda_graphs")], [plan.cuda_graphs])
    yield from _fitted("runtime_overhead", [model.get("runtime_overhead")], [plan.runtime_overhead])
    yield from _fitted("arena", [model.get("arena")], [plan.arena])
    yield from _pool(ledger, facts, plan)
    explicit = ledger.kv_pool if ledger.kv_pool is not None and ledger.kv_pool.source == "flag" else None
    if explicit is not None:
        # What is reserved for multimodal decoding comes out of the size that was set aside.
        yield from _exact("kv_pool", _whole(explicit, ledger), facts.kv_reserved)
    if plan.budget is not None:
        yield Comparison("requested", ledger.requested, plan.budget.bytes, plan.budget.rounding)
    elif facts.requested is not None and explicit is None and facts.kv_reserved is None:
        tolerance = facts.requested.rounding + ledger.requested_rounding
        yield Comparison("requested", ledger.requested, facts.requested.bytes, tolerance)
    if ledger.kv_cap is not None and facts.kv_cap is not None:
        yield Comparison("kv_cap", ledger.kv_cap, facts.kv_cap.bytes, facts.kv_cap.rounding)


def _pool(ledger: RankLedger, facts: RankFacts, plan: Plan) -> Iterator[Comparison]:
    pool = ledger.pool
    if pool is not None and pool.name == "arena":
        yield from _exact("arena", pool, plan.arena)
    elif pool is not None and pool.source != "flag":
        yield from _exact("kv_pool", pool, facts.kv_available)


def _whole(pool: Term, ledger: RankLedger) -> Term:
    taken = sum(term.bytes for term in ledger.charges if term.name == "multimodal")
    return replace(pool, bytes=pool.bytes + taken)


def _exact(name: str, term: Term, figure: Printed | None) -> Iterator[Comparison]:
    if figure is not None:
        yield Comparison(name, term.bytes, figure.bytes, term.rounding + figure.rounding)


def _fitted(name: str, terms: list[Term | None], figures: list[Printed | None]) -> Iterator[Comparison]:
    model = [term.bytes for term in terms if term is not None]
    reported = [figure for figure in figures if figure is not None]
    if len(model) == len(terms) and len(reported) == len(figures):
        tolerance = FITTED + sum(figure.rounding for figure in reported)
        yield Comparison(name, sum(model), sum(figure.bytes for figure in reported), tolerance)
