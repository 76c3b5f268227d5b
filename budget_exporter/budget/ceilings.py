"""Ceilings that no flag moves; each answer quotes the rule and its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.checks import LARGEST_COUNT, LARGEST_SIZE, number
from budget_exporter.budget.experts import host_room
from budget_exporter.units import gib_text

__all__ = [
    "Ceiling",
    "Verdict",
    "data_parallel",
    "decode_context_parallel",
    "expert_parallel",
    "host_memory",
    "longest_window",
    "mamba_blocks",
    "windows",
]

Verdict = Literal["refused", "limited", "allowed", "unknown"]
"""``refused``: the engine or the device says no. ``limited``: it starts, but not as the flags read."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one combination of flags comes up against."""

    name: str
    verdict: Verdict
    rule: str
    """The rule in one sentence."""
    numbers: str
    """The figures that were held against it, and what they give."""
    most: int | None = None
    """Largest value of the flag in question that the rule admits; None where it sets none."""

    @property
    def sentence(self) -> str:
        """Return rule and numbers together."""
        return f"{self.rule}: {self.numbers}"


def longest_window(free: int, windows: int, bytes_per_token: float) -> int:
    """
    Return the longest context of which ``windows`` fit ``free`` bytes at ``bytes_per_token``.

    Six windows in 9.18 GiB at 7891.8 bytes a token: 208168 tokens. Raise LawError for a count or price that cannot be.
    """
    number("free", free, least=0, most=LARGEST_SIZE)
    number("windows", windows, above=0, most=LARGEST_COUNT)
    number("bytes_per_token", bytes_per_token, above=0, most=LARGEST_SIZE)
    return math.floor(free / (windows * bytes_per_token))


def decode_context_parallel(
    size: int, tensor_parallel_size: int, kv_heads: int | None, query_heads: int | None = None, *, mla: bool = False
) -> Ceiling:
    """
    Return whether decode context parallelism of ``size`` can work; the heads are those of the whole model.

    It splits the KV of one head over ranks that tensor parallelism left over, so that with grouped heads there must be
    more ranks than KV heads; with latent attention (``mla``) it needs only divide the ranks. Source: vLLM 0.10.2 to
    0.33 ``config/model.py`` ``verify_with_parallel_config`` and ``config/parallel.py``.
    """
    name = "decode_context_parallel"
    _counts(size=size, tensor_parallel_size=tensor_parallel_size, kv_heads=kv_heads, query_heads=query_heads)
    if size == 1:
        return Ceiling(name, "allowed", "it is off", "size 1", 1)
    if not mla and kv_heads is None:
        return Ceiling(name, "unknown", "with grouped heads it depends on the KV heads", "they are not known")
    numbers, most = f"tensor parallel size {tensor_parallel_size}, asked for {size}", tensor_parallel_size
    if not mla and kv_heads is not None:
        numbers = f"tensor parallel size {tensor_parallel_size}, {kv_heads} KV heads, asked for {size}"
        most = max(1, tensor_parallel_size // kv_heads)
        rule = _grouped(size, tensor_parallel_size, kv_heads, query_heads)
        if rule:
            return Ceiling(name, "refused", rule, numbers, most)
    rule = "the tensor parallel size must be a multiple of it"
    return Ceiling(name, "refused" if tensor_parallel_size % size else "allowed", rule, numbers, most)


def _grouped(size: int, ranks: int, kv_heads: int, query_heads: int | None) -> str:
    """Return the rule for grouped heads that is broken, empty where none is."""
    if ranks <= kv_heads:
        return "with grouped heads the tensor parallel size must be above the model's KV heads"
    if size > ranks // kv_heads:
        return f"it must not exceed tensor parallel size // KV heads = {ranks // kv_heads}"
    if query_heads is not None and (query_heads // kv_heads) % size:
        return f"it must divide the {query_heads // kv_heads} query heads of each KV head"
    return ""


def expert_parallel(*, enabled: bool, expert_offload: bool) -> Ceiling:
    """
    Return what expert parallelism does to expert offload.

    Source: operators of the expert-offload fork: ``--enable-expert-parallel`` exists there, but an all-to-all over PCIe
    in every layer takes the place of the fork's own gather from host memory.
    """
    rule = "expert parallelism takes the place of the offload's gather, by an all-to-all over PCIe in every layer"
    both = enabled and expert_offload
    asked = f"expert parallelism {'on' if enabled else 'off'}, expert offload {'on' if expert_offload else 'off'}"
    return Ceiling("expert_parallel", "limited" if both else "allowed", rule, asked)


def data_parallel(size: int, weights: int | None, device: int, tensor_parallel_size: int = 1) -> Ceiling:
    """
    Return whether ``size`` replicas can work: each holds all of the model's ``weights`` (bytes).

    They are spread over a replica's ``tensor_parallel_size`` devices of ``device`` bytes each.
    """
    _counts(size=size, tensor_parallel_size=tensor_parallel_size)
    number("weights", weights, least=0, most=LARGEST_SIZE)
    number("device", device, above=0, most=LARGEST_SIZE)
    rule = "every replica holds a full copy of the model"
    if weights is None:
        return Ceiling("data_parallel", "unknown", rule, f"{size} replicas, the size of the weights is not known")
    room = device * tensor_parallel_size
    numbers = f"{size} replicas of {gib_text(weights)} on {tensor_parallel_size} x {gib_text(device)}"
    refused = size > 1 and weights > room
    return Ceiling("data_parallel", "refused" if refused else "allowed", rule, numbers, 1 if weights > room else None)


def windows(max_num_seqs: int, max_model_len: int, pool_tokens: int | None) -> Ceiling:
    """
    Return how many full windows the KV pool holds, against the sequences that are admitted.

    Below one the engine refuses to start; below ``max_num_seqs`` it starts, and requests wait or are preempted. Source:
    vLLM ``v1/core/kv_cache_utils.py`` (``check_enough_kv_cache_memory``) and the scheduler.
    """
    _counts(max_num_seqs=max_num_seqs, max_model_len=max_model_len)
    number("pool_tokens", pool_tokens, least=0, most=LARGEST_COUNT)
    rule = "a sequence at its full length takes max_model_len tokens of the pool"
    if pool_tokens is None:
        return Ceiling("windows", "unknown", rule, "the pool is not known")
    most = pool_tokens // max_model_len
    numbers = f"{pool_tokens} tokens hold {most} of {max_num_seqs} windows of {max_model_len}"
    verdict: Verdict = "refused" if most == 0 else "limited" if most < max_num_seqs else "allowed"
    return Ceiling("windows", verdict, rule, numbers, most)


def mamba_blocks(max_num_seqs: int, blocks: int | None, *, graphs: bool = True) -> Ceiling:
    """
    Return whether a model with recurrent layers has a state block for every sequence.

    Checked before graphs are captured; without ``graphs`` sequences only wait. Source: vLLM 0.20 to 0.33
    ``config/compilation.py`` ``resolve_cudagraph_mode_and_sizes``.
    """
    _counts(max_num_seqs=max_num_seqs)
    number("blocks", blocks, least=0, most=LARGEST_COUNT)
    rule = "each decoding sequence takes one block of recurrent state"
    if blocks is None:
        return Ceiling("mamba_blocks", "unknown", rule, "the number of blocks is not known")
    short: Verdict = "refused" if graphs else "limited"
    numbers = f"max_num_seqs {max_num_seqs}, {blocks} blocks"
    return Ceiling("mamba_blocks", short if max_num_seqs > blocks else "allowed", rule, numbers, blocks)


def host_memory(memory: int, ranks: int, experts: int, table: int = 0) -> Ceiling:
    """
    Return whether host-backed experts and PLE table (bytes, all ranks together) fit a host of ``memory`` bytes.

    The engine's own sum: 90 % of it, less 7 GiB for each of ``ranks`` and 5 GiB for the engine.
    """
    number("memory", memory, above=0, most=LARGEST_SIZE)
    number("experts", experts, least=0, most=LARGEST_SIZE)
    number("table", table, least=0, most=LARGEST_SIZE)
    _counts(ranks=ranks)
    room = host_room(memory, ranks)
    rule = "experts and PLE table must fit 90 % of host memory less 7 GiB a rank and 5 GiB"
    numbers = (
        f"{gib_text(experts)} and {gib_text(table)} of {gib_text(room)}, with {gib_text(memory)} and {ranks} ranks"
    )
    return Ceiling("host_memory", "refused" if experts + table > room else "allowed", rule, numbers)


def _counts(**values: int | None) -> None:
    for name, value in values.items():
        number(name, value, above=0, most=LARGEST_COUNT)
