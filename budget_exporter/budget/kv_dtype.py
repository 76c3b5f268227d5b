"""
Which type the KV cache has: the flag, what the checkpoint was made for, or the model's own type.

Source: vLLM 0.11 to 0.32 ``config/cache.py``, ``models/config.py`` (``DeepseekV32ForCausalLM``),
``layers/attention/attention.py``, ``utils/torch_utils.py`` ``resolve_kv_cache_dtype_string``, ``config/model.py``
``_resolve_auto_dtype``.
"""

from __future__ import annotations

from budget_exporter.budget.kv_settings import Settings
from budget_exporter.budget.kv_spec import ELEMENT_BYTES
from budget_exporter.budget.laws import Version
from budget_exporter.errors import LawError
from budget_exporter.facts.model import Index, ModelConfig

__all__ = ["kv_dtype", "model_dtype"]


def model_dtype(config: ModelConfig, settings: Settings) -> str:
    """
    Return the type the model runs in: the flag, else the file's.

    ``auto`` never runs in float32: it is taken down to a type of two bytes, and so is any other the device has not.
    """
    if settings.dtype is not None:
        return settings.dtype
    return config.dtype if config.dtype in ("float16", "bfloat16") else "bfloat16"


def kv_dtype(config: ModelConfig, settings: Settings, version: Version) -> str:
    """
    Return the KV cache's type, ``auto`` resolved.

    ``auto`` is the model's type; from 0.19 what the checkpoint was quantized for, where it says so. A sparse model's
    fp8 is fp8_ds_mla up to 0.13, its ``auto`` in 0.11.0 too. Raise LawError where only the engine can tell.
    """
    name = settings.kv_dtype
    sparse = any(isinstance(cache, Index) for layer in config.layers for cache in layer)
    if sparse and name != "fp8_ds_mla":
        return _sparse(config, settings, version)
    if name == "auto" and config.kv_dtype is not None and version >= (0, 14):
        if version < (0, 19):
            raise LawError("kv_cache_dtype auto: whether the checkpoint's own is taken is not known before 0.19")
        return config.kv_dtype
    if name == "auto":
        return model_dtype(config, settings)
    if name == "float32":
        raise LawError("kv_cache_dtype 'float32' is not known")
    return name


def _sparse(config: ModelConfig, settings: Settings, version: Version) -> str:
    name = settings.kv_dtype
    if name.startswith("fp8") or (name == "auto" and version < (0, 11, 1)):
        if version >= (0, 14):
            raise LawError(f"kv_cache_dtype {name!r} of a sparse model: its layout depends on the attention backend")
        return "fp8_ds_mla"
    if name in ("auto", *ELEMENT_BYTES):
        return model_dtype(config, settings)
    return name
