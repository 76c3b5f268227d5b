"""Read a model's config.json (Hugging Face) for its KV cache; where the file lies is not known here."""

from __future__ import annotations

import json
from collections.abc import Mapping

from budget_exporter.engines import _model_hybrids as hybrids, _model_layers as layers
from budget_exporter.engines._model_keys import Keys
from budget_exporter.engines._model_layers import Defaults, Family
from budget_exporter.engines._model_overrides import NESTED, overridden
from budget_exporter.errors import LawError
from budget_exporter.facts.model import Layer, ModelConfig

__all__ = ["parse"]

PLAIN = """
    apertus arcee baichuan bloom cohere dots1 ernie4_5 ernie4_5_moe exaone falcon gemma glm glm4 glm4_moe gpt2
    gpt_bigcode gpt_neox gptj granite granitemoe internlm2 internlm3 llama minicpm ministral mistral mixtral nemotron
    olmo olmo2 olmo3 olmoe opt orion persimmon phi phi3 phimoe qwen2
    qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_vl_moe_text
    qwen3_vl_text seed_oss smollm3 solar stablelm starcoder2 xverse
"""
LATENT = "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2"
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(PLAIN.split(), layers.plain),
    **dict.fromkeys(LATENT.split(), layers.latent),
    "gemma2": layers.patterned(2),
    "gemma3": layers.patterned(6),
    "gemma3_text": layers.patterned(6),
    "gemma3n": layers.gemma3n,
    "gemma3n_text": layers.gemma3n,
    "gemma4_text": layers.gemma4,
    "gpt_oss": layers.gpt_oss,
    "llama4": layers.chunked,
    "llama4_text": layers.chunked,
    "bamba": hybrids.bamba,
    "falcon_h1": hybrids.falcon_h1,
    "falcon_mamba": hybrids.mamba,
    "granitemoehybrid": hybrids.granite_hybrid,
    "jamba": hybrids.jamba,
    "lfm2": hybrids.lfm2,
    "lfm2_moe": hybrids.lfm2,
    "mamba": hybrids.mamba,
    "mamba2": hybrids.mamba_2,
    "nemotron_h": hybrids.nemotron_h,
    "qwen3_5": hybrids.qwen_delta,
    "qwen3_5_moe": hybrids.qwen_delta,
    "qwen3_5_moe_text": hybrids.qwen_delta,
    "qwen3_5_text": hybrids.qwen_delta,
    "qwen3_next": hybrids.qwen_delta,
}
"""A closed list: a model type that is not here may keep its cache in a way nobody has read."""
FP8_BITS, FP4_BITS = 8, 4
_GEMMA3 = Defaults(heads=8, kv_heads=4, head_size=256, window=4096)
_OFF = Defaults(slides=False)
DEFAULTS: dict[str, Defaults] = {
    "gemma2": Defaults(window=4096),
    "gemma3_text": _GEMMA3,
    "gpt_oss": Defaults(kv_heads=8, head_size=64, window=128),
    **dict.fromkeys((name for name in PLAIN.split() if name.startswith("qwen")), _OFF),
}
"""What the config classes of Transformers supply; published files of these types lean on them."""


def parse(text: str, overrides: Mapping[str, object] | None = None) -> ModelConfig:
    """
    Return what a config.json says of its KV cache.

    ``text`` is the file's text, ``overrides`` what ``--hf-overrides`` puts over it. Raise LawError, naming the key, for
    what is no JSON object, lacks a key, has one of a wrong type or size, is overridden in a way that is not known, or
    is of an architecture whose cache is not known here.
    """
    top = _top(text)
    if overrides:
        top = Keys(overridden(top.values, overrides))
    section = _language_model(top)
    kind = section.text("model_type") or top.text("model_type")
    architecture = _architecture(top)
    if kind is None:
        raise LawError("config.json: model_type is missing")
    family = FAMILIES.get(kind)
    # DeepSeek V4 has groups of compressed caches of its own under the same key names.
    if family is None or section.values.get("compress_ratios") is not None:
        raise LawError(f"config.json: the KV cache of {architecture or kind} (model_type {kind}) is not known")
    defaults = DEFAULTS.get(kind, Defaults())
    own = family(section, kind, defaults)
    return ModelConfig(
        architecture=architecture or kind,
        model_type=kind,
        layers=own,
        draft_layers=_draft(section, kind, defaults, own),
        dtype=_dtype(section) or _dtype(top),
        kv_dtype=_kv_dtype(section) or _kv_dtype(top),
        max_model_len=section.maybe("max_position_embeddings", "n_positions", "max_sequence_length"),
        state_dtype=section.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
        chunk_size=section.maybe("mamba_chunk_size", "chunk_size"),
        query_heads=section.maybe("num_attention_heads", "n_head", "num_heads"),
    )


def _top(text: str) -> Keys:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LawError(f"config.json: not JSON: {str(error)[:160]}") from error
    if not isinstance(value, dict):
        raise LawError("config.json: not a JSON object")
    return Keys(value)


def _language_model(top: Keys) -> Keys:
    """Return the object that describes the language model: nested in a multimodal model, else the file itself."""
    outer = top.nested("thinker_config") or top
    return next((inner for name in NESTED if (inner := outer.nested(name)) is not None), outer)


def _architecture(top: Keys) -> str:
    value = top.values.get("architectures")
    if value is None:
        return ""
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise LawError(f"config.json: architectures must be a list of names, not {repr(value)[:60]}")
    return value[0]


def _dtype(keys: Keys) -> str | None:
    name = keys.text("dtype", "torch_dtype")
    return None if name is None else name.removeprefix("torch.")


def _kv_dtype(keys: Keys) -> str | None:
    """
    Return the KV cache type the checkpoint was quantized for, by the engine's name.

    Source: vLLM 0.19 to 0.32 ``utils/torch_utils.py`` ``get_kv_cache_quant_algo_string`` (ModelOpt), and
    ``layers/attention/attention.py``, where an FP8 ``kv_cache_scheme`` of compressed-tensors is taken.
    """
    config = keys.nested("quantization_config")
    if config is None:
        return None
    inner = config.nested("quantization") or config
    name = inner.values.get("kv_cache_quant_algo") or config.values.get("kv_cache_quant_algo")
    if isinstance(name, str):
        return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(name.lower())
    scheme = inner.values.get("kv_cache_scheme") or config.values.get("kv_cache_scheme")
    if not isinstance(scheme, dict) or scheme.get("type") != "float":
        return None
    bits = scheme.get("num_bits")
    return "fp8" if bits == FP8_BITS else "nvfp4" if bits == FP4_BITS else None


def _draft(keys: Keys, kind: str, defaults: Defaults, own: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """
    Return the multi-token-prediction layers of the checkpoint: each attends as the model's attention layers do.

    Source: vLLM 0.19 to 0.32 ``models/deepseek_mtp.py``, ``qwen3_next_mtp.py`` (one where the file does not say),
    ``qwen3_5_mtp.py`` and the convertor's ``get_num_hidden_layers``.
    """
    if kind == "qwen3_next":
        number = keys.whole("num_nextn_predict_layers", default=1)
    elif kind.startswith("qwen3_5"):
        number = keys.whole("mtp_num_hidden_layers", default=0)
    elif kind in (*LATENT.split(), "glm4_moe"):
        number = keys.whole("num_nextn_predict_layers", default=0)
    else:
        return ()
    if number > len(own):
        raise LawError(f"config.json: {keys.where}{number} prediction layers for {len(own)} layers")
    layer: Layer = own[-1] if kind in LATENT.split() else (layers.attention(keys, kind, defaults),)
    return (layer,) * number
