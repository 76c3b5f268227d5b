"""What a model's config.json says of its KV cache: which layer keeps what, before any parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StateKind = Literal["gdn", "mamba1", "mamba2", "short_conv"]


@dataclass(frozen=True, slots=True)
class Attention:
    """
    Keys and values of one attention layer.

    ``kv_heads`` is the model's own number; ``head_size`` and ``head_size_v`` are elements of a key and of a value.
    """

    kv_heads: int
    head_size: int
    head_size_v: int
    window: int | None = None
    """Tokens a sliding-window layer looks back, itself included; None for another kind of layer."""
    chunk: int | None = None
    """Tokens of a chunk of chunked local attention; None for another kind of layer."""


@dataclass(frozen=True, slots=True)
class Latent:
    """
    The one latent vector of an MLA layer: ``head_size`` is kv_lora_rank + qk_rope_head_dim, in elements.

    Every rank holds all of it.
    """

    head_size: int


@dataclass(frozen=True, slots=True)
class Index:
    """Keys of a sparse layer's indexer: ``head_size`` bytes a token, scales included; every rank holds all of it."""

    head_size: int


@dataclass(frozen=True, slots=True)
class State:
    """
    Recurrent state of one layer of one sequence: a convolution's last inputs and the state itself.

    ``channels`` elements are kept for ``kernel`` - 1 positions; Mamba 2 adds 2 x ``groups`` x ``group_size`` channels.
    ``elements`` is the state, of ``heads`` heads that tensor parallelism divides.
    """

    kind: StateKind
    channels: int
    kernel: int
    elements: int = 0
    heads: int = 1
    groups: int = 0
    group_size: int = 0


Cache = Attention | Latent | Index | State
"""One cache a layer keeps."""
Layer = tuple[Cache, ...]
"""All a layer keeps: nothing for an MLP or a layer that reads another's cache, two for a parallel hybrid."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The part of a config.json that KV arithmetic needs."""

    architecture: str
    model_type: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    """Multi-token-prediction layers the checkpoint carries; they count only when they draft."""
    dtype: str | None = None
    """``bfloat16`` and the like; None where the file does not tell."""
    kv_dtype: str | None = None
    """KV cache type the checkpoint was quantized for, by vLLM's name; None where it says none."""
    max_model_len: int | None = None
    state_dtype: str | None = None
    """Type of the recurrent state where the file states one; None otherwise."""
    chunk_size: int | None = None
    """Tokens of a chunk of the Mamba 2 kernel; None where the file states none."""
    query_heads: int | None = None
    """Attention heads of the model; None where the file states none."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What was found of an engine's model where the engine itself reads it."""

    config: ModelConfig | None = None
    """None where it could not be read or understood."""
    draft: ModelConfig | None = None
    """The model that drafts, where the flags name one."""
    applied: tuple[str, ...] = ()
    """Flags that change the model and whose values are a part of ``config``: ``hf-overrides``, ``hf-config-path``."""
    notes: tuple[str, ...] = ()
    """Why something is missing, a sentence each."""
