"""The expert-offload engine of the golden figures: two 31.86 GiB cards, TP=2, its rungs and its plan blocks."""

from __future__ import annotations

from dataclasses import replace

from budget_exporter import budget, registries
from budget_exporter.budget.choose import constants_for
from budget_exporter.config import Config
from budget_exporter.facts.boot import BootReport, Plan, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger
from budget_exporter.units import printed_bytes, rounding_of

SIZE = 34_208_743_424
REGISTRY = registries.load(Config())
WINDOW = 200_704
POOL = 3_166_500_000
SHAPE = Shape(
    model="/models/Qwen3.8-Flash-Next-FP8",
    utilization=0.982,
    kv_cache_memory_bytes=POOL,
    max_model_len=WINDOW,
    max_num_seqs=3,
    kv_cache_dtype="fp8",
    tensor_parallel_size=2,
    expert_offload=True,
    expert_precise_memory=True,
    graph_base_mib=0,
    graph_per_graph_mib=12,
)
"""Shape G."""


def gib(text: str) -> Printed:
    """Return a size as it is printed, in GiB."""
    return Printed(printed_bytes(text), rounding_of(text))


def constants(shape: Shape = SHAPE) -> Constants:
    found = constants_for(REGISTRY, shape, None)
    assert found is not None
    return found


def rank(name: str = "0", free: str | None = "31.29") -> RankInput:
    if free is None:
        return RankInput(name, SIZE)
    return RankInput(name, SIZE, printed_bytes(free), rounding_of(free), "log")


def ledger(shape: Shape = SHAPE, report: BootReport | None = None, free: str | None = "31.29") -> Ledger:
    """Return the ledger of both ranks with the registry's constants."""
    return budget.compute(shape, [rank("0", free), rank("1", free)], report, constants_for(REGISTRY, shape, report))


def first(shape: Shape = SHAPE, report: BootReport | None = None, free: str | None = "31.29") -> RankLedger:
    return ledger(shape, report, free).ranks["0"]


def arena(found: RankLedger) -> int:
    assert found.pool is not None
    assert found.pool.name == "arena"
    return found.pool.bytes


def charge(found: RankLedger, name: str) -> int:
    return next(term.bytes for term in found.charges if term.name == name)


PUBLIC_PLAN = Plan(
    budget=gib("28.67"),
    non_expert=gib("4.47"),
    kv_reserve=gib("0.64"),
    kv_bytes_per_token=9190,
    cuda_graphs=gib("0.40"),
    runtime_overhead=gib("8.48"),
    arena=gib("14.68"),
    resident_experts=gib("1.87"),
    host_experts=gib("25.1"),
    ple=gib("38.74"),
)
"""Another box: utilization 0.90, 65536 tokens; the figures of its public plan block."""
PLAN_G = Plan(
    budget=gib("31.29"),
    non_expert=gib("6.34"),
    kv_reserve=gib("1.86"),
    kv_bytes_per_token=9190,
    cuda_graphs=gib("0.07"),
    runtime_overhead=gib("5.25"),
    arena=gib("17.77"),
    slots=7762,
)


def said(plan: Plan | None = None, **facts: Printed | int | None) -> BootReport:
    """Return a report in which every rank printed the same."""
    common = replace(RankFacts(plan=plan), **facts)  # type: ignore[arg-type]  # names of RankFacts' fields
    return BootReport(version="0.28.0", release="28.04.9", common=common)
