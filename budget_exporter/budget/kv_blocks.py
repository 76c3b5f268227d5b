"""
From bytes of KV pool to blocks, tokens and requests, as each version of the engine computes and prints them.

    blocks       = the least over ranks of pool // bytes a block, or --num-gpu-blocks-override
    concurrency  = blocks / blocks of one request of max_model_len                      0.9.1 on; tokens / length before
    tokens       = blocks // groups x smallest block size x context parallel            up to 0.20.0
    tokens       = whole part of concurrency x max_model_len                            from 0.20.1

Block 0 stands for nothing and is never handed out. Source: vLLM 0.8.5 to 0.32 ``v1/core/kv_cache_utils.py``
(``get_num_blocks``, ``get_max_concurrency_for_kv_cache_config``, ``_report_kv_cache_config``,
``get_kv_cache_capacity``, ``_auto_fit_max_model_len``).
"""

from __future__ import annotations

from collections.abc import Sequence

from budget_exporter.budget.kv_geometry import KvGeometry
from budget_exporter.budget.kv_groups import Group
from budget_exporter.budget.kv_states import block_of_state, request_blocks
from budget_exporter.errors import LawError

__all__ = ["blocks", "concurrency", "longest", "metric_blocks", "needed", "tokens", "usable"]


def blocks(geometry: KvGeometry, pools: Sequence[int]) -> int:
    """
    Return the blocks every rank gets of ``pools``, in bytes.

    ``pools`` has one size for all ranks, or one a rank in the engine's order (pipeline stage by stage). A pool that is
    not there gives none. Raise LawError for another number of sizes.
    """
    tensor = geometry.settings.tensor
    ranks = tensor * len(geometry.stages)
    if len(pools) not in (1, ranks):
        raise LawError(f"{len(pools)} KV pools for {ranks} ranks")
    if geometry.settings.blocks_override is not None:
        return geometry.settings.blocks_override
    sizes = list(pools) * (ranks // len(pools))
    counts = [
        max(0, size) // geometry.stages[rank // tensor]
        for rank, size in enumerate(sizes)
        if geometry.stages[rank // tensor]
    ]
    # A model without any cache has the one block that stands for nothing.
    return min(counts, default=1)


def usable(number: int) -> int:
    """Return the blocks requests can have of ``number``: all but the null block."""
    return max(0, number - 1)


def metric_blocks(geometry: KvGeometry, number: int) -> int:
    """Return what ``vllm:cache_config_info`` shows as num_gpu_blocks: the sum over data-parallel replicas (0.9.2)."""
    return number * geometry.settings.replicas if geometry.version >= (0, 9, 2) else number


def needed(geometry: KvGeometry, length: int) -> int | None:
    """
    Return the blocks one request of ``length`` tokens holds at most.

    None where layers with a window need the size of a batch, and that is unknown. Raise LawError for a length below 1.
    """
    if length < 1:
        raise LawError(f"max_model_len must be at least 1, not {length}")
    found = [_request(geometry, group, length) for group in geometry.groups]
    known = [number for number in found if number is not None]
    return sum(known) if len(known) == len(found) else None


def concurrency(geometry: KvGeometry, number: int, length: int) -> float | None:
    """Return how many requests of ``length`` tokens ``number`` blocks hold; None where that is unknown."""
    request = needed(geometry, length)
    if not request:
        return None
    if geometry.version < (0, 9, 1):
        return _slots(geometry, number, length) / length
    return number / request


def tokens(geometry: KvGeometry, number: int, length: int) -> int | None:
    """Return the tokens the engine prints as its KV cache size for ``number`` blocks; None where that is unknown."""
    if not geometry.groups:
        return None
    if geometry.version < (0, 20, 1):
        return _slots(geometry, number, length)
    requests = concurrency(geometry, number, length)
    return None if requests is None else int(requests * length)


def longest(geometry: KvGeometry, number: int, limit: int) -> int | None:
    """
    Return the longest request, up to ``limit`` tokens, that ``number`` blocks serve: what the engine fits ``auto`` to.

    0 where not even one token fits, None where that is unknown. The null block is set aside from 0.29 on.
    """
    room = usable(number) if geometry.version >= (0, 29) else number
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        request = needed(geometry, middle)
        if request is None:
            return None
        low, high = (middle, high) if request <= room else (low, middle - 1)
    return low


def _slots(geometry: KvGeometry, number: int, length: int) -> int:
    """Return the token slots of ``number`` blocks, shared by all groups, as versions up to 0.20.0 print them."""
    smallest = min(_block(geometry, group, length) for group in geometry.groups)
    return number // len(geometry.groups) * smallest * geometry.context_parallel


def _block(geometry: KvGeometry, group: Group, length: int) -> int:
    """Return the tokens a block of the group stands for."""
    if group.spec.kind != "state":
        return group.spec.block_size
    return block_of_state(geometry.settings, geometry.mode, group.spec.block_size, length)


def _request(geometry: KvGeometry, group: Group, length: int) -> int | None:
    """
    Return the blocks one request holds of one group.

    Whole layers keep every token; sliding ones the window and the tokens in flight, and a block more, since a window
    may begin inside one; chunked ones a chunk and the tokens in flight.
    """
    spec = group.spec
    if spec.kind == "state":
        block = _block(geometry, group, length)
        return request_blocks(geometry.version, geometry.mode, geometry.state_kind, geometry.drafts, block, length)
    if spec.kind not in ("sliding", "chunked"):
        share = -(-length // geometry.context_parallel)
        return -(-share // spec.block_size)
    reach, more = (spec.reach - 1, 1) if spec.kind == "sliding" else (spec.reach, 0)
    # Where the number of batches in flight is not certain, the answer may still be.
    counts = {-(-min(reach + flight, length) // spec.block_size) + more for flight in geometry.in_flight}
    if not geometry.in_flight and reach >= length:
        counts = {-(-length // spec.block_size) + more}
    return counts.pop() if len(counts) == 1 else None
