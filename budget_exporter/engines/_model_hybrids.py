"""
Which layers attend and which keep a recurrent state, for the families that mix both, and for those that only recur.

Sources: as ``_model_layers`` and ``_model_states``; layer orders from each config class (Transformers).
"""

from __future__ import annotations

from budget_exporter.engines._model_keys import Keys
from budget_exporter.engines._model_layers import Defaults, attention
from budget_exporter.engines._model_states import gated_delta_net, mamba1, mamba2, short_conv
from budget_exporter.errors import LawError
from budget_exporter.facts.model import Layer, State

__all__ = ["bamba", "falcon_h1", "granite_hybrid", "jamba", "lfm2", "mamba", "mamba_2", "nemotron_h", "qwen_delta"]


def qwen_delta(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return the layers of Qwen3-Next and Qwen3.5: gated delta nets but for every fourth, which attends."""
    number = keys.layers()
    types = keys.names("layer_types", number)
    if types is None:
        every = keys.count("full_attention_interval", default=4)
        types = tuple("linear_attention" if (index + 1) % every else "full_attention" for index in range(number))
    return _mixed(
        keys,
        types,
        {
            "linear_attention": (gated_delta_net(keys),),
            "full_attention": (attention(keys, model_type, defaults),),
        },
    )


def nemotron_h(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Nemotron-H's layers by its pattern: M is Mamba 2, * attends, - and E keep nothing."""
    state = mamba2(
        keys,
        channels=keys.count("mamba_num_heads") * keys.count("mamba_head_dim"),
        heads=("mamba_num_heads",),
        head_size=("mamba_head_dim",),
        size=("ssm_state_size",),
        groups=("n_groups",),
        kernel=("conv_kernel",),
    )
    known: dict[str, Layer] = {"mamba": (state,), "attention": (attention(keys, model_type, defaults),)}
    known |= {"mlp": (), "moe": ()}
    pattern = keys.text("hybrid_override_pattern")
    if pattern:
        words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
        return _mixed(keys, tuple(words.get(mark, mark) for mark in pattern), known, "hybrid_override_pattern")
    types = keys.names("layers_block_type", keys.layers())
    if types is None:
        raise LawError(f"config.json: {keys.where}hybrid_override_pattern is missing")
    return _mixed(keys, types, known, "layers_block_type")


def granite_hybrid(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return the layers of Granite 4's hybrids, named one by one."""
    types = keys.names("layer_types", keys.layers())
    if types is None:
        raise LawError(f"config.json: {keys.where}layer_types is missing")
    known: dict[str, Layer] = {"attention": (attention(keys, model_type, defaults),)}
    if "mamba" in types:
        known["mamba"] = (_mamba_d(keys),)
    return _mixed(keys, types, known)


def bamba(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Bamba's layers: those numbered in ``attn_layer_indices`` attend."""
    attends = keys.numbers("attn_layer_indices")
    if attends is None:
        raise LawError(f"config.json: {keys.where}attn_layer_indices is missing")
    state: Layer = (_mamba_d(keys),)
    whole: Layer = (attention(keys, model_type, defaults),)
    return tuple(whole if index in attends else state for index in range(keys.layers()))


def falcon_h1(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Falcon-H1's layers: each attends and recurs."""
    both: Layer = (_mamba_d(keys), attention(keys, model_type, defaults))
    return (both,) * keys.layers()


def jamba(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return Jamba's layers: Mamba 1, but one in ``attn_layer_period`` attends, from ``attn_layer_offset`` on."""
    period, offset = keys.count("attn_layer_period"), keys.whole("attn_layer_offset")
    channels = keys.count("mamba_expand") * keys.count("hidden_size")
    state: Layer = (mamba1(keys, channels=channels, size=("mamba_d_state",), kernel=("mamba_d_conv",)),)
    whole: Layer = (attention(keys, model_type, defaults),)
    return tuple(whole if index % period == offset else state for index in range(keys.layers()))


def mamba(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return the layers of a pure Mamba 1 model."""
    del model_type, defaults
    channels = keys.count("intermediate_size")
    return ((mamba1(keys, channels=channels, size=("state_size",), kernel=("conv_kernel",)),),) * keys.layers()


def mamba_2(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return the layers of a pure Mamba 2 model."""
    del model_type, defaults
    state = mamba2(
        keys,
        channels=keys.count("expand") * keys.count("hidden_size"),
        heads=("num_heads",),
        head_size=("head_dim",),
        size=("state_size",),
        groups=("n_groups",),
        kernel=("conv_kernel",),
    )
    return ((state,),) * keys.layers()


def lfm2(keys: Keys, model_type: str, defaults: Defaults) -> tuple[Layer, ...]:
    """Return LFM2's layers: short convolutions but for those that attend, by ``layer_types`` or by number."""
    number = keys.layers()
    types = keys.names("layer_types", number)
    if types is None:
        attends = keys.numbers("full_attn_idxs")
        if attends is None:
            raise LawError(f"config.json: {keys.where}layer_types is missing")
        types = tuple("full_attention" if index in attends else "conv" for index in range(number))
    return _mixed(
        keys, types, {"conv": (short_conv(keys),), "full_attention": (attention(keys, model_type, defaults),)}
    )


def _mamba_d(keys: Keys) -> State:
    """Return a Mamba 2 state by the key names that Bamba, Falcon-H1 and Granite share."""
    return mamba2(
        keys,
        channels=keys.maybe("mamba_d_ssm") or keys.count("mamba_expand") * keys.count("hidden_size"),
        heads=("mamba_n_heads",),
        head_size=("mamba_d_head",),
        size=("mamba_d_state",),
        groups=("mamba_n_groups",),
        kernel=("mamba_d_conv",),
    )


def _mixed(keys: Keys, types: tuple[str, ...], known: dict[str, Layer], name: str = "layer_types") -> tuple[Layer, ...]:
    strange = next((kind for kind in types if kind not in known), None)
    if strange is not None:
        raise LawError(f"config.json: {keys.where}{name}: {strange[:60]!r} is not known here")
    return tuple(known[kind] for kind in types)
