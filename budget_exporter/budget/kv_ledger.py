"""
What the geometry of the KV cache makes of a ledger: the price of a token, and blocks, tokens and requests of its pools.

A price that a registry or the engine's plan block states goes first, as the expert-offload fork sizes its reserve by
it; the geometry's price then stands beside it. Figures come from the model's config.json and the flags, so that what
the engine prints of its KV cache is a test of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from budget_exporter.budget.kv_blocks import blocks, concurrency, longest, tokens
from budget_exporter.budget.kv_geometry import KvGeometry, geometry
from budget_exporter.budget.kv_settings import batched_tokens
from budget_exporter.budget.laws import Version
from budget_exporter.budget.version import parse_version, version_text
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles

__all__ = ["EXAMINED", "layout_of", "with_geometry"]

OVERRIDE = "--num-gpu-blocks-override"
EXAMINED: Version = (0, 33)
"""First version whose layout of the KV cache nobody has read."""
BLOCKS = (16, 32, 64, 128)
"""Block sizes that attention backends force where none is given."""
UNKNOWN = "the KV cache's geometry is not known"


def layout_of(
    shape: Shape, ranks: Sequence[RankInput], report: BootReport, model: ModelFiles, platform: str = ""
) -> tuple[KvGeometry | None, list[str]]:
    """
    Return how the engine lays out its KV cache, None where that cannot be told, and what must be said of it.

    ``platform`` is asked where the ranks name none. Nothing is raised: what is wrong is a sentence.
    """
    notes = [f"{UNKNOWN}: {note}" for note in model.notes]
    version = parse_version(version_text(shape, report))
    if model.config is None:
        return None, notes
    if version is None:
        return None, [f"{UNKNOWN}: it differs from version to version, and the engine's is not known"]
    first = next(iter(ranks), RankInput("0", 0, platform=platform))
    where = first.platform or platform
    flags = tuple(name for name in shape.layout_flags if name not in model.applied)
    length = _length(shape, report) or model.config.max_model_len
    try:
        batch = None if length is None else batched_tokens(shape, version, where, first.size, first.model, length)
        layout = geometry(
            model.config,
            replace(shape, layout_flags=flags),
            version,
            platform=where,
            draft=model.draft,
            batched_tokens=batch,
        )
    except LawError as error:
        return None, [*notes, f"{UNKNOWN}: {error}"]
    notes += layout.notes
    if version >= EXAMINED:
        notes.append("the KV cache's layout is assumed to be that of vLLM 0.32")
    return layout, notes


def with_geometry(
    ledger: Ledger,
    shape: Shape,
    ranks: Sequence[RankInput],
    report: BootReport,
    model: ModelFiles | None,
    platform: str = "",
) -> Ledger:
    """
    Return ``ledger`` with what the model's config makes of its KV pools; as it is where no config was looked for.

    Tokens are those of the smallest rank, with what printed figures in a pool and an assumed block size leave open.
    Where something is not known it is not there, and the notes say why.
    """
    if model is None:
        return ledger
    layout, notes = layout_of(shape, ranks, report, model, platform)
    if layout is None:
        return replace(ledger, notes=(*ledger.notes, *notes))
    prices = dict(ledger.kv_bytes_per_token)
    if layout.bytes_per_token:
        prices["geometry"] = layout.bytes_per_token
    known = {name: _overridden(rank, layout) for name, rank in ledger.ranks.items()}
    ledger = replace(ledger, kv_bytes_per_token=prices, ranks=known)
    if ledger.kv_pool_tokens is not None:
        return replace(ledger, notes=(*ledger.notes, *notes))
    counts = _counts(layout, list(known.values()))
    if counts is None:
        return replace(ledger, notes=(*ledger.notes, *notes))
    length, why = _served(layout, counts.number, shape, report, model)
    found = None if length is None else tokens(layout, counts.number, length)
    if length is None or found is None:
        why = why or f"the KV pool's tokens follow --max-num-batched-tokens, which is not known: {UNKNOWN}"
        return replace(ledger, kv_blocks=counts.number, notes=(*ledger.notes, *notes, why))
    others = [layout_of(replace(shape, block_size=size), ranks, report, model, platform)[0] for size in BLOCKS]
    possible = [layout, *(other for other in others if other is not None)] if layout.notes else [layout]
    return replace(
        ledger,
        kv_blocks=counts.number,
        kv_concurrency=concurrency(layout, counts.number, length),
        kv_pool_tokens=found,
        kv_pool_tokens_rounding=max(_reach(each, list(known.values()), length, found) for each in possible),
        kv_pool_tokens_source="geometry",
        notes=(*ledger.notes, *notes),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Blocks of the smallest pool, and the fewest and most that printed figures leave open."""

    number: int
    low: int
    high: int


def _counts(layout: KvGeometry, ranks: Sequence[RankLedger]) -> _Counts | None:
    """Return the blocks, None where not every rank's pool is known: the one that is missing may be the smallest."""
    if layout.settings.blocks_override is not None:
        number = layout.settings.blocks_override
        return _Counts(number, number, number)
    replicas: dict[str, dict[int, Term]] = {}
    for rank in ranks:
        replica, _, index = rank.rank.rpartition(".")
        if rank.kv_pool is None or not index.isdecimal():
            return None
        replicas.setdefault(replica, {})[int(index)] = rank.kv_pool
    wanted = list(range(layout.settings.tensor * len(layout.stages)))
    if not replicas or any(sorted(pools) != wanted for pools in replicas.values()):
        return None
    sizes = [[pools[index] for index in wanted] for pools in replicas.values()]

    def least(edge: int) -> int:
        return min(blocks(layout, [pool.bytes + edge * pool.rounding for pool in pools]) for pools in sizes)

    return _Counts(least(0), least(-1), least(1))


def _reach(layout: KvGeometry, ranks: Sequence[RankLedger], length: int, found: int) -> int:
    """Return how far from ``found`` tokens the pools of ``ranks`` may be under ``layout``."""
    counts = _counts(layout, ranks)
    ends = [] if counts is None else [tokens(layout, number, length) for number in (counts.low, counts.high)]
    return max((abs(end - found) for end in ends if end is not None), default=0)


def _served(
    layout: KvGeometry, number: int, shape: Shape, report: BootReport, model: ModelFiles
) -> tuple[int | None, str]:
    """
    Return the length of the longest request, and why it is not known.

    With ``auto`` the engine takes the longest that the blocks serve. What the model's own limit is follows more than
    the config says, so that a length which reaches it is not certain.
    """
    length = _length(shape, report)
    if length is not None:
        return length, ""
    limit = None if model.config is None else model.config.max_model_len
    if limit is not None and shape.given.get("max-model-len", "") in ("auto", "-1"):
        fitted = longest(layout, number, limit)
        if fitted and fitted < limit:
            return fitted, ""
    return None, "the KV pool's tokens follow max_model_len, which neither flags nor log tell"


def _length(shape: Shape, report: BootReport) -> int | None:
    return shape.max_model_len if shape.max_model_len is not None else report.max_model_len


def _overridden(rank: RankLedger, layout: KvGeometry) -> RankLedger:
    """Return the rank with the bytes of ``--num-gpu-blocks-override``, which no log tells."""
    number, index = layout.settings.blocks_override, rank.rank.rpartition(".")[2]
    if number is None or rank.kv_pool is not None or not index.isdecimal():
        return rank
    block = layout.stages[min(int(index) // layout.settings.tensor, len(layout.stages) - 1)]
    pool = Term("kv_pool", number * block, "geometry", OVERRIDE, f"{number} blocks of {block} B")
    return replace(rank, kv_pool=pool)
