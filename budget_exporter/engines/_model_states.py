"""
The recurrent states of Mamba, gated delta net and short-convolution layers, and the models that mix them in.

Source: vLLM 0.10.2 to 0.32 ``layers/mamba/mamba_utils.py`` ``MambaStateShapeCalculator`` and each model's
``get_mamba_state_shape_from_config``.
"""

from __future__ import annotations

from budget_exporter.engines._model_keys import Keys
from budget_exporter.facts.model import State

__all__ = ["gated_delta_net", "mamba1", "mamba2", "short_conv"]

Names = tuple[str, ...]


def gated_delta_net(keys: Keys) -> State:
    """Return the state of a gated delta net: keys twice and values through the convolution, a matrix a value head."""
    key_heads, value_heads = keys.count("linear_num_key_heads"), keys.count("linear_num_value_heads")
    key, value = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    return State(
        kind="gdn",
        channels=2 * key * key_heads + value * value_heads,
        kernel=keys.count("linear_conv_kernel_dim"),
        elements=value_heads * value * key,
        heads=value_heads,
    )


def mamba2(
    keys: Keys,
    *,
    channels: int,
    heads: Names,
    head_size: Names,
    size: Names,
    groups: Names,
    kernel: Names,
) -> State:
    """Return the state of a Mamba 2 layer; the names of its keys differ from family to family."""
    number, state = keys.count(*heads), keys.count(*size)
    return State(
        kind="mamba2",
        channels=channels,
        kernel=keys.count(*kernel),
        elements=number * keys.count(*head_size) * state,
        heads=number,
        groups=keys.count(*groups),
        group_size=state,
    )


def mamba1(keys: Keys, *, channels: int, size: Names, kernel: Names) -> State:
    """Return the state of a Mamba 1 layer of ``channels`` channels."""
    return State(
        kind="mamba1",
        channels=channels,
        kernel=keys.count(*kernel),
        elements=channels * keys.count(*size),
        heads=channels,
    )


def short_conv(keys: Keys) -> State:
    """Return what LFM2's short convolution keeps: only its last inputs."""
    channels = keys.count("conv_dim", "hidden_size")
    return State(kind="short_conv", channels=channels, kernel=keys.count("conv_L_cache"), heads=channels)
