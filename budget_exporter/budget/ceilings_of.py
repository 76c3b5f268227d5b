"""The ceilings that one shape of one model comes up against: what they ask, read from flags, config and ledger."""

from __future__ import annotations

from collections.abc import Iterator

from budget_exporter.budget import ceilings
from budget_exporter.budget.ceilings import Ceiling
from budget_exporter.budget.kv_settings import settings
from budget_exporter.budget.laws._vllm_graphs import captures_none
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger
from budget_exporter.facts.model import Attention, Cache, Latent, ModelConfig, State

__all__ = ["ceilings_of"]


def ceilings_of(
    shape: Shape, config: ModelConfig | None = None, ledger: Ledger | None = None, *, host: int | None = None
) -> tuple[Ceiling, ...]:
    """
    Return what can be asked of ``shape``; what lacks an input is left out, or answers ``unknown`` by itself.

    ``config`` is the model's, ``ledger`` the budget of the shape, ``host`` the host's memory in bytes. Raise LawError,
    naming the field, for a flag that cannot be.
    """
    caches = () if config is None else tuple(cache for layer in config.layers for cache in layer)
    return (
        _decode_context(shape, config, caches),
        ceilings.expert_parallel(
            enabled=shape.given.get("enable-expert-parallel", "false").lower() != "false",
            expert_offload=shape.expert_offload,
        ),
        *_replicas(shape, ledger),
        *_pool(shape, caches, ledger),
        *_host(ledger, host),
    )


def _decode_context(shape: Shape, config: ModelConfig | None, caches: tuple[Cache, ...]) -> Ceiling:
    heads = [cache.kv_heads for cache in caches if isinstance(cache, Attention)]
    return ceilings.decode_context_parallel(
        settings(shape).decode_context,
        shape.tensor_parallel_size,
        max(heads, default=None),
        None if config is None else config.query_heads,
        mla=any(isinstance(cache, Latent) for cache in caches),
    )


def _replicas(shape: Shape, ledger: Ledger | None) -> Iterator[Ceiling]:
    """Yield whether replicas have room: each rank's weights are a part of all that the model has."""
    ranks = () if ledger is None else tuple(ledger.ranks.values())
    if not ranks:
        return
    charged = [sum(term.bytes for term in rank.charges if term.name == "weights") for rank in ranks]
    weights = max(charged) * shape.tensor_parallel_size if all(charged) else None
    smallest = min(rank.size for rank in ranks)
    yield ceilings.data_parallel(shape.data_parallel_size, weights, smallest, shape.tensor_parallel_size)


def _pool(shape: Shape, caches: tuple[Cache, ...], ledger: Ledger | None) -> Iterator[Ceiling]:
    if shape.max_num_seqs is None:
        return
    if shape.max_model_len is not None:
        tokens = None if ledger is None else ledger.kv_pool_tokens
        yield ceilings.windows(shape.max_num_seqs, shape.max_model_len, tokens)
    if any(isinstance(cache, State) for cache in caches):
        blocks = None if ledger is None else ledger.kv_blocks
        yield ceilings.mamba_blocks(shape.max_num_seqs, blocks, graphs=not captures_none(shape))


def _host(ledger: Ledger | None, memory: int | None) -> Iterator[Ceiling]:
    if ledger is None or memory is None or ledger.law != "expert_offload":
        return
    sizes = {term.name: term.bytes for term in ledger.host}
    if "host_experts" in sizes:
        yield ceilings.host_memory(memory, len(ledger.ranks), sizes["host_experts"], sizes.get("ple", 0))
