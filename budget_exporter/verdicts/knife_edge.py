"""
The reasons for which a shape is on a knife edge: it boots, but cannot survive a request.

Each reason is asked of every rank (the KV contract of the engine) and answered True, False, or None where a figure that
it takes is unknown. A sentence carries the figures; what to change is ``advice``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from budget_exporter.facts.boot import Phase, Printed, RankFacts
from budget_exporter.facts.ledger import Ledger, RankLedger
from budget_exporter.facts.verdict import Policy
from budget_exporter.units import gib_text
from budget_exporter.verdicts.drift import Drift

__all__ = [
    "Answer",
    "capture_over_charge",
    "compile_cap",
    "kv_below_contract",
    "kv_minimum_bytes",
    "kv_minimum_tokens",
    "measured_margin",
    "predicted_margin",
    "utilization",
]

JUDGED: frozenset[Phase] = frozenset({"serving", "sleeping", "unknown"})
"""Phases in which a measured margin means something: a boot takes and gives back memory on purpose."""
PAST_CHECK: frozenset[Phase] = frozenset(
    {"profiling", "allocating_kv", "capturing", "warming_up", "serving", "sleeping"}
)
"""Phases that prove that the engine passed its check at init."""
PAST_KV: frozenset[Phase] = frozenset({"capturing", "warming_up", "serving", "sleeping"})
"""Phases that prove that the engine found its KV pool large enough."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a reason holds, how much room there is (the smallest speaks for the engine), and the sentence."""

    holds: bool | None = None
    room: float = 0.0
    sentence: str = ""


def predicted_margin(rank: RankLedger | None, policy: Policy) -> Answer:
    """Hold where the law predicts less than the warning floor."""
    if rank is None or rank.margin is None:
        return Answer()
    sentence = f"the law predicts {gib_text(rank.margin)} left, {_floor(rank.margin, policy)}"
    return Answer(rank.margin < policy.floors.warning, rank.margin, sentence)


def measured_margin(margin: int | None, phase: Phase, policy: Policy) -> Answer:
    """Hold where less than the warning floor was left at the high-water mark; never asked of a boot."""
    if margin is None or phase not in JUDGED:
        return Answer()
    sentence = f"{gib_text(margin)} left at the high-water mark, {_floor(margin, policy)}"
    return Answer(margin < policy.floors.warning, margin, sentence)


def _floor(margin: int, policy: Policy) -> str:
    """Return the floor that is missed, the critical one where both are."""
    if margin < policy.floors.critical:
        return f"below the critical floor of {gib_text(policy.floors.critical)}"
    return f"below the warning floor of {gib_text(policy.floors.warning)}"


def utilization(rank: RankLedger | None, ledger: Ledger | None, phase: Phase) -> Answer:
    """
    Hold where the utilization certainly exceeds what was free at init.

    A limit from a printed figure leaves its rounding open, and then this does not hold; nor does it where the engine
    has gone past the check.
    """
    if rank is None or rank.limit is None or ledger is None or ledger.utilization_ratio is None:
        return Answer()
    ratio, limit = ledger.utilization_ratio, rank.limit
    free = sum(rank.size - term.bytes for term in rank.outside if term.name == "driver_reserve")
    certain = f" ({limit.low:.3f} for certain)" if limit.low < limit.ratio else ""
    asked = gib_text(math.ceil(rank.size * ratio))
    sentence = (
        f"utilization {ratio} asks for {asked}, {gib_text(free)} were free at init: "
        f"enough for {limit.ratio:.3f} at most{certain}"
    )
    holds = rank.bootable is False and phase not in PAST_CHECK
    return Answer(holds, limit.ratio - ratio, sentence)


def kv_below_contract(tokens: int | None, contract: int | None) -> Answer:
    """Hold where the engine's own pool is smaller than what is promised; a predicted pool proves nothing."""
    if tokens is None or contract is None:
        return Answer()
    sentence = f"the KV pool holds {tokens:,} tokens, {contract:,} are promised"
    return Answer(tokens < contract, tokens - contract, sentence)


def kv_minimum_bytes(rank: RankLedger | None, facts: RankFacts, ledger: Ledger | None, phase: Phase) -> Answer:
    """
    Hold where a rank's KV pool is certainly below the bytes under which its worker refuses to start (Neuron).

    The worker's own figure counts before the law's; one that has gone past the check has enough.
    """
    pool = _pool(rank, facts)
    if pool is None or ledger is None or ledger.kv_min_bytes is None:
        return Answer()
    least = ledger.kv_min_bytes
    sentence = f"the KV pool is {gib_text(pool.bytes)}, below {gib_text(least)} the worker refuses to start"
    return Answer(phase not in PAST_KV and pool.bytes + pool.rounding < least, pool.bytes - least, sentence)


def kv_minimum_tokens(ledger: Ledger | None, reported: int | None, phase: Phase) -> Answer:
    """
    Hold where the predicted KV pool certainly holds less than the one request without which the engine does not start.

    ``reported`` are the tokens the engine printed: where it has, it has passed the check.
    """
    if ledger is None or ledger.kv_pool_tokens is None or ledger.kv_min_tokens is None:
        return Answer()
    predicted, least = ledger.kv_pool_tokens, ledger.kv_min_tokens
    sentence = f"the KV pool is predicted to hold {predicted:,} tokens, below {least:,} the engine refuses to start"
    passed = reported is not None or phase in PAST_KV
    return Answer(not passed and predicted + ledger.kv_pool_tokens_rounding < least, predicted - least, sentence)


def compile_cap(rank: RankLedger | None, facts: RankFacts) -> Answer:
    """Hold where a rank's KV pool is certainly above what its compiled programs leave for it (Neuron)."""
    pool = _pool(rank, facts)
    if rank is None or rank.kv_cap is None or pool is None:
        return Answer()
    cap = rank.kv_cap
    sentence = f"the KV pool is {gib_text(pool.bytes)}, programs were to be compiled for {gib_text(cap)} at most"
    return Answer(pool.bytes - pool.rounding > cap, cap - pool.bytes, sentence)


def _pool(rank: RankLedger | None, facts: RankFacts) -> Printed | None:
    """Return the rank's KV pool: the engine's own figure, else the law's."""
    if facts.kv_available is not None:
        return facts.kv_available
    term = None if rank is None else rank.kv_pool
    return None if term is None else Printed(term.bytes, term.rounding)


def capture_over_charge(drift: Drift | None, policy: Policy) -> Answer:
    """Hold where graph capture certainly took more than its charge and the tolerance."""
    if drift is None:
        return Answer()
    sentence = f"graph capture took {gib_text(drift.capture.bytes)}, charged were {gib_text(drift.charge)}"
    return Answer(drift.above(policy.graph_drift_tolerance), -drift.bytes, sentence)
