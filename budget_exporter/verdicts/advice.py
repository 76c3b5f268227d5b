"""What to change: for each reason and finding the levers a deploy can reach, with the number to set."""

from __future__ import annotations

from collections.abc import Callable

from budget_exporter.facts.verdict import Advice, Verdict
from budget_exporter.verdicts.advice_case import Case
from budget_exporter.verdicts.advice_graphs import charge_over, charge_under
from budget_exporter.verdicts.advice_pool import margin, pool_below_contract, pool_below_minimum

__all__ = ["advise"]

UNREACHED = "no flag reaches this: it takes memory that others hold, another image or another device"


def advise(case: Case) -> tuple[Advice, ...]:
    """
    Return what to change, most urgent first; what arithmetic contradicts is never among it.

    Never a utilization above the limit or one whose pool breaks the contract, never the engine's own suggestions that
    count graphs twice, never a shorter context where the fork caps KV by it.
    """
    verdict = case.verdict
    return tuple(
        Advice(reason, *(found or ("", "", UNREACHED)))
        for reason, ask in _ASKED.items()
        if (found := ask(case) if _holds(verdict, reason) else None) is not None or _helpless(verdict, reason)
    )


def _holds(verdict: Verdict, reason: str) -> bool:
    reasons = {str(name): holds for name, holds in (*verdict.knife_edge.items(), *verdict.findings.items())}
    if reason == "predicted_margin" and reasons.get("measured_margin") is not None:
        return False  # the measured one decides
    if reason == "capture_over_charge" and reasons.get("graph_charge_under"):
        return False  # the same capture, told once
    return reasons.get(reason, False)


def _helpless(verdict: Verdict, reason: str) -> bool:
    """Return whether it must be said that nothing helps: of what leaves too little memory or too small a pool."""
    return reason in {"utilization_limit", "measured_margin", "kv_below_contract"} and _holds(verdict, reason)


def _utilization(case: Case) -> tuple[str, str, str] | None:
    limits = [rank.limit.low for rank in case.ranks.values() if rank.limit is not None]
    if not limits:
        return None
    lowest = min(limits)
    # What others hold is not made good by a share that has no room for the engine's own charges.
    if any(rank.size * lowest <= sum(term.bytes for term in rank.charges) for rank in case.ranks.values()):
        return None
    value = f"{lowest:.3f}"
    return "--gpu-memory-utilization", value, f"--gpu-memory-utilization {value} passes the check at init"


def _advertised(case: Case) -> tuple[str, str, str] | None:
    servable = case.servable()
    if servable is None:
        return None
    return "--max-model-len", str(servable), f"--max-model-len {servable} is what the pool can serve"


def _compile_cap(case: Case) -> tuple[str, str, str] | None:
    caps = [rank.kv_cap for rank in case.ranks.values() if rank.kv_cap is not None]
    if not caps:
        return None
    value = str(min(caps))
    return "--kv-cache-memory-bytes", value, f"--kv-cache-memory-bytes {value} is what the programs are compiled for"


def _mlock(_: Case) -> tuple[str, str, str] | None:
    return "LimitMEMLOCK", "infinity", "LimitMEMLOCK=infinity in the unit (--ulimit memlock=-1:-1 of a container)"


def _leak(case: Case) -> tuple[str, str, str] | None:
    left = [rank.floor_reached for rank in case.verdict.ranks.values() if rank.floor_reached is not None]
    if not left:
        return None
    return "", "", f"no flag stops a leak: restart within {min(left) / 3600:.1f} h, when the floor is reached"


_Ask = Callable[[Case], tuple[str, str, str] | None]
_ASKED: dict[str, _Ask] = {
    "utilization_limit": _utilization,
    "measured_margin": margin,
    "predicted_margin": margin,
    "kv_below_contract": pool_below_contract,
    "kv_minimum": pool_below_minimum,
    "compile_cap": _compile_cap,
    "graph_charge_under": charge_under,
    "capture_over_charge": charge_under,
    "graph_charge_over": charge_over,
    "advertised_above_servable": _advertised,
    "mlock_failed": _mlock,
    "leak": _leak,
}
