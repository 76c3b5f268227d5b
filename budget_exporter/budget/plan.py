"""
The expert-offload plan block as terms, and whether its rows add up.

The partition closes to the byte, printed rows only to their rounding: the residue goes to the arena, which is always
the request minus the charges and is compared with the arena that was printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from budget_exporter.budget.checks import flag_gib
from budget_exporter.budget.graphs import BASE, PER_GRAPH
from budget_exporter.budget.terms import printed
from budget_exporter.facts.boot import BootReport, Plan, Printed
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Term
from budget_exporter.units import gib_text

__all__ = ["charges", "host_terms", "notes", "residue"]

NVME = "--ple-nvme-offload"


def charges(plan: Plan) -> dict[str, Term]:
    """Return the rows of the block that are charges, by name; a row that was not printed is not there."""
    terms = (
        printed("weights", plan.non_expert),
        printed("kv_reserve", plan.kv_reserve, "--max-model-len"),
        printed("cuda_graphs", plan.cuda_graphs, f"{BASE}, {PER_GRAPH}"),
        printed("runtime_overhead", plan.runtime_overhead, "--expert-precise-memory"),
    )
    return {term.name: term for term in terms if term is not None}


def residue(plan: Plan) -> tuple[int, int] | None:
    """
    Return what the printed budget is more than its printed parts, and how much of it rounding may explain, in bytes.

    None where a row is missing.
    """
    parts = (plan.non_expert, plan.kv_reserve, plan.cuda_graphs, plan.runtime_overhead, plan.arena)
    rows = [row for row in parts if row is not None]
    if plan.budget is None or len(rows) < len(parts):
        return None
    return plan.budget.bytes - sum(row.bytes for row in rows), sum(row.rounding for row in (plan.budget, *rows))


def notes(plan: Plan, requested: int, arena: Term | None) -> list[str]:
    """Return a sentence for each way in which the block contradicts itself, the flags, or its own charges."""
    found = []
    gap = residue(plan)
    if gap is not None and abs(gap[0]) > gap[1]:
        found.append(f"the plan block does not add up: its budget is {gib_text(gap[0])} more than its parts")
    if plan.budget is not None and abs(plan.budget.bytes - requested) > plan.budget.rounding:
        found.append(f"the plan's budget is {gib_text(plan.budget.bytes)}, the flags ask for {gib_text(requested)}")
    if plan.arena is not None and arena is not None:
        apart = plan.arena.bytes - arena.bytes
        if abs(apart) > plan.arena.rounding + arena.rounding:
            found.append(f"the plan's arena is {gib_text(plan.arena.bytes)}, its charges leave {gib_text(arena.bytes)}")
    return found


def host_terms(shape: Shape, report: BootReport, plans: Sequence[Plan]) -> tuple[Term, ...]:
    """Return the host memory the engine takes: the experts of every rank, and the one PLE table it holds."""
    experts = [plan.host_experts for plan in plans if plan.host_experts is not None]
    table = _table(shape, report, plans)
    note = f"{len(experts)} of {len(plans)} ranks"
    terms = [_sum("host_experts", experts, note, "--expert-offload-mem")] if experts else []
    return (*terms, table) if table is not None else tuple(terms)


def _table(shape: Shape, report: BootReport, plans: Sequence[Plan]) -> Term | None:
    """
    Return the PLE table in host memory: what the engine locked or failed to lock, else the row of the block.

    The row only says that the table is not on the device: with ``--ple-nvme-offload`` it is not in host memory either,
    only the row cache of ``--ple-cache-gb`` GiB is.
    """
    locks = [lock for lock in (report.ple_locked, report.ple_not_locked) if lock is not None]
    if locks:
        return _sum("ple", locks, "locked, or meant to be", NVME)
    flags = (shape.given.get("ple-nvme-offload"), report.args.get("ple_nvme_offload"))
    if any(flag is not None and flag.lower() != "false" for flag in flags):
        said = {name.replace("_", "-"): text for name, text in report.args.items()}
        cache = flag_gib({**said, **shape.given}, "ple-cache-gb")
        return Term("ple", cache, "flag", "--ple-cache-gb", "row cache of the table on NVMe") if cache else None
    rows = [plan.ple for plan in plans if plan.ple is not None]
    return _sum("ple", [max(rows, key=lambda row: row.bytes)], "one table for all ranks", NVME) if rows else None


def _sum(name: str, rows: Sequence[Printed], note: str, lever: str) -> Term:
    rounding = sum(row.rounding for row in rows)
    return Term(name, sum(row.bytes for row in rows), "log", lever, note, rounding)
