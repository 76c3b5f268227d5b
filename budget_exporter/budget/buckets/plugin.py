"""
The buckets of the vllm-gaudi plugin: batch, query and context, filtered by what can happen.

Source: vllm-gaudi ``extension/bucketing/common.py`` (``generate_buckets``, the look-up and its fallback) and
``exponential.py`` (``get_decode_cfgs``) at the tags that the tables name. What changed between two tags that were read
is not known for the releases between them, and then there is no figure.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from budget_exporter.budget.buckets import exponential, linear, padding_aware
from budget_exporter.budget.buckets.defaults import LONG, Ranges, contiguous
from budget_exporter.budget.buckets.exponential import limit
from budget_exporter.budget.buckets.releases import Bucket, Limited, Linear, Range, Release, Sizes, countable
from budget_exporter.errors import LawError

__all__ = ["decode", "decode_blocks", "fallback", "find", "prompt", "prompt_rule"]

Rule = Callable[[int, int, Sizes], bool]
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Room:
    """Blocks there are, and what all sequences at full length would need, the length rounded down and up."""

    physical: int
    down: int
    up: int
    seqs: int


_DECODE_BLOCKS: tuple[tuple[Version, Version, Callable[[_Room], int], Callable[[_Room, int], int]], ...] = (
    ((0, 11, 2), (0, 14), lambda r: min(r.down, r.physical), lambda r, _: limit(r.physical)),
    ((0, 14, 1), (0, 17), lambda r: min(r.down, r.physical * r.seqs // 4), lambda r, _: limit(r.physical)),
    ((0, 17, 1), (0, 18), lambda r: 3 * r.physical, lambda _, most: limit(most)),
    (
        (0, 19),
        (0, 20),
        lambda r: max(min(r.up, r.physical * r.seqs // 3), 3 * r.physical),
        lambda _, most: limit(most),
    ),
    ((0, 21), (0, 22), lambda r: r.up, lambda _, most: limit(most)),
    ((0, 24), (0, 28), lambda r: r.up, lambda _, most: limit(most)),
)
"""Since, until, the most blocks of an exponential decode bucket without contiguous attention, and how many values."""
MIN_CONTIGUOUS = (0, 21)
MORE_VALUES = (0, 24)


def decode_blocks(release: Release, sizes: Sizes) -> tuple[int, int] | None:
    """
    Return the most blocks of an exponential decode bucket and how many values lead up to them.

    With contiguous attention they are the blocks there are. None for a release between the tags that were read; from
    0.24 also where the most is beyond three times the blocks there are, since how many values come on top is not known;
    from 0.21 with contiguous attention where all sequences at full length need fewer blocks. ``sizes`` must hold
    ``max_num_seqs``, ``max_model_len`` and ``num_blocks``; raise LawError where one is missing.
    """
    seqs, length, block = sizes.need("max_num_seqs"), sizes.need("max_model_len"), sizes.need("block_size")
    room = _Room(sizes.need("num_blocks"), length // block * seqs, -(-length // block) * seqs, seqs)
    if contiguous(release, sizes):
        known = release.version < MIN_CONTIGUOUS or room.up >= room.physical
        return (room.physical, limit(room.physical)) if known else None
    for since, until, blocks, count in _DECODE_BLOCKS:
        if since <= release.version < until:
            most = blocks(room)
            beyond = since >= MORE_VALUES and most > 3 * room.physical
            return None if beyond else (most, count(room, most))
    return None


def prompt_rule(release: Release) -> Rule | None:
    """
    Return the test a prompt's query and context must pass; None for a release between the tags that were read.

    To 0.20 both together within the model's length; from 0.24 each for itself.
    """
    if (0, 11, 2) <= release.version < (0, 21):
        return lambda query, context, sizes: query + context * sizes.block_size <= sizes.need("max_model_len")
    return _each if release.version >= (0, 24) else None


def _each(query: int, context: int, sizes: Sizes) -> bool:
    longest = sizes.need("max_model_len")
    return query <= longest and context <= -(-(longest - 1) // sizes.block_size)


def prompt(release: Release, ranges: Ranges, sizes: Sizes, rule: Rule) -> list[Bucket]:
    """
    Return the prompt buckets (batch, query, context in blocks), ascending.

    Batch times query is at most ``max_num_batched_tokens``, query and context pass ``rule``. For a model of 8192 tokens
    and more the largest context gives way to what each query leaves of the length. Raise LawError where none is left.
    """
    if ranges.context is None:
        raise LawError("the plugin's prompt buckets need a range of contexts")
    batches, queries, contexts = (
        _values(spec, release, sizes) for spec in (ranges.batch, ranges.second, ranges.context)
    )
    countable(len(batches), len(queries), len(contexts))
    batched = sizes.need("max_num_batched_tokens")
    found: set[Bucket] = {
        (batch, query, context)
        for batch, widest in itertools.product(batches, contexts)
        for query, context in _contexts(queries, widest, max(contexts), sizes)
        if batch * query <= batched and rule(query, context, sizes)
    }
    return _some(found, "prompt")


def _contexts(queries: Sequence[int], widest: int, largest: int, sizes: Sizes) -> list[tuple[int, int]]:
    length, own = sizes.need("max_model_len"), sizes.environ.get("VLLM_PROMPT_CTX_BUCKET_MAX")
    if widest != largest or length < LONG:
        return [(query, widest) for query in queries]
    pairs, context = [], widest
    for query in queries:
        edge = (length - query) // sizes.block_size
        # A query whose edge is not allowed keeps the edge of the query before it, as the engine's loop does.
        context = edge if edge >= 0 and (own is None or edge < int(own)) else context
        pairs.append((query, context))
    return pairs


def decode(release: Release, ranges: Ranges, sizes: Sizes) -> list[Bucket]:
    """
    Return the decode buckets (batch, 1, blocks), ascending.

    Contiguous attention keeps every pair and makes sure that the blocks there are come last; without it a batch has at
    least as many blocks as sequences and at most the whole length for each. Raise LawError where none is left.
    """
    batches, blocks = _values(ranges.batch, release, sizes), sorted(_values(ranges.second, release, sizes))
    countable(len(batches), len(blocks))
    if contiguous(release, sizes):
        physical = sizes.need("num_blocks")
        blocks += [physical] if blocks[-1:] < [physical] else []
        return _some({(batch, 1, context) for batch in batches for context in blocks}, "decode")
    each = -(-sizes.need("max_model_len") // sizes.block_size)
    pairs = itertools.product(batches, blocks)
    return _some({(batch, 1, min(count, batch * each)) for batch, count in pairs if batch <= count}, "decode")


def find(buckets: Sequence[Bucket], wanted: Bucket) -> Bucket | None:
    """Return the bucket a run of ``wanted`` gets: the first of the ascending ``buckets`` as large in all parts."""
    for bucket in buckets[bisect.bisect_left(buckets, wanted) :]:
        if all(have >= need for have, need in zip(bucket, wanted, strict=True)):
            return bucket
    return None


def fallback(value: int, base: int) -> int:
    """
    Return what one part of a run is padded to where no bucket was prepared: a multiple of ``base x ceil(cbrt(value))``.

    ``base`` is 2 for the batch, 32 for query and blocks; 0 and 1 stay. The engine then warns that it adds a bucket.
    """
    if value <= 1:
        return value
    size = math.ceil(math.pow(value, 1 / 3)) * base
    return -(-value // size) * size


def _values(spec: Range, release: Release, sizes: Sizes) -> list[int]:
    if isinstance(spec, Limited):
        return exponential.values(spec, release, contiguous=contiguous(release, sizes))
    if isinstance(spec, Linear):
        return linear.values(spec, release)
    return padding_aware.values(spec)


def _some(found: set[Bucket], phase: str) -> list[Bucket]:
    if not found:
        raise LawError(f"no {phase} bucket is left: the engine ends with RuntimeError (Generated 0 {phase} buckets)")
    return sorted(found)
