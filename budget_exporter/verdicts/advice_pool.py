"""Advice on the KV pool: what to take from it for a margin, what to give it for its contract."""

from __future__ import annotations

import math
from collections.abc import Mapping

from budget_exporter.units import MIB, gib_text
from budget_exporter.verdicts.advice_case import BLOCK, Case

__all__ = ["margin", "pool_below_contract", "pool_below_minimum", "taken", "within_contract"]

Found = tuple[str, str, str] | None
UTILIZATION, SIZE, LENGTH = "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--max-model-len"


def margin(case: Case) -> Found:
    """Return what gives every device its warning floor back, taken from the pool or the arena."""
    shortfalls = _shortfalls(case)
    if not shortfalls:
        return None
    if case.explicit is not None and not case.offload:
        return _smaller_size(case, max(shortfalls.values()), case.explicit)
    ratio, pools = case.lowered(shortfalls), case.pools()
    if ratio is None or pools is None:
        return None
    freed = case.freed(ratio)
    if any(freed[name] >= pools[name] for name in pools):
        return None
    gives = f"{UTILIZATION} {ratio:.3f} gives {gib_text(min(freed.values()))} back"
    if case.offload:
        return UTILIZATION, f"{ratio:.3f}", f"{gives}, out of the arena: it gets slower, nothing else"
    return taken(case, (UTILIZATION, f"{ratio:.3f}"), gives, freed)


def _shortfalls(case: Case) -> dict[str, int]:
    """Return the bytes that each device lacks to its warning floor, measured or else predicted."""
    measured = case.margins()
    left = measured or {name: rank.margin for name, rank in case.ranks.items() if rank.margin is not None}
    floor = case.policy.floors.warning
    return {name: floor - bytes_ for name, bytes_ in left.items() if bytes_ < floor}


def _smaller_size(case: Case, shortfall: int, explicit: int) -> Found:
    size = (explicit - shortfall) // MIB * MIB
    if size <= 0:
        return None
    gives = f"{SIZE} {size} gives {gib_text(explicit - size)} back"
    return within_contract(case, (SIZE, str(size)), gives, size / explicit)


def taken(case: Case, setting: tuple[str, str], gives: str, sizes: Mapping[str, int]) -> Found:
    """Return as advice what takes ``sizes`` bytes from the pools, where they have them and the contract holds."""
    pools = case.pools()
    if pools is None or any(sizes.get(name, 0) >= size for name, size in pools.items()):
        return None
    share = min((size - sizes.get(name, 0)) / size for name, size in pools.items())
    return within_contract(case, setting, gives, share)


def within_contract(case: Case, setting: tuple[str, str], gives: str, share: float) -> Found:
    """
    Return a smaller pool as advice where the contract allows it, ``share`` of today's tokens being left.

    A contract that is only one request of max_model_len can shrink with the pool; one of the configuration can not.
    """
    lever, value = setting
    contract = case.verdict.contract_tokens
    if case.tokens is None:
        return lever, value, f"{gives}; what the pool then holds is not known"
    left = math.floor(case.tokens * share)
    holds = f"{gives}; the pool then holds about {left:,} tokens"
    if contract is None or left >= contract:
        return lever, value, holds
    length = left // BLOCK * BLOCK
    if case.policy.contract_tokens is not None or length <= 0:
        return None
    return f"{lever}, {LENGTH}", f"{value}, {length}", f"{holds}, so {LENGTH} {length} goes with it"


def pool_below_contract(case: Case) -> Found:
    """Return what gives the pool its promised tokens, or the longest length it serves where that was the promise."""
    contract, tokens = case.verdict.contract_tokens, case.tokens
    if contract is None or not tokens:
        return None
    pools = _kv(case)
    # The fork's pool is capped by a reserve that grows and shrinks with the length: neither size nor length helps.
    if not case.offload and pools is not None:
        needs = {name: math.ceil(size * (contract - tokens) / tokens) for name, size in pools.items()}
        found = _larger(case, needs, f"holds {contract:,} tokens")
        if found is not None:
            return found
    length = tokens // BLOCK * BLOCK
    if case.offload or case.policy.contract_tokens is not None or length <= 0:
        return None
    return LENGTH, str(length), f"{LENGTH} {length} is the longest request the pool holds"


def pool_below_minimum(case: Case) -> Found:
    """Return what brings the pool to the size below which the worker refuses to start."""
    pools = _kv(case)
    if case.ledger is None or case.ledger.kv_min_bytes is None or pools is None:
        return None
    needs = {name: max(0, case.ledger.kv_min_bytes - size) for name, size in pools.items()}
    return _larger(case, needs, "is what the worker asks for at least", measured=False)


def _larger(case: Case, needs: Mapping[str, int], reaches: str, *, measured: bool = True) -> Found:
    """Return a larger pool as advice where the devices have the memory above their floor, or nobody measured it yet."""
    if measured and not case.spares(needs):
        return None
    if case.explicit is not None:
        size = -(-(case.explicit + max(needs.values())) // MIB) * MIB
        return SIZE, str(size), f"with {SIZE} {size} the pool {reaches}"
    ratio = case.raised(needs)
    if ratio is None:
        return None
    return UTILIZATION, f"{ratio:.3f}", f"with {UTILIZATION} {ratio:.3f} the pool {reaches}"


def _kv(case: Case) -> dict[str, int] | None:
    """Return each rank's KV pool in bytes, None where one is not known."""
    known = {name: rank.kv_pool.bytes for name, rank in case.ranks.items() if rank.kv_pool is not None}
    return known if known and len(known) == len(case.ranks) else None
