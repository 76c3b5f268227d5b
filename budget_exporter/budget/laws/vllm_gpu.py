"""
The budget of upstream vLLM on CUDA and ROCm, with the terms the log gives.

    requested = size x utilization             whole bytes of the float before 0.14, rounded up from 0.14
    KV pool   = requested - (weights + activation + non_torch) - cuda_graphs       0.8.5 to 0.26
    KV pool   = requested - (consumed + headroom) - cuda_graphs                    from 0.27
    KV pool   = one of these - multimodal                                          from 0.25

``--kv-cache-memory-bytes`` (0.10.2) or a remembered size (0.26) stand in place of the profile: the pool is that size
less ``multimodal``, graphs are not charged, and the check at init is as before.

Source: vLLM 0.8.5 to 0.33 ``v1/worker/gpu_worker.py`` (``init_device``, ``determine_available_memory``,
``compile_or_warm_up_model``), ``utils/mem_utils.py``, ``v1/worker/utils.py`` (``request_memory``),
``multimodal/gpu_ipc_memory.py``, ``v1/worker/startup_plan.py``, ``config/cache.py`` and ``envs.py``; for the V0 engine
of 0.8.5 to 0.10.2 ``worker/worker.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from budget_exporter.budget import host
from budget_exporter.budget.checks import flag_gib, switch
from budget_exporter.budget.kv_ledger import with_geometry
from budget_exporter.budget.laws._vllm_graphs import ESTIMATE_GRAPHS, GraphCharge, captures_none, graph_charge
from budget_exporter.budget.laws._vllm_rules import RULES, Rule
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.suggestion import suggest
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
    partition,
    printed,
    rank_notes,
    size_note,
    uma_note,
)
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, Limit, Origin, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles
from budget_exporter.units import gib_text

__all__ = ["ESTIMATE_GRAPHS", "LAWS", "VllmGpu", "oldest_pool"]

KV_BYTES = "--kv-cache-memory-bytes"
UTILIZATION = "--gpu-memory-utilization"
BATCHED = "--max-num-batched-tokens"
MULTIMODAL = "--mm-ipc-gpu-memory-gb"
STARTUP_PLAN = "VLLM_ENABLE_STARTUP_PLAN"
UNCHECKED = Limit(1.0, 1.0, 1.0, "flag")
"""Where nothing is checked at init, only the flag's own range limits what may be asked for."""


@dataclass(frozen=True, slots=True)
class VllmGpu(Rule):
    """One row of the table of what changed from release to release."""

    name: str = "vllm_gpu"
    flavour: str = "vllm_gpu"

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

        Raise LawError for an impossible flag or size. Where the log lacks a term the partition is open and has no pool;
        an explicit KV size then stands alone beside it.
        """
        del constants
        check(shape, ranks)
        utilization = self.default_utilization if shape.utilization is None else shape.utilization
        results = {rank.rank: _rank(self, shape, rank, report, utilization) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        source: Origin = "default" if shape.utilization is None else "flag"
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        price = exact_price(shape, report)
        core = _core(self, shape, report, RankFacts())
        swap = (host.swap(shape, len(ranks)),) if core == "V0" else ()
        offload = host.kv_offload(shape)
        ledger = Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_bytes_per_token={} if price is None else {"measured": price},
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, source, UTILIZATION),
            utilization_ratio=utilization,
            graphs=report.graphs,
            host=(*swap, *(() if offload is None else (offload,))),
            notes=(*rank_notes({name: notes for name, (_, notes) in results.items()}), *host.notes(shape, core)),
        )
        return with_geometry(ledger, shape, ranks, report, model)


LAWS = tuple(VllmGpu(**{field.name: getattr(rule, field.name) for field in fields(rule)}) for rule in RULES)


def oldest_pool(size: int, utilization: float, torch_peak: int, free: int, torch_current: int) -> int:
    """
    Return the KV pool of the V1 engine of 0.8.5 to 0.9.0.1, which charges whatever the device carries; all in bytes.

    ``int(size x utilization - (torch peak + max(0, (size - free) - torch current)))``: driver, context and other
    tenants are inside ``size - free``. Its log tells none of the terms. Source: vLLM 0.8.5 ``v1/worker/gpu_worker.py``.
    """
    return int(size * utilization - (torch_peak + max(0, size - free - torch_current)))


def _core(rule: Rule, shape: Shape, report: BootReport, facts: RankFacts) -> str | None:
    """
    Return ``V0`` or ``V1``, None where the release has both and nothing tells.

    V0 was dropped with 0.11. Before 0.9.1 only V0 printed its non-torch memory.
    """
    if rule.since >= (0, 11):
        return "V1"
    if report.core is not None:
        return report.core
    asked = switch(shape.environ, "VLLM_USE_V1")
    if asked is not None:
        return "V1" if asked else "V0"
    known = [facts, report.common, *report.ranks.values()]
    return "V0" if rule.device_wide and any(each.non_torch is not None for each in known) else None


def _rank(
    rule: Rule, shape: Shape, rank: RankInput, report: BootReport, utilization: float
) -> tuple[RankLedger, list[str]]:
    facts = facts_of(report, rank.rank)
    rank, parted = partition(rank, facts)
    free = free_of(rank, facts)
    core = _core(rule, shape, report, facts)
    asked = requested_bytes(rank.size, utilization, round_up=rule.round_up)
    checks = rule.checks_init and core != "V0"
    bootable, limit, notes = init_check(rank, asked, free, checks=checks)
    explicit = _explicit(shape, facts)
    graphs = GraphCharge() if explicit is not None else graph_charge(rule, shape, report, facts, rank.platform)
    found, missing = _charges(rule, shape, report, facts, graphs)
    if shape.num_gpu_blocks_override is not None:
        missing.append("the bytes of --num-gpu-blocks-override")
        explicit = None
    requested, pool, kv_pool = _pools(asked, explicit, found, closed=not missing)
    notes += [graphs.note] if graphs.note else []
    if missing:
        notes.append(f"the log does not tell {', '.join(missing)}: the partition is open")
    device_wide = rule.device_wide and core != "V0"
    reserve = driver_reserve(rank, free)
    weights = printed("weights", facts.weights) if "consumed" in found else None
    settled = graphs.known and (pool is not None or not (explicit or shape.num_gpu_blocks_override))
    ledger = RankLedger(
        rank=rank.rank,
        size=rank.size,
        requested=requested,
        charges=tuple(found.values()),
        pool=pool,
        kv_pool=kv_pool,
        within=reserve if device_wide else (() if weights is None else (weights,)),
        outside=() if device_wide else reserve,
        limit=limit if checks else UNCHECKED,
        bootable=bootable,
        margin=_margin(shape, requested, rank.size if device_wide else free[0], facts, graphs) if settled else None,
    )
    notes += parted + _suggestion_note(rule, ledger, free, facts, explicit) + _plan_note(rule, shape, facts)
    return ledger, notes + size_note(rank, facts) + uma_note(rank)


def _charges(
    rule: Rule, shape: Shape, report: BootReport, facts: RankFacts, graphs: GraphCharge
) -> tuple[dict[str, Term], list[str]]:
    """Return the charges in the order they are shown, and the names of those the log does not tell."""
    note = f"with {rule.includes}" if rule.includes else ""
    terms: dict[str, Term | None]
    if rule.profile == "parts":
        terms = {
            "weights": printed("weights", facts.weights),
            "activation": printed("activation", facts.activation, BATCHED),
            "non_torch": printed("non_torch", facts.non_torch, note=note),
        }
    else:
        terms = {
            "consumed": printed("consumed", facts.consumed),
            "headroom": printed("headroom", facts.activation, BATCHED),
        }
    if graphs.term is not None or not graphs.known:
        terms["cuda_graphs"] = graphs.term
    multimodal = _multimodal(rule, shape, report, facts)
    if multimodal is not None:
        terms["multimodal"] = multimodal
    missing = [name for name, term in terms.items() if term is None]
    return {name: term for name, term in terms.items() if term is not None}, missing


def _multimodal(rule: Rule, shape: Shape, report: BootReport, facts: RankFacts) -> Term | None:
    """
    Return what is reserved for the frontend's multimodal decoding; it is the same on every rank.

    Until the log has told the pool the flag stands for it: raw frames alone, a decoder on the device comes on top.
    Source: vLLM 0.25 to 0.33 ``reserve_mm_ipc_gpu_memory``.
    """
    known = next((each.multimodal for each in (facts, *report.ranks.values()) if each.multimodal is not None), None)
    if known is not None:
        return printed("multimodal", known, MULTIMODAL)
    size = flag_gib(shape.given, "mm-ipc-gpu-memory-gb") if rule.reserves_multimodal else None
    if not size or facts.kv_available is not None:
        return None
    return Term("multimodal", size, "flag", MULTIMODAL, "raw frames; what a decoder on the device takes is not known")


def _explicit(shape: Shape, facts: RankFacts) -> Term | None:
    """Return the KV size that stands in place of the profile: the flag's, else the one the log says was set aside."""
    if shape.kv_cache_memory_bytes:
        return Term("kv_pool", shape.kv_cache_memory_bytes, "flag", KV_BYTES)
    return printed("kv_pool", facts.kv_reserved, STARTUP_PLAN, "a remembered size in place of the profile")


def _pools(
    asked: int, explicit: Term | None, charges: dict[str, Term], *, closed: bool
) -> tuple[int, Term | None, Term | None]:
    """
    Return the request, what the charges leave of it, and the KV pool.

    An explicit KV size stands in place of the utilization, which then only counts in the check at init: the request is
    the charges and that size. While a charge is unknown it is taken to be what the check asks for.
    """
    if explicit is None:
        pool = closing("kv_pool", asked, charges.values(), UTILIZATION) if closed else None
        return asked, pool, pool
    taken = charges.get("multimodal")
    if taken is not None:
        left, rounding = explicit.bytes - taken.bytes, explicit.rounding + taken.rounding
        explicit = Term("kv_pool", left, explicit.source, explicit.lever, "less multimodal", rounding)
    if not closed:
        return asked, None, explicit
    return explicit.bytes + sum(term.bytes for term in charges.values()), explicit, explicit


def _margin(shape: Shape, requested: int, free: int | None, facts: RankFacts, graphs: GraphCharge) -> int | None:
    """
    Return ``(free at init - requested) + charged estimate - capture``, None where a part is unknown.

    Where all that the device carries is charged, ``free`` is the device's size. An upper bound: the allocator keeps
    activation blocks after the first full step. Source: the engine's own suggestion (``compile_or_warm_up_model``)
    solved for what stays free; with an explicit KV size nothing is charged for graphs.
    """
    capture = facts.graph_capture.bytes if facts.graph_capture is not None else None
    if shape.enforce_eager or (capture is None and captures_none(shape)):
        capture = 0
    if free is None or capture is None:
        return None
    return free - requested + (0 if graphs.term is None else graphs.term.bytes) - capture


def _suggestion_note(rule: Rule, ledger: RankLedger, free: Free, facts: RankFacts, explicit: Term | None) -> list[str]:
    """Return a sentence where the KV sizes that the boot suggests count the graphs twice."""
    if not rule.suggests or explicit is not None or ledger.pool is None or facts.graph_capture is None:
        return []
    charges = {term.name: term.bytes for term in ledger.charges if term.name != "multimodal"}
    estimate = charges.pop("cuda_graphs", 0)
    sizes = suggest(
        requested=ledger.requested,
        free=free[0] or 0,
        used=sum(charges.values()),
        estimate=estimate,
        capture=facts.graph_capture.bytes,
        peak_holds_estimate=rule.peak_holds_estimate,
    )
    if sizes.double_count <= 0:
        return []
    fit, twice = gib_text(sizes.fit + sizes.double_count), gib_text(sizes.double_count)
    return [f"the KV sizes suggested after the boot count {twice} of graphs twice: {fit} fit the request"]


def _plan_note(rule: Rule, shape: Shape, facts: RankFacts) -> list[str]:
    undecided = facts.kv_available is None and facts.kv_reserved is None and not shape.kv_cache_memory_bytes
    if rule.startup_plan and undecided and switch(shape.environ, STARTUP_PLAN):
        return [f"{STARTUP_PLAN} may put a remembered KV size in place of the profile"]
    return []
