"""
Put ``--hf-overrides`` over a config.json as the engine does.

A value takes the place of a key's own; an object goes into the nested config of that name. Source: vLLM 0.12 to 0.32
``config/model.py`` (``_apply_dict_overrides``) and ``transformers_utils/config.py`` ``get_config``.
"""

from __future__ import annotations

from collections.abc import Mapping

from budget_exporter.errors import LawError

__all__ = ["NESTED", "overridden"]

NESTED = ("text_config", "llm_config", "language_config")
"""Where a multimodal model keeps its language model; ``thinker_config`` holds one of these in turn."""
_HARMLESS = ("architectures", "max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta")
"""Keys that change no KV cache where a file lacks them."""


def overridden(values: Mapping[str, object], overrides: Mapping[str, object], where: str = "") -> dict[str, object]:
    """
    Return ``values`` with ``overrides`` put over them; dots in a key lead into a nested config.

    Raise LawError for a key that the file does not have, unless it changes no KV cache: the file may say the same under
    another name.
    """
    result = dict(values)
    for path, value in overrides.items():
        key, dot, rest = path.partition(".")
        inner, name = result.get(key), f"{where}{key}"
        nested = value if not dot else {rest: value}
        if key in (*NESTED, "thinker_config") and isinstance(inner, dict) and isinstance(nested, dict):
            result[key] = overridden(inner, nested, f"{name}.")
        elif dot:
            raise LawError(f"--hf-overrides {name[:60]}: what its parts change is not known")
        elif key in result or key in _HARMLESS:
            result[key] = value
        else:
            raise LawError(f"--hf-overrides {name[:60]}: not in config.json, so what it changes is not known")
    return result
