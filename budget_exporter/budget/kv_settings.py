"""The flags that shape the KV cache, as a frozen value; what a version settles by itself is told apart by note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from budget_exporter.budget.batch_defaults import batch_defaults
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.units import human_int

__all__ = ["Settings", "batched_tokens", "settings"]

DTYPES = {"half": "float16", "float": "float32", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
STATE_DTYPES = ("auto", "float16", "bfloat16", "float32")
MODES = ("all", "align", "none")
NO_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix", "medusa"})
"""Ways to draft that keep no KV cache of their own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Flags that decide how a rank lays out its KV cache; None where the engine settles it.

    Sizes in tokens. ``hybrid`` is False where ``--disable-hybrid-kv-cache-manager`` was given.
    """

    dtype: str | None = None
    kv_dtype: str = "auto"
    block_size: int | None = None
    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    decode_context: int = 1
    prefill_context: int = 1
    hybrid: bool = True
    prefix_caching: bool | None = None
    state_mode: str | None = None
    state_block_size: int | None = None
    conv_dtype: str | None = None
    state_dtype: str | None = None
    speculative: bool = False
    method: str | None = None
    drafts: int | None = 0
    """Tokens drafted a step; None where the flags do not tell."""
    batched_tokens: int | None = None
    asynchronous: bool | None = None
    blocks_override: int | None = None
    partition: tuple[int, ...] = ()
    """Layers of each pipeline stage where the environment sets them."""
    chunked_apart: bool | None = None
    """Whether the environment lets chunked layers have a cache of their own."""
    latent: bool = True
    """False where the environment switches latent attention off."""
    layout_flags: tuple[str, ...] = ()
    platform: str = ""


def settings(shape: Shape, platform: str = "") -> Settings:
    """
    Return the settings of ``shape``; ``platform`` is the device's (amd, nvidia, host, ...), empty where unknown.

    Raise LawError, naming the flag, for a value the engine would not take.
    """
    given = shape.given
    drafts = shape.speculative_tokens if shape.speculative_tokens is not None else _whole(given, "spec-tokens")
    return Settings(
        dtype=_dtype(given),
        kv_dtype=shape.kv_cache_dtype or "auto",
        block_size=_at_least_one("block_size", shape.block_size),
        tensor=_at_least_one("tensor_parallel_size", shape.tensor_parallel_size) or 1,
        pipeline=_at_least_one("pipeline_parallel_size", shape.pipeline_parallel_size) or 1,
        replicas=_at_least_one("data_parallel_size", shape.data_parallel_size) or 1,
        decode_context=_whole(given, "decode-context-parallel-size") or 1,
        prefill_context=_whole(given, "prefill-context-parallel-size") or 1,
        hybrid=not _switch(given, "disable-hybrid-kv-cache-manager"),
        prefix_caching=_switch(given, "enable-prefix-caching"),
        state_mode=_one_of(given, "mamba-cache-mode", MODES),
        state_block_size=_whole(given, "mamba-block-size"),
        conv_dtype=_unless_auto(_one_of(given, "mamba-cache-dtype", STATE_DTYPES)),
        state_dtype=_unless_auto(_one_of(given, "mamba-ssm-cache-dtype", STATE_DTYPES)),
        speculative=shape.speculative,
        method=shape.speculative_method or given.get("spec-method"),
        drafts=drafts if shape.speculative else 0,
        batched_tokens=_at_least_one("max_num_batched_tokens", shape.max_num_batched_tokens),
        asynchronous=_switch(given, "async-scheduling"),
        blocks_override=_at_least_one("num_gpu_blocks_override", shape.num_gpu_blocks_override),
        partition=_partition(shape),
        chunked_apart=_variable(shape, "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"),
        latent=not _variable(shape, "VLLM_MLA_DISABLE"),
        layout_flags=shape.layout_flags,
        platform=platform,
    )


def batched_tokens(shape: Shape, version: Version, platform: str, size: int, model: str, length: int) -> int | None:
    """
    Return what ``--max-num-batched-tokens`` is for an OpenAI server that does not give it, None where that is unknown.

    ``size`` is the device's in bytes, ``model`` its name, ``length`` max_model_len: the default of the device
    (``batch_defaults``), never more than max_num_seqs x ``length``.
    Source: vLLM 0.10.2 to 0.32 ``engine/arg_utils.py`` ``_set_default_max_num_seqs_and_batched_tokens_args``.
    """
    if shape.max_num_batched_tokens is not None:
        return shape.max_num_batched_tokens
    default = batch_defaults(shape, version, platform, size, model)
    if default is None:
        return None
    return min(default.tokens, (shape.max_num_seqs or default.sequences) * length)


def _at_least_one(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise LawError(f"{name} must be at least 1, not {value}")
    return value


def _whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None or text in ("", "None"):
        return None
    try:
        value = human_int(text)
    except ValueError as error:
        raise LawError(f"--{name} must be a whole number, not {text[:60]!r}") from error
    return _at_least_one(f"--{name}", value)


def _partition(shape: Shape) -> tuple[int, ...]:
    """
    Return VLLM_PP_LAYER_PARTITION, empty where it is unset.

    Source: vLLM 0.8.5 to 0.32 ``distributed/utils.py`` ``get_pp_indices``.
    """
    text = shape.environ.get("VLLM_PP_LAYER_PARTITION")
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise LawError(f"VLLM_PP_LAYER_PARTITION must be numbers with commas, not {text[:60]!r}") from error


def _variable(shape: Shape, name: str) -> bool | None:
    """Return what a 0 or 1 of the environment says, None where it is unset."""
    text = shape.environ.get(name)
    if text is None:
        return None
    if text not in ("0", "1"):
        raise LawError(f"{name} must be 0 or 1, not {text[:60]!r}")
    return text == "1"


def _switch(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name)
    return None if text is None else text.lower() != "false"


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str | None:
    text = given.get(name)
    if text is not None and text not in known:
        raise LawError(f"--{name} must be one of {', '.join(known)}, not {text[:60]!r}")
    return text


def _unless_auto(text: str | None) -> str | None:
    return None if text == "auto" else text


def _dtype(given: Mapping[str, str]) -> str | None:
    text = given.get("dtype", "auto").lower()
    if text == "auto":
        return None
    if text not in DTYPES:
        raise LawError(f"--dtype must be one of auto, {', '.join(DTYPES)}, not {text[:60]!r}")
    return DTYPES[text]
