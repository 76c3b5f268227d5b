"""
The budget of vLLM on CPUs: the memory of a NUMA node is the device.

    KV pool = VLLM_CPU_KVCACHE_SPACE GiB, else --kv-cache-memory-bytes                 where one of them is given
    KV pool = node memory x utilization - what loading and profiling consumed          otherwise

The environment's figure beats the flag. With an explicit pool the check at init is skipped, and the pool is held
against what is available when it is allocated. 0.33 drops the check at init; versions before 0.32 were not examined.

Source: vLLM 0.32 and 0.33 ``v1/worker/cpu_worker.py``; 0.32 was run on CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from budget_exporter.budget.checks import LARGEST_SIZE, check
from budget_exporter.budget.laws import Version
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.terms import (
    closing,
    exact_price,
    facts_of,
    free_of,
    init_check,
    kv_minimum,
    printed,
    rank_notes,
)
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.units import GIB, gib_text

__all__ = ["KV_SPACE", "LAWS", "VllmCpu", "explicit_pool"]

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
KV_BYTES = "--kv-cache-memory-bytes"
UTILIZATION = "--gpu-memory-utilization"
DEFAULT_UTILIZATION = 0.92
"""vLLM's default from 0.20 on (``config/cache.py``)."""


def explicit_pool(shape: Shape) -> Term | None:
    """
    Return the KV pool a rank was given in bytes, None where none was.

    Raise LawError for a VLLM_CPU_KVCACHE_SPACE that is no whole number of GiB; 0 and an empty one are not given.
    """
    text = shape.environ.get(KV_SPACE, "").strip()
    if text and not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_SIZE // GIB))):
        raise LawError(f"{KV_SPACE} must be a whole number of GiB, not {text[:40]!r}")
    space = int(text) if text else 0
    if space:
        return Term("kv_pool", space * GIB, "env", KV_SPACE)
    if shape.kv_cache_memory_bytes is not None:
        return Term("kv_pool", shape.kv_cache_memory_bytes, "flag", KV_BYTES)
    return None


@dataclass(frozen=True, slots=True)
class VllmCpu:
    """What holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    checks_init: bool = True
    examined_until: Version | None = None
    name: str = "vllm_cpu"
    flavour: str = "vllm_cpu"

    def ledger(
        self, shape: Shape, ranks: Sequence[RankInput], report: BootReport, constants: Constants | None
    ) -> Ledger:
        """
        Return the budget of all ranks; ``constants`` are of no use to this law.

        A rank's size is its NUMA node's memory. Raise LawError for an impossible flag, setting or size.
        """
        del constants
        check(shape, ranks)
        pool = explicit_pool(shape)
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        results = {rank.rank: self._rank(rank, report, pool, utilization) for rank in ranks}
        requested = max((ledger.requested for ledger, _ in results.values()), default=0)
        price = exact_price(shape, report)
        return Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks={rank: ledger for rank, (ledger, _) in results.items()},
            kv_bytes_per_token={} if price is None else {"measured": price},
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, "default" if shape.utilization is None else "flag", UTILIZATION),
            utilization_ratio=utilization,
            notes=rank_notes({rank: notes for rank, (_, notes) in results.items()}),
        )

    def _rank(
        self, rank: RankInput, report: BootReport, explicit: Term | None, utilization: float
    ) -> tuple[RankLedger, list[str]]:
        facts = facts_of(report, rank.rank)
        free = free_of(rank, facts)
        consumed = printed("consumed", facts.consumed)
        charges = () if consumed is None else (consumed,)
        if explicit is not None:
            return self._explicit(rank, explicit, charges, free[0])
        requested = requested_bytes(rank.size, utilization)
        bootable, limit, notes = init_check(rank, requested, free, checks=self.checks_init)
        pool = closing("kv_pool", requested, charges, UTILIZATION) if charges else None
        if pool is None:
            notes.append("the log does not tell what was consumed: the partition is open")
        ledger = RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=requested,
            charges=charges,
            pool=pool,
            kv_pool=pool,
            limit=limit,
            bootable=bootable,
            margin=None if free[0] is None else free[0] - requested,
        )
        return ledger, notes

    @staticmethod
    def _explicit(
        rank: RankInput, pool: Term, charges: tuple[Term, ...], free: int | None
    ) -> tuple[RankLedger, list[str]]:
        """Return the ledger of an explicit pool: the request is the pool and what else is known to be taken."""
        requested = pool.bytes + sum(term.bytes for term in charges)
        margin = None if free is None else free - requested
        notes = []
        if margin is not None and margin < 0:
            notes.append(f"available {gib_text(free or 0)} < requested for KV and all else {gib_text(requested)}")
        ledger = RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=requested,
            charges=charges,
            pool=pool,
            kv_pool=pool,
            margin=margin,
        )
        return ledger, notes


LAWS = (
    VllmCpu((0, 32), (0, 33)),
    VllmCpu((0, 33), None, checks_init=False, examined_until=(0, 34)),
)
