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

from budget_exporter.budget import graphs, kv_cache, plan as plan_block
from budget_exporter.budget.laws import Version
from budget_exporter.budget.limits import requested_bytes
from budget_exporter.budget.terms import (
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
from budget_exporter.facts.boot import BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.units import gib_text

__all__ = ["CHARGES", "DEFAULT_UTILIZATION", "LAWS", "ExpertOffload"]

CHARGES = ("weights", "kv_reserve", "cuda_graphs", "runtime_overhead")
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
        self, shape: Shape, ranks: Sequence[RankInput], report: BootReport, constants: Constants | None
    ) -> Ledger:
        """
        Return the budget of all ranks.

        Raise LawError for an impossible flag or size. A term for which neither plan block nor registry has a figure is
        left out and named in the notes; the partition is then open and has no arena.
        """
        check(shape, ranks)
        number = graphs.count(shape, report.graphs, constants)
        model = _model_charges(shape, report, constants, number)
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        results = {rank.rank: _rank(shape, rank, report, model, constants, utilization) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        prices = _prices(shape, report, [facts_of(report, rank.rank) for rank in ranks], constants)
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        return Ledger(
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
            host=plan_block.host_terms(shape, report, [facts_of(report, rank.rank).plan or Plan() for rank in ranks]),
            notes=rank_notes({name: notes for name, (_, notes) in results.items()}),
        )


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
    plan, free = facts.plan or Plan(), free_of(rank, facts)
    requested = requested_bytes(rank.size, utilization)
    logged = plan_block.charges(plan)
    found = {name: logged.get(name) or model[name] for name in CHARGES if name in logged or name in model}
    missing = [name for name in CHARGES if name not in found]
    arena = None if missing else closing("arena", requested, found.values(), "--gpu-memory-utilization")
    expert = None if constants is None else constants.expert_bytes
    kv_pool = _kv_pool(shape, found)
    excess = None if kv_pool is None or "kv_reserve" not in found else kv_pool.bytes - found["kv_reserve"].bytes
    non_torch = _non_torch(constants)
    resident = printed("resident_experts", plan.resident_experts, "--expert-resident-layers", "of the arena")
    bootable, limit, notes = init_check(rank, requested, free)
    ledger = RankLedger(
        rank=rank.rank,
        size=rank.size,
        requested=requested,
        charges=tuple(found.values()),
        pool=arena,
        kv_pool=kv_pool,
        arena_slots=None if arena is None or expert is None else arena.bytes // expert,
        within=tuple(term for term in (resident, non_torch) if term is not None),
        outside=driver_reserve(rank, free) + _beyond(excess),
        limit=limit,
        bootable=bootable,
        margin=_margin(free[0], arena, kv_pool, found, non_torch, facts),
        registry=_registry(requested, model) if logged else (),
    )
    if missing:
        notes.append(f"no source for {', '.join(missing)}: the arena is unknown")
    if excess is not None and excess > 0 and kv_pool is not None:
        notes.append(
            f"the explicit KV pool of {gib_text(kv_pool.bytes)} exceeds its reserve by "
            f"{gib_text(excess)}, which comes out of free memory"
        )
    notes += plan_block.notes(plan, requested, arena)
    return ledger, notes + size_note(rank, facts)


def _model_charges(
    shape: Shape, report: BootReport, constants: Constants | None, number: int | None
) -> dict[str, Term]:
    """Return the charges that flags, environment and registry give, without a word of the plan block."""
    terms = [graphs.charge(shape, number, constants)]
    if constants is not None:
        terms += [_weights(constants), _kv_reserve(shape, report, constants), _overhead(shape, constants)]
    return {term.name: term for term in terms if term is not None}


def _weights(constants: Constants) -> Term | None:
    if constants.non_expert is None:
        return None
    note = "weights and mamba pages together" if constants.mamba_pages is None else ""
    return Term("weights", constants.non_expert, "registry", note=note)


def _kv_reserve(shape: Shape, report: BootReport, constants: Constants) -> Term | None:
    """
    Return ``price x max_model_len x factor x requests`` and the mamba pages of those requests where they are known.

    9190 B x 200704 tokens x 1.08 x 1 request = 1992027341 B.
    """
    price, factor, requests = constants.kv_bytes_per_token, constants.kv_reserve_factor, constants.kv_reserve_requests
    length = shape.max_model_len if shape.max_model_len is not None else report.max_model_len
    if price is None or factor is None or requests is None or length is None:
        return None
    pages = (constants.mamba_pages or 0) * requests
    notes = [f"{price} B x {length} tokens x {factor} x {requests} request"]
    if constants.mamba_pages is None:
        notes.append("mamba pages are in the weights")
    if shape.speculative:
        notes.append("the registry's price leaves a draft layer out")
    return Term(
        "kv_reserve",
        round(price * length * requests * factor) + pages,
        "registry",
        lever="--max-model-len",
        note="; ".join(notes),
    )


def _overhead(shape: Shape, constants: Constants) -> Term | None:
    """
    Return the runtime overhead: ``base + slope x max(0, (max_num_batched_tokens - anchor) / 1024)``.

    ``--expert-precise-memory`` takes the fitted base in place of the default, which adds headroom for the phases that
    allocate last, compilation and graph capture.
    """
    precise = shape.expert_precise_memory
    base = constants.overhead_precise if precise else constants.overhead_default
    if base is None:
        return None
    note, lever = (
        "fitted" if precise else "default, with headroom for compilation and capture",
        "--expert-precise-memory",
    )
    batched, anchor = shape.max_num_batched_tokens, constants.overhead_anchor_tokens
    slope = constants.overhead_slope_per_1024_tokens
    if anchor is None or slope is None:
        note += "; how it grows with --max-num-batched-tokens is not known"
    elif batched is None:
        note += f"; --max-num-batched-tokens is not given and taken to be at most {anchor}"
    elif batched > anchor:
        base += round(slope * (batched - anchor) / 1024)
        lever += ", --max-num-batched-tokens"
    return Term("runtime_overhead", base, "registry", lever, note)


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


def _margin(
    free: int | None,
    arena: Term | None,
    kv_pool: Term | None,
    found: Charges,
    non_torch: Term | None,
    facts: RankFacts,
) -> int | None:
    """
    Return the bytes left by the boot predictor, None where a part is unknown.

    ``size - (weights + KV pool + graphs + arena + non-torch + driver reserve)``, where ``size - driver reserve`` is
    free at init, less what capture took beyond its charge. A necessary condition, no forecast: shape G sums to 2.5-2.7
    GiB and held 0.89.
    """
    if free is None or arena is None or kv_pool is None or non_torch is None:
        return None
    charge = found["cuda_graphs"].bytes
    beyond = 0 if facts.graph_capture is None else max(0, facts.graph_capture.bytes - charge)
    return free - (found["weights"].bytes + kv_pool.bytes + charge + beyond + arena.bytes + non_torch.bytes)


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
