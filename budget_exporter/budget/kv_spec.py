"""
Bytes of one layer's page: what a block of its tokens, or the state of one sequence, takes on one rank.

    keys and values   heads x (head_size + head_size_v) x bytes of the type      a token; heads = max(1, heads // TP)
    latent            head_size x bytes of the type                              a token, not divided by TP
    state             convolution + recurrent state                              a sequence, divided by TP

Source: vLLM 0.8.5 to 0.32 ``v1/kv_cache_interface.py`` (``page_size_bytes``), ``v1/attention/backends/*``
(``customize_spec``) and ``layers/mamba/mamba_utils.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.model import Attention, Index, Latent, State

__all__ = ["DS_MLA", "DS_MLA_V4", "ELEMENT_BYTES", "Kind", "Spec", "rank_heads", "state_bytes", "token_bytes"]

Kind = Literal["full", "sliding", "chunked", "latent", "index", "state"]
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
DS_MLA = 656
"""Bytes a token of ``fp8_ds_mla``: 512 of NoPE, 16 of scales, 128 of RoPE. DeepSeek V3.2 and kin."""
DS_MLA_V4 = 584
"""The same for DeepSeek V4: 448 of NoPE, 128 of RoPE, 8 of scales."""
_BYTE = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_SCALED = {"int8_per_token_head": 2, "fp8_per_token_head": 2, "int4_per_token_head": 1}
"""Halves of a byte an element takes; a float of scale stands beside each key and each value of a head."""
_SINCE: dict[str, Version] = {
    "int8_per_token_head": (0, 20),
    "fp8_per_token_head": (0, 20),
    "int4_per_token_head": (0, 26),
    "nvfp4": (0, 20),
    "nvfp4_4over6": (0, 28),
    "nvfp4_ds_mla": (0, 32),
    "fp8_ds_mla": (0, 11),
}
"""First examined version that takes the type."""


@dataclass(frozen=True, slots=True)
class Spec:
    """
    One layer's cache on one rank: layers of equal specs share a group.

    ``page`` is the bytes of a block of ``block_size`` tokens; of a state it is the bytes of one sequence.
    """

    kind: Kind
    block_size: int
    page: int
    reach: int = 0
    """Window of a sliding layer, chunk of a chunked one, in tokens; 0 for the others."""
    modes: int = 0
    """Reserved blocks a request holds of a state; 0 where they follow its length."""


def rank_heads(heads: int, tensor: int) -> int:
    """Return the key-value heads of one rank: divided by TP, at least one, since a head is then repeated."""
    return max(1, heads // tensor)


def token_bytes(cache: Attention | Latent | Index, dtype: str, tensor: int, version: Version) -> int:
    """
    Return the bytes a token takes in one layer on one rank.

    ``dtype`` is the resolved KV cache type: a model type, or one of vLLM's quantized ones. Raise LawError, naming it,
    for one that is not known, not yet known to ``version``, or not for this kind of layer.
    """
    if isinstance(cache, Index):
        return cache.head_size
    since = _SINCE.get(dtype)
    if since is not None and version < since:
        raise LawError(f"kv_cache_dtype {dtype!r} is not known to vLLM {'.'.join(map(str, version))}")
    if isinstance(cache, Latent):
        return _latent_bytes(cache, dtype)
    heads = rank_heads(cache.kv_heads, tensor)
    if dtype in _SCALED:
        return heads * ((cache.head_size + cache.head_size_v) * _SCALED[dtype] // 2 + 2 * 4)
    if dtype in ("nvfp4", "nvfp4_4over6"):
        if cache.head_size % 16 or cache.head_size_v % 16:
            raise LawError(f"kv_cache_dtype {dtype!r} needs head sizes of whole 16, not {cache.head_size}")
        return heads * (_nvfp4(cache.head_size) + _nvfp4(cache.head_size_v))
    return heads * (cache.head_size + cache.head_size_v) * _element(dtype)


def _latent_bytes(cache: Latent, dtype: str) -> int:
    packed = {"fp8_ds_mla": DS_MLA, "nvfp4_ds_mla": 352}.get(dtype)
    return cache.head_size * _element(dtype) if packed is None else packed


def _nvfp4(head_size: int) -> int:
    """Return the bytes of one head's key or value: two elements a byte, a byte of scale for each 16."""
    return head_size // 2 + head_size // 16


def _element(dtype: str) -> int:
    size = 1 if dtype in _BYTE else ELEMENT_BYTES.get(dtype)
    if size is None:
        raise LawError(f"kv_cache_dtype {dtype[:60]!r} is not known for this kind of layer")
    return size


def state_bytes(state: State, tensor: int, conv_dtype: str, dtype: str, drafts: int, version: Version) -> int:
    """
    Return the bytes of one sequence's state in one layer on one rank.

    ``conv_dtype`` and ``dtype`` are the types of the convolution's inputs and of the state; ``drafts`` tokens a step
    are kept as further inputs by gated delta nets, and from 0.17 by Mamba 2. Groups that TP does not divide are
    repeated until it does. Raise LawError where TP does not divide the heads.
    """
    if state.heads % tensor or state.channels % tensor:
        raise LawError(f"tensor_parallel_size {tensor} does not divide the {state.heads} heads of the recurrent state")
    groups = state.groups if state.groups % tensor == 0 else tensor
    channels = state.channels + 2 * groups * state.group_size
    keeps_drafts = state.kind == "gdn" or (state.kind == "mamba2" and version >= (0, 17))
    inputs = state.kernel - 1 + (drafts if keeps_drafts else 0)
    return channels // tensor * inputs * ELEMENT_BYTES[conv_dtype] + state.elements // tensor * ELEMENT_BYTES[dtype]
