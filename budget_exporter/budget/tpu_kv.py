"""
How much KV memory the workers on TPUs take. All sizes in bytes.

Source: vLLM 0.8.5 to 0.9.2 ``worker/tpu_worker.py`` (V0), 0.8.5 to 0.12 ``v1/worker/tpu_worker.py`` (torch_xla);
tpu-inference 0.11.1 to 0.32 ``worker/tpu_worker.py``, and tpu-commons before its pull request 734.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from budget_exporter.errors import LawError

__all__ = [
    "pad_pool",
    "profiled",
    "staging",
    "torch_xla",
    "tpu_inference",
    "tpu_inference_before",
    "v0_blocks",
]

LANES = 128
"""To a multiple of this many the head's size is padded."""
PROFILED = 1.02
"""What is in use after the profile run counts as this many times as much."""


def tpu_inference(limits: Sequence[int], used: Sequence[int], utilization: float) -> int:
    """
    Return the KV pool of all local devices together, signed: at or below 0 the engine refuses to start.

    ``limits`` and ``used`` are the devices' ``bytes_limit`` and ``bytes_in_use``.
    """
    return int(sum(limits) * utilization - sum(used))


def tpu_inference_before(limits: Sequence[int], used: Sequence[int], utilization: float) -> int:
    """Return the same as tpu-commons computed it before pull request 734: a share of what is free."""
    return int((sum(limits) - sum(used)) * utilization)


def staging(blocks: int, layers: int, page: int) -> int:
    """
    Return what an offload connector takes of tpu-inference's pool: ``blocks`` pages of every layer.

    ``blocks`` is TPU_OFFLOAD_NUM_STAGING_BLOCKS. Source: tpu-inference 0.20 to 0.32.
    """
    return blocks * layers * page


def profiled(used: int) -> float:
    """Return what torch_xla's V1 worker takes for weights and activations: what is in use and 2 % more."""
    return used * PROFILED


def torch_xla(size: int, used: int, utilization: float, head_size: int = LANES) -> int:
    """
    Return the KV pool of one chip under torch_xla's V1 worker.

    ``head_size`` matters from 0.9.2 on. Raise LawError for one that is not above 0.
    """
    return pad_pool(max(int(size * utilization) - profiled(used), 0), head_size)


def pad_pool(pool: float, head_size: int) -> int:
    """
    Return the part of a pool that is reported for heads which are padded, so that what is padded fits: all at 128.

    Raise LawError for a head size that is not above 0. Source: vLLM 0.9.2 to 0.12.
    """
    if head_size <= 0:
        raise LawError(f"head_size must be above 0, not {head_size}")
    padded = math.ceil(Fraction(head_size, LANES)) * LANES
    return int(pool * head_size // padded)


def v0_blocks(limit: int, peak: int, utilization: float, block_bytes: int) -> int:
    """Return the KV blocks of V0's worker, a multiple of 8; raise LawError for a block that is not above 0 bytes."""
    if block_bytes <= 0:
        raise LawError(f"block_bytes must be above 0, not {block_bytes}")
    return max(int(limit * utilization) - peak, 0) // block_bytes // 8 * 8
