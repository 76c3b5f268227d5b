"""What goes with Gaudi's split: the memory before it, the blocks, the graphs, and the host memory it swaps to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from budget_exporter.budget import buckets
from budget_exporter.budget.buckets import Release, Sizes
from budget_exporter.budget.capture import split
from budget_exporter.budget.gaudi_settings import block_size, capture_settings, sizes, skips_warm_up
from budget_exporter.budget.host import swap
from budget_exporter.budget.kv_uniform import price as price_of
from budget_exporter.budget.terms import printed
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Origin, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles

__all__ = ["blocks_of", "graphs_of", "host_of", "loaded", "pool_blocks", "prices_of", "shares"]

NEEDED = ("max_num_seqs", "max_model_len", "max_num_batched_tokens", "num_blocks")


def loaded(rank: RankInput, facts: RankFacts, free: Printed) -> tuple[Term, ...]:
    """
    Return what the device holds beside the share: the weights, what the profile run took, and the rest of its size.

    The rest is what the bridge's pool leaves out (94.62 of 96 GiB on Gaudi 2, 30.15 of 32 on Gaudi 1) and whatever the
    driver and others hold; it is not known before the weights are.
    """
    weights = printed("weights", facts.weights)
    if weights is None:
        return ()
    terms = tuple(term for term in (weights, printed("activation", facts.activation)) if term is not None)
    rest = rank.size - free.bytes - sum(term.bytes for term in terms)
    coarse = free.rounding + sum(term.rounding for term in terms)
    note = "size minus free after loading and what was loaded"
    return (*terms, Term("driver_reserve", rest, "log", note=note, rounding=coarse))


def prices_of(shape: Shape, constants: Constants | None, model: ModelFiles | None) -> tuple[dict[str, int], list[str]]:
    """Return the price of a token by origin, the one that counts first, and why there is none of the geometry."""
    prices: dict[str, int] = {}
    if constants is not None and constants.kv_bytes_per_token:
        prices["registry"] = constants.kv_bytes_per_token
    try:
        if model is not None:
            prices["geometry"] = price_of(model, shape)
    except LawError as error:
        return prices, [f"the price of a token is not known: {error}"]
    return prices, []


def pool_blocks(pool: int, block: int) -> int:
    """Return the KV blocks of ``block`` bytes in ``pool`` bytes: ``max(int(pool // block), 0)``; block is above 0."""
    return max(pool // block, 0)


def blocks_of(shape: Shape, ledgers: Sequence[RankLedger], price: int | None) -> int | None:
    """Return the KV blocks of the smallest rank, None where a rank's pool or the price of a token is not known."""
    if shape.num_gpu_blocks_override is not None:
        return shape.num_gpu_blocks_override
    pools = [ledger.kv_pool.bytes for ledger in ledgers if ledger.kv_pool is not None]
    if not price or not pools or len(pools) < len(ledgers):
        return None
    return pool_blocks(min(pools), price * block_size(shape))


def graphs_of(
    release: Release, shape: Shape, report: BootReport, facts: Sequence[RankFacts], blocks: int | None
) -> tuple[int | None, list[str]]:
    """
    Return how many graphs there will be at most, and what to say of it: the engine's word, else its buckets.

    The buckets are those the engine named, else those its release makes of the flags. ``blocks`` are the law's own KV
    blocks, which those the engine named replace. Nothing is said where nothing is warmed up.
    """
    if report.graphs is not None or shape.enforce_eager or skips_warm_up(shape):
        return report.graphs, []
    if shape.environ.get("PT_HPU_LAZY_MODE") == "0" and not release.since((1, 22)):
        return None, ["PT_HPU_LAZY_MODE=0: no graph is captured outside of lazy mode"]
    if report.prompt_buckets is not None and report.decode_buckets is not None:
        return report.prompt_buckets + report.decode_buckets, [_warmed_up(report.prompt_buckets, report.decode_buckets)]
    said = [each.kv_blocks for each in facts if each.kv_blocks is not None]
    try:
        return _counted(release, sizes(shape, report, min(said) if said else blocks, prefix_caching=release.plugin))
    except LawError as error:
        # The buckets are no part of the split: a setting that spoils them leaves the rest of the ledger as it is.
        return None, [f"how many graphs there will be is not known: {error}"]


def _counted(release: Release, cut_for: Sizes) -> tuple[int | None, list[str]]:
    missing = [name for name in NEEDED if getattr(cut_for, name) is None]
    if missing:
        return None, [f"how many graphs there will be is not known without {', '.join(missing)}"]
    prompt, decode = buckets.prompt(release, cut_for), buckets.decode(release, cut_for)
    if prompt.found is None or decode.found is None:
        return None, [f"how many graphs there will be is not known: {prompt.why or decode.why}"]
    return len(prompt.found) + len(decode.found), [_warmed_up(len(prompt.found), len(decode.found))]


def _warmed_up(prompt: int, decode: int) -> str:
    return f"{prompt} prompt and {decode} decode buckets are warmed up"


def shares(shape: Shape, graphs: Term, pool: Term, price: int | None, default: float) -> tuple[Term, ...]:
    """
    Return the budgets the engine has for prompt and decode graphs after the warm-up.

    What the KV blocks leave of their pool is for graphs too, since the engine divides what is free then; ``pool`` less
    whole blocks is added where the price of a token is known. ``default`` is the release's VLLM_GRAPH_PROMPT_RATIO.
    """
    name = "VLLM_GRAPH_PROMPT_RATIO"
    ratio, _, _ = capture_settings(shape, default)
    source: Origin = "env" if name in shape.environ else "default"
    rest, note = 0, f"{ratio} of the reserve for prompts"
    if price:
        block = price * block_size(shape)
        rest = pool.bytes - pool_blocks(pool.bytes, block) * block
        note += ", with what whole blocks leave of the KV pool"
    prompt, decode = split(graphs.bytes + rest, ratio)
    return (
        Term("prompt_graphs", round(prompt), source, name, note, graphs.rounding),
        Term("decode_graphs", round(decode), source, name, "the rest of it", graphs.rounding),
    )


def host_of(shape: Shape, ranks: int, price: int | None) -> tuple[Term, ...]:
    """
    Return the host memory a V0 engine swaps to, in whole KV blocks where their size is known.

    Source: the same worker's ``num_cpu_blocks = swap_space // block``.
    """
    term = swap(shape, ranks)
    if price and ranks:
        block = price * block_size(shape)
        blocks = term.bytes // ranks // block
        term = replace(term, bytes=blocks * block * ranks, note=f"{blocks} blocks for each rank")
    return (term,) if term.bytes else ()
