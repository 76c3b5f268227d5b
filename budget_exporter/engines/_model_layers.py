"""
Which cache each layer of a model keeps, by the family of the model: one function a family.

Sources: the models of vLLM 0.10.2 to 0.32 (``model_executor/models``), ``transformers_utils/
model_arch_config_convertor.py`` for heads and head sizes, and the defaults of Transformers' own config classes for keys
that a config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from budget_exporter.engines._model_keys import Keys
from budget_exporter.errors import LawError
from budget_exporter.facts.model import Attention, Index, Latent, Layer

__all__ = ["Defaults", "Family", "attention", "chunked", "gemma3n", "gemma4", "gpt_oss", "latent", "patterned", "plain"]

ALL_HEADS = ("baichuan", "bloom", "gpt2", "gpt_neox", "gptj", "granite", "llama", "opt", "persimmon", "phi", "phi3")
"""Model types whose config class takes the number of attention heads where num_key_value_heads is absent."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model type's config class supplies for keys that are absent; None where it supplies nothing usable."""

    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    window: int | None = None
    slides: bool = True
    """Whether ``use_sliding_window`` is taken as true where it is absent."""


def attention(
    keys: Keys, model_type: str, defaults: Defaults, window: int | None = None, chunk: int | None = None
) -> Attention:
    """Return the keys and values of one layer: the number of heads, and the size of one."""
    size = keys.maybe("head_dim", "hidden_size_per_head", "attention_head_dim") or defaults.head_size
    if size is None:
        heads = keys.count("num_attention_heads", "n_head", "num_heads", default=defaults.heads)
        size = keys.count("hidden_size", "n_embd", "d_model") // heads
        if not size:
            raise LawError(f"config.json: {keys.where}hidden_size is less than the {heads} attention heads")
    return Attention(kv_heads(keys, model_type, defaults), size, size, window, chunk)


def kv_heads(keys: Keys, model_type: str, defaults: Defaults) -> int:
    """
    Return the model's number of key-value heads.

    Source: ``get_total_num_kv_heads`` of the convertor above: GPT-BigCode and the older Falcon with ``multi_query``
    have one; a config class that has a default of its own is not guessed at.
    """
    if not keys.flag("new_decoder_architecture", default=False) and keys.flag("multi_query", default=False):
        return 1
    names = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
    found = keys.maybe(*names) or defaults.kv_heads
    if found is not None:
        return found
    if model_type not in ALL_HEADS:
        raise LawError(f"config.json: {keys.where}num_key_value_heads is missing")
    return keys.count("num_attention_heads", "n_head", "num_heads", default=defaults.heads)


def plain(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """
    Return layers that all keep keys and values, with a window where ``layer_types`` or ``sliding_window`` says so.

    Without ``layer_types`` the model's window holds for every layer. ``use_sliding_window`` false switches it off.
    """
    number = keys.layers()
    types = keys.names("layer_types", number)
    # Some checkpoints write 0 for "none".
    off = keys.values.get("sliding_window") in (0, None)
    window = None if off else keys.maybe("sliding_window")
    if not keys.flag("use_sliding_window", default=defaults.slides):
        window = None
    if types is not None and len(set(types)) > 1:
        return _by_type(keys, model_type, defaults, types, window)
    if types is not None and set(types) == {"full_attention"} and window is not None:
        raise LawError(f"config.json: {keys.where}sliding_window is {window}, but every layer attends to all")
    if window is not None and keys.values.get("max_window_layers") not in (None, 0) and types is None:
        raise LawError(f"config.json: {keys.where}max_window_layers: not known which layers slide")
    return ((attention(keys, model_type, defaults, window),),) * number


def _by_type(
    keys: Keys, model_type: str, defaults: Defaults, types: tuple[str, ...], window: int | None
) -> tuple[Layer, ...]:
    whole: Layer = (attention(keys, model_type, defaults),)
    known: dict[str, Layer] = {"full_attention": whole, "attention": whole}
    if window is not None:
        known["sliding_attention"] = (attention(keys, model_type, defaults, window),)
    return tuple(_known(keys, known, kind) for kind in types)


def _known(keys: Keys, known: dict[str, Layer], kind: str) -> Layer:
    layer = known.get(kind)
    if layer is None:
        raise LawError(f"config.json: {keys.where}layer_types: {kind[:60]!r} is not known here")
    return layer


Family = Callable[[Keys, str, Defaults], tuple[Layer, ...]]
"""From a config's keys, its model type and that type's defaults to what each layer keeps."""


def patterned(period: int) -> Family:
    """
    Return the family whose layers slide but for the last of every ``period``.

    2 for Gemma 2, 6 for Gemma 3; ``layer_types`` and ``sliding_window_pattern`` win.
    """

    def layers(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
        number = keys.layers()
        window = keys.count("sliding_window", default=defaults.window)
        types = keys.names("layer_types", number)
        if types is None:
            every = keys.count("sliding_window_pattern", default=period)
            types = tuple("sliding_attention" if (index + 1) % every else "full_attention" for index in range(number))
        return _by_type(keys, model_type, defaults, types, window)

    return layers


def gpt_oss(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return the layers of gpt-oss: every second slides, the first does; the engine does not ask ``layer_types``."""
    window = keys.count("sliding_window", default=defaults.window)
    sliding: Layer = (attention(keys, model_type, defaults, window),)
    whole: Layer = (attention(keys, model_type, defaults),)
    return tuple(whole if index % 2 else sliding for index in range(keys.layers()))


def gemma3n(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Gemma 3n's layers: the last ``num_kv_shared_layers`` read another layer's cache and keep none."""
    layers = patterned(5)(keys, model_type, defaults)
    return _without_shared(keys, layers, keys.whole("num_kv_shared_layers"))


def gemma4(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Gemma 4's layers: those that attend to all have heads of another size, and other numbers of them."""
    number = keys.layers()
    types = keys.names("layer_types", number)
    if types is None:
        raise LawError(f"config.json: {keys.where}layer_types is missing")
    sliding = attention(keys, model_type, defaults, keys.count("sliding_window"))
    size = keys.count("global_head_dim")
    heads = sliding.kv_heads
    if keys.flag("attention_k_eq_v", default=False):
        heads = keys.count("num_global_key_value_heads", default=heads)
    known: dict[str, Layer] = {
        "sliding_attention": (sliding,),
        "full_attention": (Attention(heads, size, size),),
    }
    layers = tuple(_known(keys, known, kind) for kind in types)
    return _without_shared(keys, layers, keys.whole("num_kv_shared_layers", default=0))


def _without_shared(keys: Keys, layers: tuple[Layer, ...], shared: int) -> tuple[Layer, ...]:
    if shared > len(layers):
        raise LawError(f"config.json: {keys.where}num_kv_shared_layers is {shared}, of {len(layers)} layers")
    return layers[: len(layers) - shared] + ((),) * shared


def chunked(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """
    Return Llama 4's layers: chunked where they have rotary positions, all of the context where they have none.

    ``no_rope_layers`` holds 0 for a layer without; absent or empty, every ``no_rope_layer_interval``-th (4) has none.
    """
    number = keys.layers()
    marks = keys.numbers("no_rope_layers")
    if not marks:
        every = keys.count("no_rope_layer_interval", default=4)
        marks = tuple(int((index + 1) % every != 0) for index in range(number))
    if len(marks) != number:
        raise LawError(f"config.json: {keys.where}no_rope_layers marks {len(marks)} of {number} layers")
    whole: Layer = (attention(keys, model_type, defaults),)
    size = keys.maybe("attention_chunk_size")
    local: Layer = whole if size is None else (attention(keys, model_type, defaults, chunk=size),)
    return tuple(local if mark else whole for mark in marks)


def latent(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """
    Return the layers of a model with multi-head latent attention, and their indexer where it is sparse.

    The indexer keeps ``index_head_dim`` bytes and a float of scale for each 128 of them. Source: vLLM 0.11 to 0.32
    ``models/deepseek_v2.py`` ``Indexer``.
    """
    del model_type, defaults
    layer: Layer = (Latent(keys.count("kv_lora_rank") + keys.count("qk_rope_head_dim")),)
    if keys.maybe("index_topk") is not None:
        size = keys.count("index_head_dim")
        layer = (*layer, Index(size + size // 128 * 4))
    return (layer,) * keys.layers()
