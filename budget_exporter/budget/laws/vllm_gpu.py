"""
The budget of upstream vLLM on CUDA and ROCm, with the terms the log gives.

    requested = size x utilization             whole bytes of the float before 0.14, rounded up from 0.14
    KV pool   = requested - (weights + activation + non_torch) - cuda_graphs       0.8.5 to 0.26
    KV pool   = requested - (consumed + headroom) - cuda_graphs                    from 0.27

Source: vLLM 0.8.5 to 0.33 ``v1/worker/gpu_worker.py`` (``init_device``, ``determine_available_memory``,
``compile_or_warm_up_model``), ``utils/mem_utils.py``, ``v1/worker/utils.py`` ``request_memory``, ``config/cache.py``
and ``envs.py`` for the defaults; the table below has a row where one of these changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.laws import Version
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.terms import (
    Free,
    check,
    closing,
    driver_reserve,
    exact_price,
    facts_of,
    free_of,
    init_check,
    kv_minimum,
    printed,
    rank_notes,
    size_note,
)
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, Origin, RankInput, RankLedger, Term

__all__ = ["ESTIMATE_GRAPHS", "LAWS", "VllmGpu"]

ESTIMATE_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
KV_BYTES = "--kv-cache-memory-bytes"
UTILIZATION = "--gpu-memory-utilization"
BATCHED = "--max-num-batched-tokens"


@dataclass(frozen=True, slots=True)
class VllmGpu:
    """One row of the table: what holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    profile: Literal["parts", "consumed"] = "parts"
    """Weights, activation and non-torch apart, or all that was consumed and a transient headroom."""
    round_up: bool = True
    checks_init: bool = True
    default_utilization: float = 0.9
    charges_graphs: bool | None = None
    """Whether the graph estimate is charged by default; None where there is no estimate."""
    peak_holds_estimate: bool = False
    """Whether the engine prints the peak activation with a charged estimate in it: then only a charge that the log
    states tells the two apart."""
    examined_until: Version | None = None
    name: str = "vllm_gpu"
    flavour: str = "vllm_gpu"

    def ledger(
        self, shape: Shape, ranks: Sequence[RankInput], report: BootReport, constants: Constants | None
    ) -> Ledger:
        """
        Return the budget of all ranks; ``constants`` are of no use to this law.

        Raise LawError for an impossible flag or size. Where the log lacks a term the partition is open and has no pool;
        an explicit KV size then stands alone beside it.
        """
        del constants
        check(shape, ranks)
        utilization = self.default_utilization if shape.utilization is None else shape.utilization
        results = {rank.rank: self._rank(shape, rank, report, utilization) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        source: Origin = "default" if shape.utilization is None else "flag"
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        price = exact_price(shape, report)
        return Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_bytes_per_token={} if price is None else {"measured": price},
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, source, UTILIZATION),
            utilization_ratio=utilization,
            graphs=report.graphs,
            notes=rank_notes({name: notes for name, (_, notes) in results.items()}),
        )

    def _rank(
        self, shape: Shape, rank: RankInput, report: BootReport, utilization: float
    ) -> tuple[RankLedger, list[str]]:
        facts = facts_of(report, rank.rank)
        free = free_of(rank, facts)
        asked = requested_bytes(rank.size, utilization, round_up=self.round_up)
        bootable, limit, notes = init_check(rank, asked, free, checks=self.checks_init)
        explicit = shape.kv_cache_memory_bytes is not None
        graphs, known, assumption = (None, True, "") if explicit else self._graphs(shape, report, facts)
        found, missing = self._charges(facts, graphs, known=known)
        if shape.num_gpu_blocks_override is not None:
            missing.append("the bytes of --num-gpu-blocks-override")
        requested, pool, kv_pool = _pools(shape, asked, tuple(found.values()), closed=not missing)
        if assumption:
            notes.append(assumption)
        if missing:
            notes.append(f"the log does not tell {', '.join(missing)}: the partition is open")
        weights = printed("weights", facts.weights) if "consumed" in found else None
        settled = known and (pool is not None or (not explicit and shape.num_gpu_blocks_override is None))
        ledger = RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=requested,
            charges=tuple(found.values()),
            pool=pool,
            kv_pool=kv_pool,
            within=() if weights is None else (weights,),
            outside=driver_reserve(rank, free),
            limit=limit,
            bootable=bootable,
            margin=_margin(shape, requested, free, facts, graphs) if settled else None,
        )
        return ledger, notes + size_note(rank, facts)

    def _charges(self, facts: RankFacts, graphs: Term | None, *, known: bool) -> tuple[dict[str, Term], list[str]]:
        """Return the charges in the order they are shown, and the names of those the log does not tell."""
        terms: dict[str, Term | None]
        if self.profile == "parts":
            terms = {
                "weights": printed("weights", facts.weights),
                "activation": printed("activation", facts.activation, BATCHED),
                "non_torch": printed("non_torch", facts.non_torch),
            }
        else:
            terms = {
                "consumed": printed("consumed", facts.consumed),
                "headroom": printed("headroom", facts.activation, BATCHED),
            }
        if graphs is not None or not known:
            terms["cuda_graphs"] = graphs
        missing = [name for name, term in terms.items() if term is None]
        return {name: term for name, term in terms.items() if term is not None}, missing

    def _graphs(self, shape: Shape, report: BootReport, facts: RankFacts) -> tuple[Term | None, bool, str]:
        """
        Return the graph charge (None where nothing is charged), whether that is known, and what had to be assumed.

        What the engine said counts, then the environment, then the version's default, which is an assumption.
        """
        if self.charges_graphs is None or shape.enforce_eager:
            return None, True, ""
        applied, assumption = report.graph_charge_applied, ""
        if applied is None and self.peak_holds_estimate:
            return None, False, ""
        if applied is None and shape.estimate_graphs is not None:
            applied = shape.estimate_graphs
        elif applied is None:
            applied = self.charges_graphs
            assumption = (
                f"the graph estimate is assumed to be {'' if applied else 'not '}charged, the version's default"
            )
        if not applied:
            return None, True, assumption
        term = printed("cuda_graphs", facts.graph_estimate, ESTIMATE_GRAPHS, assumption)
        return term, term is not None, assumption


LAWS = (
    VllmGpu((0, 8, 5), (0, 9, 1), round_up=False, checks_init=False),
    VllmGpu((0, 9, 1), (0, 14), round_up=False),
    VllmGpu((0, 14), (0, 18)),
    VllmGpu((0, 18), (0, 19), charges_graphs=False, peak_holds_estimate=True),
    VllmGpu((0, 19), (0, 20), charges_graphs=False),
    VllmGpu((0, 20), (0, 27), charges_graphs=True, default_utilization=0.92),
    VllmGpu(
        (0, 27),
        None,
        profile="consumed",
        charges_graphs=True,
        default_utilization=0.92,
        peak_holds_estimate=True,
        examined_until=(0, 34),
    ),
)


def _pools(shape: Shape, asked: int, charges: Sequence[Term], *, closed: bool) -> tuple[int, Term | None, Term | None]:
    """
    Return the request, what the charges leave of it, and the KV pool.

    An explicit KV size stands in place of the utilization, which then only counts in the check at init: the request is
    the charges and that size. While a charge is unknown it is taken to be what the check asks for.
    """
    if shape.kv_cache_memory_bytes is None:
        pool = closing("kv_pool", asked, charges, UTILIZATION) if closed else None
        return asked, pool, pool
    explicit = Term("kv_pool", shape.kv_cache_memory_bytes, "flag", KV_BYTES)
    kv_pool = explicit if shape.num_gpu_blocks_override is None else None
    if not closed:
        return asked, None, kv_pool
    return explicit.bytes + sum(term.bytes for term in charges), explicit, kv_pool


def _margin(shape: Shape, requested: int, free: Free, facts: RankFacts, graphs: Term | None) -> int | None:
    """
    Return ``(free at init - requested) + charged estimate - capture``, None where a part is unknown.

    An upper bound: the allocator keeps activation blocks after the first full step. Source: the engine's own suggestion
    (``compile_or_warm_up_model``) solved for what stays free; with an explicit KV size nothing is charged for graphs.
    """
    capture = facts.graph_capture.bytes if facts.graph_capture is not None else None
    if shape.enforce_eager:
        capture = 0
    if free[0] is None or capture is None:
        return None
    return free[0] - requested + (0 if graphs is None else graphs.bytes) - capture
