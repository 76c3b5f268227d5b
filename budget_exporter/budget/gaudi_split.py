"""
How Gaudi's worker divides what is free after loading, in whole bytes that close.

The engine computes in floats and hands on whole bytes for KV alone; here the graph reserve takes what is left of the
request, at most a byte off the float.
"""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.budget.checks import LARGEST_SIZE, number
from budget_exporter.budget.gaudi_settings import RESERVE, Reserve
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import Printed, RankFacts
from budget_exporter.facts.ledger import Term
from budget_exporter.units import gib_text

__all__ = ["Split", "divide", "gdn_factor", "mamba2_factor", "scaled"]

FACTOR_ROUNDING = 0.0005
"""The engine prints a factor with three decimals."""


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's division: the request, its charges, what they leave, and what to say of it."""

    free: Printed
    requested: int
    rounding: int
    graphs: Term | None
    """None under ``--enforce-eager`` and with a reserve of 0."""
    dummy: Term | None
    pool: Term
    notes: tuple[str, ...]

    @property
    def charges(self) -> tuple[Term, ...]:
        """Return the charges in the order they are shown."""
        return tuple(term for term in (self.graphs, self.dummy) if term is not None)


def divide(
    free: Printed, utilization: float, share: Reserve, dummy: Term | None, facts: RankFacts, *, of_free: bool = False
) -> Split:
    """
    Return the division of ``free`` bytes.

    ``of_free`` is 1.16, which multiplies in another order and prints the reserve as a share of ``free``. Where the
    engine printed a reserve that flags and environment do not give, its word counts and a note says so. Raise LawError
    for free memory that is not above 0 and a dummy block that is negative. Source: the worker's own expressions, see
    ``laws/gaudi.py``.
    """
    number("free_after_load", free.bytes, above=0, most=LARGEST_SIZE)
    number("dummy_block", None if dummy is None else dummy.bytes, least=0, most=LARGEST_SIZE)
    headroom = 1 - share.ratio
    usable = free.bytes * utilization
    kv = free.bytes * headroom * utilization if of_free else usable * headroom
    requested, notes = int(usable), []
    taken = 0 if dummy is None else dummy.bytes
    graphs = requested - taken - int(kv - taken)
    rounding = round(free.rounding * utilization * share.ratio)
    shown, coarse = (
        (round(free.bytes * share.ratio), round(free.rounding * share.ratio)) if of_free else (graphs, rounding)
    )
    if of_free and share.ratio:
        notes.append(f"the engine prints {gib_text(shown)} reserved for graphs, a share of what is free")
    term = Term("graph_reserve", graphs, share.source, RESERVE, share.note, rounding) if share.ratio else None
    seen = facts.graph_reserve
    if seen is not None and abs(seen.bytes - shown) > seen.rounding + coarse:
        notes.append(f"the engine keeps {gib_text(seen.bytes)} back for graphs, its settings give {gib_text(shown)}")
        if not of_free:
            term = Term("graph_reserve", seen.bytes, "log", RESERVE, rounding=seen.rounding)
    charges = [each for each in (term, dummy) if each is not None]
    left = requested - sum(each.bytes for each in charges)
    if left <= 0:
        notes.append("nothing is left for KV: the engine does not start")
    loose = round(free.rounding * utilization) + sum(each.rounding for each in charges if each.source == "log")
    loose = loose if term is not None and term.source == "log" else loose - rounding
    pool = Term("kv_pool", left, "log", "--gpu-memory-utilization", "what the charges leave", loose)
    return Split(free, requested, round(free.rounding * utilization), term, dummy, pool, tuple(notes))


def gdn_factor(padded_page: int, attention: int, recurrent: int, *, compact: bool = False) -> float:
    """
    Return by how much the KV memory of a model with gated delta net and attention layers is scaled down.

    ``padded_page`` over the real bytes of an attention page and a recurrent state, 1 where they are not more. All in
    bytes. ``compact`` is VLLM_COMPACT_GDN, with which the states are a fixed few and nothing is scaled. Source:
    vllm-gaudi 0.18.1 to 0.27.0rc0 ``v1/worker/hpu_worker.py``.
    """
    _positive(padded_page=padded_page, attention=attention, recurrent=recurrent)
    return 1.0 if compact else min(1.0, padded_page / (attention + recurrent))


def mamba2_factor(attention_page: int, recurrent: int) -> float:
    """
    Return by how much the KV memory of a model with Mamba2 and attention layers is scaled down.

    An attention page over itself and a block's recurrent state, both in bytes. Source: as ``gdn_factor``.
    """
    _positive(attention_page=attention_page, recurrent=recurrent)
    return attention_page / (attention_page + recurrent)


def scaled(pool: Term, factor: float) -> Term:
    """
    Return the KV pool as the engine's scheduler counts it, ``factor`` being printed with three decimals.

    What is cut off is no free memory: the layers' own tensors take it. Raise LawError for a factor that is not above 0
    and at most 1.
    """
    if not 0 < factor <= 1:
        raise LawError(f"hybrid_factor must be above 0 and at most 1, not {factor}")
    coarse = round(pool.rounding * factor + abs(pool.bytes) * FACTOR_ROUNDING)
    note = f"{factor} of what the charges leave, as the scheduler counts it"
    return Term(pool.name, int(pool.bytes * factor), pool.source, pool.lever, note, coarse)


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        number(name, size, above=0, most=LARGEST_SIZE)
