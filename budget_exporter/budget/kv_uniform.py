"""
The price of a token where every layer keeps keys and values alike, for engines beside vLLM's GPU and CPU workers.

    price = layers x heads x (head_size + head_size_v) x bytes of the type      a rank; heads = max(1, heads // TP)

Any other model is refused here: how these engines lay out latent vectors, windows, recurrent states or draft layers is
not known. Source: ``CacheEngine.get_cache_block_size`` of HabanaAI/vllm-fork 1.16 to 1.22; vllm-gaudi and vllm-neuron
0.24, whose specs are vLLM's.
"""

from __future__ import annotations

from dataclasses import replace

from budget_exporter.budget.kv_dtype import model_dtype
from budget_exporter.budget.kv_settings import Settings, settings
from budget_exporter.budget.kv_spec import ELEMENT_BYTES, token_bytes
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger
from budget_exporter.facts.model import Attention, ModelConfig, ModelFiles

__all__ = ["attention", "element_bytes", "price", "with_price"]

NEWEST: Version = (0, 32)


def attention(config: ModelConfig) -> Attention:
    """Return what each layer keeps; raise LawError for a model whose layers differ or keep anything else."""
    kinds = set(config.layers)
    caches = next(iter(kinds)) if len(kinds) == 1 else ()
    cache = caches[0] if len(caches) == 1 else None
    if not isinstance(cache, Attention) or cache.window is not None or cache.chunk is not None:
        raise LawError(f"{config.architecture}: its layers do not all keep keys and values alike")
    return cache


def element_bytes(config: ModelConfig, chosen: Settings) -> int:
    """Return the bytes of an element in the model's own type."""
    return ELEMENT_BYTES[model_dtype(config, chosen)]


def price(model: ModelFiles, shape: Shape) -> int:
    """
    Return the bytes a token takes on one rank.

    Raise LawError, naming it, for what is not known: the model, its type of KV cache, drafting, pipeline stages, flags
    that change the model.
    """
    if model.config is None:
        raise LawError("; ".join(model.notes) or "config.json is not known")
    chosen = settings(shape)
    cache = attention(model.config)
    strange = [name for name in shape.layout_flags if name not in model.applied]
    if strange:
        raise LawError(f"--{strange[0]}: it changes the KV cache, and its value is not kept")
    if chosen.speculative or chosen.pipeline > 1:
        raise LawError("drafting and pipeline stages: which layers a rank holds is not known")
    dtype = chosen.kv_dtype
    if dtype == "auto":
        if model.config.kv_dtype is not None:
            raise LawError("kv_cache_dtype auto: whether the checkpoint's own is taken is not known")
        dtype = model_dtype(model.config, chosen)
    return len(model.config.layers) * token_bytes(cache, dtype, chosen.tensor, NEWEST)


def with_price(ledger: Ledger, model: ModelFiles | None, shape: Shape) -> Ledger:
    """Return ``ledger`` with the geometry's price of a token, or with a note of why there is none."""
    if model is None:
        return ledger
    try:
        prices = {**ledger.kv_bytes_per_token, "geometry": price(model, shape)}
    except LawError as error:
        return replace(ledger, notes=(*ledger.notes, f"the price of a token is not known: {error}"))
    return replace(ledger, kv_bytes_per_token=prices)
