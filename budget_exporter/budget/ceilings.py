"""Ceilings that no flag moves; each answer quotes the rule and its numbers."""

from __future__ import annotations

import math

from budget_exporter.units import gib_text

__all__ = ["data_parallel_refusal", "decode_context_parallel_refusal", "longest_window"]


def longest_window(free: int, windows: int, bytes_per_token: float) -> int:
    """
    Return the longest context of which ``windows`` fit ``free`` bytes at ``bytes_per_token``.

    Six windows in 9.18 GiB at 7891.8 bytes a token: 208168 tokens.
    """
    return math.floor(free / (windows * bytes_per_token))


def decode_context_parallel_refusal(
    decode_context_parallel_size: int, tensor_parallel_size: int, kv_heads: int
) -> str | None:
    """
    Return why vLLM refuses decode context parallelism, None where it does not.

    It splits the KV of one head over ranks that tensor parallelism left over, so it needs more ranks than KV heads.
    Source: vLLM's check for grouped-query attention, quoted by operators.
    """
    if decode_context_parallel_size <= 1 or tensor_parallel_size > kv_heads:
        return None
    return (
        f"decode context parallelism of {decode_context_parallel_size} needs a tensor parallel size above the model's "
        f"{kv_heads} KV heads; it is {tensor_parallel_size}"
    )


def data_parallel_refusal(data_parallel_size: int, weights: int, size: int) -> str | None:
    """
    Return why data parallelism cannot work, None where it may.

    Each replica holds all the model's weights (bytes on one device), so weights above the device's size rule it out.
    """
    if data_parallel_size <= 1 or weights <= size:
        return None
    return (
        f"data parallelism of {data_parallel_size} needs a full copy of the model's {gib_text(weights)} on every "
        f"device of {gib_text(size)}"
    )
