"""
Which HPU graphs Gaudi's engine captures: the order, the budget, and the rule it stops by.

    1.17 to 1.21.3   budget = free now - free after load x (1 - utilization), split between prompt and decode
    1.16             budget = free now x (1 - VLLM_GRAPH_MEM_MARGIN)
    from 1.22        no budget: every bucket, the last first

The engine measures a graph only after it has captured it; before, it expects the mean so far. What a graph takes comes
in as an argument here: a figure measured in an earlier start, or the engine's own.

Source: ``warmup_graphs`` and ``warmup_model`` of HabanaAI/vllm-fork ``habana_model_runner.py`` before and with 1.17,
``hpu_model_runner.py`` to 1.21.3 and 1.22, and of vllm-gaudi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.buckets.releases import Bucket, Release
from budget_exporter.errors import LawError

__all__ = [
    "Captured",
    "Forecast",
    "Order",
    "budget",
    "capture",
    "forecast",
    "in_order",
    "proportional",
    "split",
]

Order = Literal["min_tokens", "max_bs"]
FIRST_SHARE = 0.001
"""What the engine has captured before it captured anything, so that its mean is defined."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One phase's graphs: which, what they took in bytes, and whether all were captured."""

    buckets: tuple[Bucket, ...]
    used: float
    complete: bool
    weight: float = FIRST_SHARE
    """Tokens (prompt) or sequences (decode) captured so far: what the engine's mean is over."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will be captured of both phases, after the first pass and at the end."""

    first: tuple[Captured, Captured]
    prompt: Captured
    decode: Captured

    @property
    def graphs(self) -> int:
        """Return how many graphs there will be."""
        return len(self.prompt.buckets) + len(self.decode.buckets)

    @property
    def used(self) -> float:
        """Return the bytes they will take."""
        return self.prompt.used + self.decode.used


def budget(release: Release, free_now: float, margin: float, mem_margin: float = 0.02) -> float | None:
    """
    Return the bytes there are for graphs after the warm-up; None where the release has no budget.

    ``free_now`` is free memory then, ``margin`` what utilization left of free memory after load, both in bytes;
    ``mem_margin`` is 1.16's VLLM_GRAPH_MEM_MARGIN. Raise LawError for a margin that is not 0 to 1.
    """
    if release.since((1, 22)):
        return None
    if release.since((1, 17)):
        return free_now - margin
    if not 0 <= mem_margin <= 1:
        raise LawError(f"VLLM_GRAPH_MEM_MARGIN must be 0 to 1, not {mem_margin}")
    return (1.0 - mem_margin) * free_now


def split(available: float, ratio: float) -> tuple[float, float]:
    """
    Return the budgets of prompt and decode in bytes.

    ``ratio`` is VLLM_GRAPH_PROMPT_RATIO, 0.5 by default to 1.18 and 0.3 from 1.19. Raise LawError where it is not
    0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise LawError(f"VLLM_GRAPH_PROMPT_RATIO must be 0 to 1, not {ratio}")
    return ratio * available, available - ratio * available


def in_order(buckets: Iterable[Bucket], order: str) -> list[Bucket]:
    """
    Return ``buckets`` as they are captured to 1.21.3.

    ``min_tokens``, the prompt's default: fewest tokens first, of as many the shorter. ``max_bs``, the decode's:
    largest batch first, then ascending. Raise LawError for another word, with which the engine fails.
    """
    if order == "min_tokens":
        return sorted(buckets, key=lambda b: (b[0] * b[1], b[1], b[0]))
    if order == "max_bs":
        return sorted(buckets, key=lambda b: (-b[0], b[1]))
    raise LawError(f"the order of capture must be min_tokens or max_bs, not {order[:40]!r}")


def proportional(rate: float, *, prompt: bool) -> Callable[[Bucket], float]:
    """
    Return a cost of graphs that grows as the engine expects: ``rate`` bytes a token (prompt) or a sequence (decode).

    Raise LawError for a rate that is negative or no number.
    """
    if not (math.isfinite(rate) and rate >= 0):
        raise LawError(f"the bytes of a graph must be a number of at least 0, not {rate}")
    return lambda bucket: rate * _weight(bucket, prompt=prompt)


def capture(
    ordered: Sequence[Bucket],
    available: float,
    cost: Callable[[Bucket], float],
    *,
    prompt: bool,
    before: Captured | None = None,
) -> Captured:
    """
    Return what one pass captures within ``available`` bytes.

    A bucket is captured where the mean so far, times its tokens (prompt) or sequences (decode), is below what is left.
    One that is not is skipped, and the pass goes on. ``cost`` gives the bytes a bucket's graph takes; ``before`` is
    what an earlier pass captured, which stays and counts in the mean.
    """
    start = before or Captured((), 0.0, complete=True)
    done, used, weight, left, complete = list(start.buckets), start.used, start.weight, available, True
    there = frozenset(start.buckets)
    for bucket in ordered:
        if bucket in there:
            continue
        share = _weight(bucket, prompt=prompt)
        if share / weight * used >= left:
            complete = False
            continue
        taken = cost(bucket)
        done.append(bucket)
        used, left, weight = used + taken, left - taken, weight + share
    return Captured(tuple(done), used, complete, weight)


def forecast(
    release: Release,
    buckets: tuple[Sequence[Bucket], Sequence[Bucket]],
    available: float | None,
    costs: tuple[Callable[[Bucket], float], Callable[[Bucket], float]],
    *,
    ratio: float = 0.3,
    orders: tuple[str, str] = ("min_tokens", "max_bs"),
) -> Forecast:
    """
    Return what will be captured of prompt and decode, each a pair in that order.

    ``available`` is the ``budget`` in bytes, None for a release that has none, which captures all. From 1.17 a second
    pass gives what is left to the phase that is not complete, if the other is; 1.16 has one pass only. Raise LawError
    for a ratio or an order that is wrong, and for a missing budget.
    """
    if release.since((1, 22)):
        prompt, decode = (
            Captured(tuple(reversed(found)), sum(cost(bucket) for bucket in found), complete=True)
            for found, cost in zip(buckets, costs, strict=True)
        )
        return Forecast((prompt, decode), prompt, decode)
    if available is None:
        raise LawError("the budget for graphs is not known, and this release stops at it")
    prompts, decodes = (in_order(found, order) for found, order in zip(buckets, orders, strict=True))
    shares = split(available, ratio)
    prompt = capture(prompts, shares[0], costs[0], prompt=True)
    decode = capture(decodes, shares[1], costs[1], prompt=False)
    first = (prompt, decode)
    if release.since((1, 17)):
        if prompt.used + decode.used < available and not prompt.complete and decode.complete:
            prompt = capture(prompts, available - prompt.used - decode.used, costs[0], prompt=True, before=prompt)
        if prompt.used + decode.used < available and not decode.complete and prompt.complete:
            decode = capture(decodes, available - prompt.used - decode.used, costs[1], prompt=False, before=decode)
    return Forecast(first, prompt, decode)


def _weight(bucket: Bucket, *, prompt: bool) -> int:
    return bucket[0] * bucket[1] if prompt else bucket[0]
