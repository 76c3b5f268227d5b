"""Advice on the graph charge: what covers a capture, and what gives back a charge that nothing needs."""

from __future__ import annotations

from budget_exporter.budget.graphs import ESTIMATE, PER_GRAPH, mib_to_cover, per_graph_mib_to_cover
from budget_exporter.facts.boot import Printed, RankFacts
from budget_exporter.units import MIB, gib_text
from budget_exporter.verdicts.advice_case import Case
from budget_exporter.verdicts.advice_pool import taken
from budget_exporter.verdicts.drift import charge_of

__all__ = ["charge_over", "charge_under"]

Found = tuple[str, str, str] | None
ESTIMATE_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
UTILIZATION, SIZE = "--gpu-memory-utilization", "--kv-cache-memory-bytes"


def charge_under(case: Case) -> Found:
    """Return what makes the budget cover the heaviest rank's capture."""
    heaviest = max((capture.bytes + capture.rounding for capture in _captures(case).values()), default=None)
    if heaviest is None:
        return None
    if _fork(case):
        return _fork_charge(case, heaviest)
    if case.explicit is not None:
        return None  # a pool of a given size is neither charged for graphs nor made smaller by a lower share
    estimates = [facts.graph_estimate for facts in _facts(case).values() if facts.graph_estimate is not None]
    if case.report is not None and case.report.graph_charge_applied is False and estimates:
        charge = max(estimate.bytes for estimate in estimates)
        says = f"{ESTIMATE_GRAPHS}=1 charges the estimate of {gib_text(charge)}"
        return taken(case, (ESTIMATE_GRAPHS, "1"), says, dict.fromkeys(case.ranks, charge))
    missing = {
        name: max(0, capture.bytes + capture.rounding - _charge(case, name))
        for name, capture in _captures(case).items()
        if name in case.ranks
    }
    ratio = case.lowered(missing)
    if ratio is None:
        return None
    says = f"{UTILIZATION} {ratio:.3f} leaves room for what was not charged"
    return taken(case, (UTILIZATION, f"{ratio:.3f}"), says, case.freed(ratio))


def charge_over(case: Case) -> Found:
    """Return what gives back a charge that no rank's capture needs."""
    captures = _captures(case)
    if not captures or captures.keys() < case.ranks.keys():
        return None
    if _fork(case):
        return _fork_charge(case, max(capture.bytes + capture.rounding for capture in captures.values()))
    spare = [_charge(case, name) - captures[name].bytes - captures[name].rounding for name in case.ranks]
    pools = case.pools()
    if pools is None or case.explicit is not None or not spare or min(spare) < MIB:
        return None
    if not case.spares(dict.fromkeys(case.ranks, min(spare))):
        return None
    size = (min(pools.values()) + min(spare)) // MIB * MIB
    return SIZE, str(size), f"{SIZE} {size} gives the pool the {gib_text(min(spare))} that graphs do not need"


def _fork(case: Case) -> bool:
    return case.ledger is not None and case.ledger.law == "expert_offload"


def _fork_charge(case: Case, capture: int) -> Found:
    """Return the fork's own setting: per graph where base and number are known, since it follows their number."""
    shape, graphs = case.shape, None if case.ledger is None else case.ledger.graphs
    base = None if shape is None else shape.graph_base_mib
    if shape is not None and shape.graph_estimate_mib is None and base is not None and graphs:
        value = per_graph_mib_to_cover(capture, base, graphs)
        return PER_GRAPH, str(value), f"{PER_GRAPH}={value} covers the heaviest rank's capture"
    value = mib_to_cover(capture)
    return ESTIMATE, str(value), f"{ESTIMATE}={value} covers the heaviest rank's capture"


def _facts(case: Case) -> dict[str, RankFacts]:
    """Return what each rank printed; all of them under one name where no rank is known."""
    if case.report is None:
        return {}
    report = case.report
    names = list(case.ranks) or [str(rank) for rank in sorted(report.ranks)] or ["0"]
    return {name: report.of(int(name)) if name.isdecimal() else report.common for name in names}


def _captures(case: Case) -> dict[str, Printed]:
    return {name: facts.graph_capture for name, facts in _facts(case).items() if facts.graph_capture is not None}


def _charge(case: Case, rank: str) -> int:
    term = charge_of(case.ranks.get(rank))
    return 0 if term is None else term.bytes
