"""
The buckets of HabanaAI's fork, 1.16 to 1.22: every batch with every length, less what its release leaves out.

Source: ``warmup_buckets`` (1.17) and ``generate_{prompt,decode}_buckets`` of HabanaAI/vllm-fork 1.18 and of
vllm-hpu-extension as pinned by 1.19 to 1.22, each of them run for the figures of ``tests/budget/goldens``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from budget_exporter.budget.buckets import exponential, linear
from budget_exporter.budget.buckets.defaults import Ranges, contiguous
from budget_exporter.budget.buckets.exponential import limit
from budget_exporter.budget.buckets.releases import Bucket, Limited, Linear, Range, Release, Sizes, countable
from budget_exporter.errors import LawError

__all__ = ["decode", "prompt"]


def prompt(release: Release, ranges: Ranges, sizes: Sizes) -> tuple[list[Bucket], list[Bucket], bool]:
    """
    Return the prompt buckets in the engine's order, those over its token budget, and whether it ignores the budget.

    From 1.18 a bucket may hold at most ``max_num_batched_tokens`` tokens, from 1.22 with its context; where none would
    be left, all stay. Raise LawError where the engine refuses to start.
    """
    batches, lengths = (_values(spec, release, sizes) for spec in (ranges.batch, ranges.second))
    triples = release.fork_since(1, 22)
    countable(len(batches), len(lengths), len(lengths) if triples and sizes.prefix_caching else 1)
    if triples:
        found = [
            bucket
            for batch, query in itertools.product(batches, lengths)
            for bucket in _cached(batch, query, ranges, sizes)
        ]
    else:
        found = list(itertools.product(batches, lengths))
    if not found:
        raise LawError(f"no prompt bucket comes of {ranges.batch} and {ranges.second}: the engine ends with ValueError")
    if not release.fork_since(1, 18):
        return _ordered(found), [], False
    kept = [bucket for bucket in found if _within(bucket, ranges, sizes)]
    over = not kept
    kept = kept or found
    omitted = sorted(set(found) - set(kept))
    return (sorted(kept) if triples else _ordered(kept)), omitted, over


def decode(release: Release, ranges: Ranges, sizes: Sizes) -> list[Bucket]:
    """
    Return the decode buckets in the engine's order.

    To 1.17 batch with sequence. From 1.18 batch with blocks, cut at the number of blocks there are: 1.18 drops fewer
    blocks than sequences and stops above the blocks rounded up to the step; 1.19 stops at the blocks and takes them for
    the last value; 1.21 does so for contiguous attention, whose range then ends there; 1.21.2 drops fewer blocks than
    sequences again. Raise LawError for a size that is not known.
    """
    batches = _values(ranges.batch, release, sizes)
    countable(len(batches), len(_values(ranges.second, release, sizes)))
    if not release.fork_since(1, 18):
        return _ordered(itertools.product(batches, _values(ranges.second, release, sizes)))
    if isinstance(ranges.second, Limited):
        values = _values(ranges.second, release, sizes)
        found: list[Bucket] = list(itertools.product(batches, values))
    else:
        found = [(batch, blocks) for batch in batches for blocks in _blocks(batch, release, ranges.second, sizes)]
    if release.fork_since(1, 22):
        return sorted((batch, 1, blocks) for batch, blocks in found)
    return _ordered(found)


def _blocks(batch: int, release: Release, spec: Range, sizes: Sizes) -> list[int]:
    """Return the numbers of blocks that go with a batch, under the linear strategy."""
    physical = sizes.need("num_blocks")
    if not release.fork_since(1, 19):
        top = -(-physical // spec.step) * spec.step
        return [blocks for blocks in _values(spec, release, sizes) if batch <= blocks <= top]
    values = _stretched(release, spec, sizes, physical)
    if release.fork_since(1, 21, 2):
        values = [blocks for blocks in values if batch <= blocks]
    under = [blocks for blocks in values if blocks < physical]
    return under if len(under) == len(values) else [*under, physical]


def _stretched(release: Release, spec: Range, sizes: Sizes, physical: int) -> list[int]:
    own = not release.fork_since(1, 21) or "VLLM_DECODE_BLOCK_BUCKET_MAX" in sizes.environ
    if own or not contiguous(release, sizes):
        return _values(spec, release, sizes)
    values = _values(Linear(spec.low, spec.step, physical), release, sizes)
    return values if physical in values else [*values, physical]


def _cached(batch: int, query: int, ranges: Ranges, sizes: Sizes) -> list[Bucket]:
    """Return a prompt's buckets with the context that may already be cached, in blocks; 0 alone without a cache."""
    room = (ranges.second.high - query) // sizes.block_size if sizes.prefix_caching else 0
    if isinstance(ranges.second, Linear) or room <= 0:
        return [(batch, query, blocks) for blocks in range(max(0, room) + 1)]
    count = limit(room)
    spaced = [math.ceil(room ** ((1 / count) * i)) for i in range(1, count + 1)]
    return [(batch, query, blocks) for blocks in (0, *spaced)]


def _within(bucket: Bucket, ranges: Ranges, sizes: Sizes) -> bool:
    batched = sizes.need("max_num_batched_tokens")
    batch, length = bucket[:2]
    context = bucket[2] * sizes.block_size if len(bucket) > 2 else 0  # noqa: PLR2004 - 1.22 adds the context
    fits = batch * (length + context) <= batched
    return fits and (isinstance(ranges.second, Linear) or length <= sizes.need("max_model_len"))


def _values(spec: Range, release: Release, sizes: Sizes) -> list[int]:
    if isinstance(spec, Limited):
        return exponential.values(spec, release, contiguous=contiguous(release, sizes))
    return linear.values(Linear(spec.low, spec.step, spec.high), release)


def _ordered(buckets: Iterable[Sequence[int]]) -> list[Bucket]:
    return sorted((tuple(bucket) for bucket in buckets), key=lambda b: (b[0] * b[1], b[1], b[0]))
