"""
The budget of the expert-offload fork: what the charges leave of the request is the expert arena.

    arena = requested - weights - kv_reserve - cuda_graphs - runtime_overhead
    slots = arena // bytes of one expert

Source: the fork's ``expert_plan.py`` (``build_plan``) and ``expert_activation_registry.py`` as operators of two R9700
describe and measured them, and public notes of the same fork on other boxes; its constants are data and come in as an
argument. Where the engine's own plan block states a term, that wins, and the registry's figures are kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budget_exporter.budget import graphs, host, kv_cache, plan as plan_block
from budget_exporter.budget.kv_ledger import with_geometry
from budget_exporter.budget.laws import Version
from budget_exporter.budget.laws._offload_charges import (
    CHARGES,
    PRECISE,
    compile_headroom,
    model_charges,
    resident_experts,
)
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.predictor import Prediction, predict
from budget_exporter.budget.terms import (
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
from budget_exporter.facts.boot import BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles
from budget_exporter.units import gib_text

__all__ = ["CHARGES", "DEFAULT_UTILIZATION", "LAWS", "ExpertOffload"]

DEFAULT_UTILIZATION = 0.92
"""vLLM's default from 0.20 on; the fork's releases stand on 0.28 and later."""
KV_BYTES = "--kv-cache-memory-bytes"
Charges = Mapping[str, Term]


@dataclass(frozen=True, slots=True)
class ExpertOffload:
    """The one law of the flavour; the fork has been seen on vLLM 0.28 and 0.29 (releases 28.04.9 to 29.08.1)."""

    name: str = "expert_offload"
    flavour: str = "expert_offload"
    since: Version = (0, 28)
    until: Version | None = None
    examined_until: Version | None = (0, 30)

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks; ``model`` gives the geometry's price beside the registry's.

        Raise LawError for an impossible flag or size. A term for which neither plan block nor registry has a figure is
        left out and named in the notes; the partition is then open and has no arena.
        """
        check(shape, ranks, constants)
        number = graphs.count(shape, report.graphs, constants)
        modelled = model_charges(shape, report, constants, number)
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        results = {rank.rank: _rank(shape, rank, report, modelled, constants, utilization) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        prices = _prices(shape, report, [facts_of(report, rank.rank) for rank in ranks], constants)
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        plans = [facts_of(report, rank.rank).plan or Plan() for rank in ranks]
        offload = host.kv_offload(shape)
        ledger = Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_pool_tokens=_tokens(list(ledgers.values()), prices.get("registry")),
            kv_bytes_per_token=prices,
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term(
                "utilization",
                requested,
                "default" if shape.utilization is None else "flag",
                "--gpu-memory-utilization",
            ),
            utilization_ratio=utilization,
            graphs=number,
            host=(*plan_block.host_terms(shape, report, plans), *(() if offload is None else (offload,))),
            notes=(*rank_notes({name: notes for name, (_, notes) in results.items()}), *host.notes(shape, "V1")),
        )
        return with_geometry(ledger, shape, ranks, report, model)


LAWS = (ExpertOffload(),)


def _rank(
    shape: Shape,
    rank: RankInput,
    report: BootReport,
    model: Charges,
    constants: Constants | None,
    utilization: float,
) -> tuple[RankLedger, list[str]]:
    facts = facts_of(report, rank.rank)
    rank, parted = partition(rank, facts)
    plan, free = facts.plan or Plan(), free_of(rank, facts)
    requested = requested_bytes(rank.size, utilization)
    logged = plan_block.charges(plan)
    found = {name: logged.get(name) or model[name] for name in CHARGES if name in logged or name in model}
    missing = [name for name in CHARGES if name not in found]
    arena = None if missing else closing("arena", requested, found.values(), "--gpu-memory-utilization")
    expert = None if constants is None else constants.expert_bytes
    kv_pool = _kv_pool(shape, found)
    excess = None if kv_pool is None or "kv_reserve" not in found else kv_pool.bytes - found["kv_reserve"].bytes
    reserve = driver_reserve(rank, free)
    prediction = predict(
        rank.size,
        weights=found.get("weights"),
        kv_pool=kv_pool,
        cuda_graphs=found.get("cuda_graphs"),
        arena=arena,
        non_torch=_non_torch(constants),
        driver_reserve=next(iter(reserve), None),
    )
    bootable, limit, notes = init_check(rank, requested, free)
    ledger = RankLedger(
        rank=rank.rank,
        size=rank.size,
        requested=requested,
        charges=tuple(found.values()),
        pool=arena,
        kv_pool=kv_pool,
        arena_slots=None if arena is None or expert is None else arena.bytes // expert,
        within=_within(shape, plan, found, constants),
        outside=reserve + _beyond(excess),
        limit=limit,
        bootable=bootable,
        margin=_margin(prediction, found, facts),
        registry=_registry(requested, model) if logged else (),
    )
    if missing:
        notes.append(f"no source for {', '.join(missing)}: the arena is unknown")
    notes += plan_block.notes(plan, requested, arena)
    notes += _pool_notes(shape, report, found, kv_pool, facts) + _last_phase(shape, constants, prediction)
    return ledger, notes + parted + size_note(rank, facts) + uma_note(rank)


def _within(shape: Shape, plan: Plan, found: Charges, constants: Constants | None) -> tuple[Term, ...]:
    """Return what lies in the arena and in the overhead, and is shown there, never added."""
    modelled = resident_experts(shape, constants)
    resident = printed("resident_experts", plan.resident_experts, "--expert-resident-layers", "of the arena")
    overhead = found.get("runtime_overhead")
    headroom = None
    if overhead is not None and overhead.source == "registry" and not shape.expert_precise_memory:
        headroom = compile_headroom(constants)
    terms = (resident if resident is not None else modelled, headroom, _non_torch(constants))
    return tuple(term for term in terms if term is not None)


def _kv_pool(shape: Shape, found: Charges) -> Term | None:
    """Return the KV pool: the explicit size, else all of the reserve, which caps it; never added to the partition."""
    if shape.num_gpu_blocks_override is not None:
        return None
    if shape.kv_cache_memory_bytes is not None:
        return Term("kv_pool", shape.kv_cache_memory_bytes, "flag", KV_BYTES)
    reserve = found.get("kv_reserve")
    if reserve is None:
        return None
    return Term("kv_pool", reserve.bytes, reserve.source, KV_BYTES, "capped at kv_reserve", reserve.rounding)


def _non_torch(constants: Constants | None) -> Term | None:
    if constants is None or constants.non_torch is None:
        return None
    return Term("non_torch", constants.non_torch, "registry", note="of runtime_overhead, as measured")


def _beyond(excess: int | None) -> tuple[Term, ...]:
    """Return what an explicit KV pool takes beyond its reserve, and so beside the request."""
    return (Term("kv_beyond_reserve", excess, "flag", KV_BYTES),) if excess is not None and excess > 0 else ()


def _margin(prediction: Prediction, found: Charges, facts: RankFacts) -> int | None:
    """Return what the boot predictor leaves, less what capture took beyond its charge; None where a part is unknown."""
    if prediction.left is None:
        return None
    charge = found["cuda_graphs"].bytes
    return prediction.left - (0 if facts.graph_capture is None else max(0, facts.graph_capture.bytes - charge))


def _pool_notes(shape: Shape, report: BootReport, found: Charges, kv_pool: Term | None, facts: RankFacts) -> list[str]:
    """
    Return what stands against the KV pool.

    A pool that is capped at its reserve follows it: where tokens cost more than was reserved for them, or the overhead
    was planned too small, a shorter context or a lower utilization mends nothing.
    """
    notes = []
    planned, measured = facts.overhead_planned, facts.overhead_measured
    if planned is not None and measured is not None and measured.bytes > planned.bytes:
        notes.append(
            f"the runtime overhead took {gib_text(measured.bytes)}, {gib_text(measured.bytes - planned.bytes)} more "
            "than planned, which comes out of the KV pool"
        )
    reserve = found.get("kv_reserve")
    if reserve is None or kv_pool is None:
        return notes
    excess = kv_pool.bytes - reserve.bytes
    if excess > 0:
        notes.append(
            f"the explicit KV pool of {gib_text(kv_pool.bytes)} exceeds its reserve by "
            f"{gib_text(excess)}, which comes out of free memory"
        )
    length = shape.max_model_len if shape.max_model_len is not None else report.max_model_len
    price = facts.kv_bytes_per_token_measured
    if price is not None and length is not None and kv_pool.source != "flag":
        reserved = reserve.bytes / length
        if not kv_cache.fits_one_request(reserved, price):
            notes.append(
                f"a token took {price} B and {reserved:.0f} B are reserved for it: the pool, capped at its reserve, "
                "cannot hold one request, and a shorter context mends nothing"
            )
    return notes


def _last_phase(shape: Shape, constants: Constants | None, prediction: Prediction) -> list[str]:
    """Return a sentence where the flags give the arena what compilation and graph capture would need."""
    headroom = compile_headroom(constants)
    if not shape.expert_precise_memory or headroom is None or prediction.left is None:
        return []
    given, left = gib_text(headroom.bytes), gib_text(prediction.left)
    return [
        f"{PRECISE} gives the arena {given} of the default for compilation and graph capture, which have {left} left"
    ]


def _registry(requested: int, model: Charges) -> tuple[Term, ...]:
    """Return what flags and registry give without the plan block, with their own arena where they are complete."""
    terms = tuple(model[name] for name in CHARGES if name in model)
    return terms if len(terms) < len(CHARGES) else (*terms, closing("arena", requested, terms, ""))


def _prices(
    shape: Shape, report: BootReport, facts: Sequence[RankFacts], constants: Constants | None
) -> dict[str, int]:
    """
    Return the price of a token by origin.

    ``registry``: as the plan block prints it, else as our registry has it. ``measured``: where the pool's bytes are
    exactly known (an explicit size) those over the engine's tokens, else what its plan check measured.
    """
    stated = [f.plan.kv_bytes_per_token for f in facts if f.plan is not None and f.plan.kv_bytes_per_token is not None]
    stated += [constants.kv_bytes_per_token] if constants is not None and constants.kv_bytes_per_token else []
    measured = [f.kv_bytes_per_token_measured for f in facts if f.kv_bytes_per_token_measured is not None]
    exact = exact_price(shape, report)
    measured = measured if exact is None else [exact]
    prices = {"registry": stated[:1], "measured": [max(measured)] if measured else []}
    return {origin: price for origin, values in prices.items() for price in values}


def _tokens(ledgers: Sequence[RankLedger], price: int | None) -> int | None:
    """Return the tokens of the smallest rank's pool, None where a rank's pool or the price is unknown."""
    pools = [ledger.kv_pool.bytes for ledger in ledgers if ledger.kv_pool is not None]
    if not price or not pools or len(pools) < len(ledgers):
        return None
    return kv_cache.tokens(min(pools), price)
