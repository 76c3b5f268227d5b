"""
The budget of vLLM on CPUs: the memory of a NUMA node is the device.

    KV pool = VLLM_CPU_KVCACHE_SPACE GiB                              where it is set
    KV pool = --kv-cache-memory-bytes                                 from 0.20
    KV pool = whole bytes of (node memory x utilization), rounded up, - what loading and profiling consumed    from 0.20
    KV pool = 4 GiB before 0.13, half of a node's memory before 0.20  where nothing is set

Before 0.20 utilization and ``--kv-cache-memory-bytes`` count for nothing and nothing is checked. From 0.20 a request
above what is available at init is refused (until 0.33), an explicit pool only when it is allocated. From 0.24 a
container's memory limit stands in place of a larger node.

Source: vLLM 0.8.5 to 0.33 ``platforms/cpu.py`` and ``v1/worker/cpu_worker.py``, to 0.9.2 also ``worker/cpu_worker.py``,
from 0.20 ``utils/cpu_resource_utils.py``; 0.32 was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from budget_exporter.budget.checks import LARGEST_SIZE, check
from budget_exporter.budget.kv_ledger import with_geometry
from budget_exporter.budget.laws import Version
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.terms import (
    Free,
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
from budget_exporter.facts.ledger import Constants, Ledger, Limit, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles
from budget_exporter.units import GIB, gib_text

__all__ = ["DEFAULT_SPACE", "KV_SPACE", "LAWS", "VllmCpu", "half_of_a_node", "space"]

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
KV_BYTES = "--kv-cache-memory-bytes"
UTILIZATION = "--gpu-memory-utilization"
DEFAULT_UTILIZATION = 0.92
"""vLLM's default from 0.20 on (``config/cache.py``)."""
DEFAULT_SPACE = 4 * GIB
"""What KV gets before 0.13 where nothing is set."""


def space(shape: Shape) -> int | None:
    """
    Return the bytes of VLLM_CPU_KVCACHE_SPACE, None where it is not set or empty.

    Raise LawError for what is no whole number of GiB or below 0.
    """
    text = shape.environ.get(KV_SPACE, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_SIZE // GIB))):
        raise LawError(f"{KV_SPACE} must be a whole number of GiB, not {text[:40]!r}")
    return int(text) * GIB


def half_of_a_node(memory: int, nodes: int) -> int:
    """
    Return the default KV pool of 0.13 to 0.19: half of the host's ``memory`` divided by its NUMA nodes, in bytes.

    Raise LawError for a host without nodes.
    """
    if nodes < 1:
        raise LawError(f"nodes must be at least 1, not {nodes}")
    return int(memory // nodes * 0.5)


@dataclass(frozen=True, slots=True)
class VllmCpu:
    """One row of the table: what holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    changed: str
    default: Literal["constant", "half", "utilization"]
    """What KV gets where nothing is set."""
    zero_is_unset: bool = False
    """Whether a space of 0 stands for the default; after that it is a pool of nothing."""
    checks_init: bool = False
    limits_to_container: bool = False
    examined_until: Version | None = None
    name: str = "vllm_cpu"
    flavour: str = "vllm_cpu"

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks; ``constants`` are of no use to this law, ``model`` gives the pools' tokens.

        A rank's size is its NUMA node's memory. Raise LawError for an impossible flag, setting or size.
        """
        del constants
        check(shape, ranks)
        shares = self.default == "utilization"
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        seen = [self._seen(rank) for rank in ranks]
        results = {rank.rank: self._rank(shape, rank, report, utilization) for rank in seen}
        limited = {rank.rank: _limited(rank, results[rank.rank][0]) for rank in ranks}
        requested = max((ledger.requested for ledger, _ in results.values()), default=0)
        source: Literal["default", "flag"] = "default" if shape.utilization is None else "flag"
        price = self._price(shape, report)
        ledger = Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks={rank: ledger for rank, (ledger, _) in results.items()},
            kv_bytes_per_token={} if price is None else {"measured": price},
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, source, UTILIZATION) if shares else None,
            utilization_ratio=utilization if shares else None,
            notes=(
                *rank_notes({rank: notes + limited[rank] for rank, (_, notes) in results.items()}),
                *self._notes(shape),
            ),
        )
        return with_geometry(ledger, shape, seen, report, model, "host")

    def _seen(self, rank: RankInput) -> RankInput:
        """
        Return the rank with the memory its worker sees: from 0.24 on its container's limit where the node has more.

        What was measured to be free on the node tells nothing of the container.
        """
        limit = rank.container_limit
        if not self.limits_to_container or limit is None or limit >= rank.size:
            return rank
        inside = replace(rank, size=limit)
        return inside if rank.free_at_init_source == "log" else replace(inside, free_at_init=None)

    def explicit(self, shape: Shape, size: int) -> Term | None:
        """
        Return the KV pool of a rank that is no share of its node of ``size`` bytes, None where it is one.

        Raise LawError for a wrong VLLM_CPU_KVCACHE_SPACE.
        """
        given = space(shape)
        if given or (given is not None and not self.zero_is_unset):
            return Term("kv_pool", given, "env", KV_SPACE)
        if self.default == "constant":
            return Term("kv_pool", DEFAULT_SPACE, "default", KV_SPACE)
        if self.default == "half":
            note = "half of the node's memory; the engine takes it of the host's, by nodes"
            return Term("kv_pool", half_of_a_node(size, 1), "default", KV_SPACE, note)
        if shape.kv_cache_memory_bytes is not None:
            return Term("kv_pool", shape.kv_cache_memory_bytes, "flag", KV_BYTES)
        return None

    def _price(self, shape: Shape, report: BootReport) -> int | None:
        """Return the price of a token where the pool's bytes are exact, which a share of a node is not."""
        if self.default == "half" and space(shape) is None:
            return None
        pool = self.explicit(shape, 0)
        return None if pool is None else exact_price(replace(shape, kv_cache_memory_bytes=pool.bytes), report)

    def _rank(
        self, shape: Shape, rank: RankInput, report: BootReport, utilization: float
    ) -> tuple[RankLedger, list[str]]:
        facts = facts_of(report, rank.rank)
        free = free_of(rank, facts)
        consumed = printed("consumed", facts.consumed)
        charges = () if consumed is None else (consumed,)
        explicit = self.explicit(shape, rank.size)
        if explicit is not None:
            return self._explicit(shape, rank, explicit, charges, free)
        requested = requested_bytes(rank.size, utilization)
        bootable, limit, notes = init_check(rank, requested, free, checks=self.checks_init)
        pool = closing("kv_pool", requested, charges, UTILIZATION) if charges else None
        if pool is None:
            notes.append("the log does not tell what was consumed: the partition is open")
        elif pool.bytes + pool.rounding <= 0:
            notes.append("what was consumed leaves nothing of the request for KV: the engine refuses to start")
            bootable = False
        return self._made(shape, rank, requested, charges, pool, free, bootable=bootable, limit=limit), notes

    def _explicit(
        self, shape: Shape, rank: RankInput, pool: Term, charges: tuple[Term, ...], free: Free
    ) -> tuple[RankLedger, list[str]]:
        """
        Return the ledger of an explicit pool: the request is the pool and what else is known to be taken.

        The engine does not say what loading took where the pool is explicit: then the partition is open.
        """
        requested = pool.bytes + sum(term.bytes for term in charges)
        notes = []
        if free[0] is not None and requested > free[0] + free[1]:
            notes.append(f"available {gib_text(free[0])} < requested for KV and all else {gib_text(requested)}")
        if not pool.bytes:
            notes.append(f"{KV_SPACE} 0 leaves no memory for KV: the engine refuses to start")
        bootable = False if not pool.bytes else None
        return self._made(shape, rank, requested, charges, pool, free, bootable=bootable), notes

    def _made(
        self,
        shape: Shape,
        rank: RankInput,
        requested: int,
        charges: tuple[Term, ...],
        pool: Term | None,
        free: Free,
        *,
        bootable: bool | None,
        limit: Limit | None = None,
    ) -> RankLedger:
        blocks = shape.num_gpu_blocks_override
        return RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=requested,
            charges=charges,
            pool=pool if blocks is None and charges else None,
            kv_pool=pool if blocks is None else None,
            limit=limit,
            bootable=bootable,
            margin=None if free[0] is None or blocks is not None or not charges else free[0] - requested,
        )

    def _notes(self, shape: Shape) -> list[str]:
        notes = []
        if shape.num_gpu_blocks_override is not None:
            notes.append("the log does not tell the bytes of --num-gpu-blocks-override: the KV pool is not known")
        if self.default != "utilization":
            given = {UTILIZATION: shape.utilization, KV_BYTES: shape.kv_cache_memory_bytes}
            notes += [f"on CPUs {flag} counts for nothing" for flag, value in given.items() if value is not None]
        elif not self.limits_to_container:
            notes.append("a container's memory limit is not looked at: the share is of the node's memory")
        return notes


def _limited(rank: RankInput, ledger: RankLedger) -> list[str]:
    """Return what a container's limit makes of the rank; ``rank`` is on its node, ``ledger`` what its worker makes."""
    limit = rank.container_limit
    if limit is None or limit >= rank.size:
        return []
    if ledger.requested > limit:
        asked = f"requests {gib_text(ledger.requested)}, more than the {gib_text(limit)} its container lets it have"
        return [f"{asked}: the kernel ends it once it takes them"]
    if ledger.size == limit:
        return [f"its container's limit of {gib_text(limit)} stands in place of the node's {gib_text(rank.size)}"]
    return []


LAWS = (
    VllmCpu((0, 8, 5), (0, 10), "4 GiB where nothing is set, and for 0", "constant", zero_is_unset=True),
    VllmCpu((0, 10), (0, 13), "a space of 0 is a pool of nothing", "constant"),
    VllmCpu((0, 13), (0, 20), "half of a node's memory where nothing is set", "half"),
    VllmCpu(
        (0, 20),
        (0, 24),
        "a share of the node's memory; --kv-cache-memory-bytes; a check at init",
        "utilization",
        checks_init=True,
    ),
    VllmCpu(
        (0, 24),
        (0, 33),
        "a container's memory limit stands in place of a larger node",
        "utilization",
        checks_init=True,
        limits_to_container=True,
    ),
    VllmCpu(
        (0, 33),
        None,
        "no check at init",
        "utilization",
        limits_to_container=True,
        examined_until=(0, 34),
    ),
)
