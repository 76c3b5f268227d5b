"""What every law does alike: check its inputs, read printed figures as terms, close a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from budget_exporter.budget.checks import check
from budget_exporter.budget.kv_cache import measured_price
from budget_exporter.budget.limits import passes_init_check, utilization_limit
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Limit, Origin, RankInput, Term
from budget_exporter.units import GIB, gib_text

__all__ = [
    "Free",
    "check",
    "closing",
    "driver_reserve",
    "exact_price",
    "facts_of",
    "free_of",
    "init_check",
    "kv_minimum",
    "partition",
    "printed",
    "rank_notes",
    "size_note",
    "uma_note",
]

Free = tuple[int | None, int, Origin]
"""Free bytes at init (None when unknown), the half-width of a printed figure, and who says so."""


def facts_of(report: BootReport, rank: str) -> RankFacts:
    """
    Return what the log says of ``rank``.

    For a rank of a data-parallel replica (``d1.0``) only what holds for every rank: the log does not tell replicas
    apart.
    """
    return report.of(int(rank)) if rank.isdecimal() else report.common


def free_of(rank: RankInput, facts: RankFacts) -> Free:
    """Return free memory at init: what the caller knows, else what the rank printed."""
    if rank.free_at_init is not None:
        return rank.free_at_init, rank.free_at_init_rounding, rank.free_at_init_source
    if facts.free_at_init is not None:
        return facts.free_at_init.bytes, facts.free_at_init.rounding, "log"
    return None, 0, rank.free_at_init_source


def partition(rank: RankInput, facts: RankFacts) -> tuple[RankInput, list[str]]:
    """
    Return the rank with the memory the engine was given of a card that is partitioned, and a sentence of it.

    An MI300 in DPX, QPX or CPX mode shows itself as 2, 4 or 8 devices with as many parts of its memory, while the
    driver's counters stay those of the whole card. It is told by the size the engine printed; what was free on the
    whole card tells nothing of a part. Source: Linux 6.12 ``amdgpu_amdkfd.c`` ``amdgpu_amdkfd_xcp_memory_size``.
    """
    seen = facts.size_at_init
    if seen is None or rank.platform != "amd" or rank.integrated:
        return rank, []
    number = next((n for n in (2, 4, 8) if abs(seen.bytes - rank.size // n) <= seen.rounding), None)
    if number is None:
        return rank, []
    note = (
        f"the engine saw {gib_text(seen.bytes)}, one of {number} partitions of a card of {gib_text(rank.size)}: "
        "what the driver counts is the whole card's"
    )
    part = replace(rank, size=rank.size // number)
    return (part if rank.free_at_init_source == "log" else replace(part, free_at_init=None)), [note]


def printed(name: str, figure: Printed | None, lever: str = "", note: str = "") -> Term | None:
    """Return a printed figure as a term, None where it was not printed."""
    if figure is None:
        return None
    return Term(name, figure.bytes, "log", lever, note, figure.rounding)


def closing(name: str, requested: int, charges: Iterable[Term], lever: str) -> Term:
    """
    Return what ``charges`` leave of ``requested``: the part that takes up every charge's rounding.

    It is as good as its charges: from the log where one of them is, and as coarse as all of them together.
    """
    parts = tuple(charges)
    source: Origin = "log" if any(term.source == "log" for term in parts) else "registry"
    return Term(
        name,
        requested - sum(term.bytes for term in parts),
        source,
        lever,
        note="what the charges leave",
        rounding=sum(term.rounding for term in parts),
    )


def driver_reserve(rank: RankInput, free: Free) -> tuple[Term, ...]:
    """Return what the device had given away before the engine's first snapshot: driver, context, other tenants."""
    size, rounding, source = free
    if size is None:
        return ()
    return (Term("driver_reserve", rank.size - size, source, note="size minus free at init", rounding=rounding),)


def exact_price(shape: Shape, report: BootReport) -> int | None:
    """
    Return the price of a token where the pool's bytes are exactly known: an explicit size, and the tokens got.

    A reservation for multimodal decoding comes out of the explicit size and is printed only roughly.
    """
    pool, tokens = shape.kv_cache_memory_bytes, report.kv_tokens
    if not pool or not tokens or shape.num_gpu_blocks_override is not None:
        return None
    if any(facts.multimodal is not None for facts in (report.common, *report.ranks.values())):
        return None
    return measured_price(pool, tokens)


def init_check(
    rank: RankInput, requested: int, free: Free, *, checks: bool = True
) -> tuple[bool | None, Limit | None, list[str]]:
    """Return whether the engine's check at init passes, the largest utilization that does, and what to say of it."""
    size, rounding, source = free
    if size is None or not checks:
        return None, None, []
    bootable = passes_init_check(requested, size, rounding)
    notes = []
    if bootable is False:
        figures = f"free {size / GIB:.2f} < budget {requested / GIB:.2f} GiB"
        notes.append(f"{figures}: the engine's check at init fails")
    return bootable, utilization_limit(rank.size, size, rounding, source), notes


def size_note(rank: RankInput, facts: RankFacts) -> list[str]:
    """Return a sentence where the engine saw a device of another size than the driver's."""
    seen = facts.size_at_init
    if seen is None or abs(seen.bytes - rank.size) <= seen.rounding:
        return []
    return [f"the engine saw {gib_text(seen.bytes)}, the driver says {gib_text(rank.size)}"]


def uma_note(rank: RankInput) -> list[str]:
    """
    Return a sentence where the device's memory is the host's.

    Source: vLLM 0.11.1 (Orin, Thor, Spark) and 0.20 and later (every integrated device) ``utils/mem_utils.py``
    ``MemorySnapshot``: free is what the host has available, the size stays the device's.
    """
    if not rank.integrated:
        return []
    return ["the device's memory is the host's: what other programs take of it is not free at init"]


def rank_notes(notes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the sentences of all ranks (``notes`` by rank), each once with the ranks it is said of."""
    said_of: dict[str, list[str]] = {}
    for rank, sentences in notes.items():
        for sentence in sentences:
            said_of.setdefault(sentence, []).append(rank)
    return tuple(f"{_named(ranks, len(notes))}: {sentence}" for sentence, ranks in said_of.items())


def _named(ranks: Sequence[str], among: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "every rank" if len(ranks) == among else f"ranks {', '.join(ranks)}"


def kv_minimum(shape: Shape, report: BootReport) -> int | None:
    """
    Return the tokens of KV below which vLLM refuses to start: one request of ``max_model_len``.

    None where the length is unknown, and for ``auto``, with which the engine shortens the length instead.
    Source: the check of ``v1/core/kv_cache_utils.py`` that names "the model's max seq len".
    """
    if shape.max_model_len is not None:
        return shape.max_model_len
    return None if shape.given.get("max-model-len", "") in {"auto", "-1"} else report.max_model_len
