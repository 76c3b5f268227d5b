"""The exponential strategy: a number of values, spaced by a constant factor."""

from __future__ import annotations

import math

from budget_exporter.budget.buckets.linear import MOST
from budget_exporter.budget.buckets.releases import Limited, Release
from budget_exporter.errors import LawError

__all__ = ["limit", "values"]


def values(spec: Limited, release: Release, *, contiguous: bool) -> list[int]:
    """
    Return the values of a range, ascending.

    Value i of n is ``low x (high / low) ** (i / (n - 1))``, rounded up to a multiple of ``step``. In the fork a value
    that is already there gives way to the nearest unused one of ``low, low + step, ...``, until none is left; in the
    plugin it is dropped, a ``low`` of 0 or 1 counts as ``step`` and is put in again afterwards, and what exceeds
    ``high`` is cut down to it, which may name it twice. With ``contiguous`` paged attention the last value is ``high``
    itself (not in 1.21.0).

    Raise LawError where the engine fails: ``limit`` or ``step`` below 1, ``low`` 0 in the fork, ``high`` below 1.
    Source: ``warmup_range_with_limit`` of vllm-hpu-extension as pinned by 1.21.0, 1.21.2 and 1.22, and of vllm-gaudi
    0.26, each of them run.
    """
    if spec.limit < 1 or spec.step < 1 or spec.low < 0 or spec.high < 1:
        text = f"{spec.low}, {spec.step}, {spec.high}, limit {spec.limit}"
        raise LawError(f"bucket range {text}: step, maximum and limit must be at least 1")
    if spec.high // spec.step > MOST or spec.limit > MOST:
        raise LawError(f"bucket range {spec.low}, {spec.step}, {spec.high} has more than {MOST} values")
    if spec.limit == 1:
        return [spec.high]
    last = spec.high if contiguous and release.since((1, 21, 2)) else None
    return _dropped(spec, last) if release.plugin else _filled(spec, last)


def limit(high: float) -> int:
    """Return how many values the engine asks for up to ``high``: ``ceil(log2(high)) + 1``; ``high`` is at least 1."""
    return math.ceil(math.log2(high)) + 1


def _filled(spec: Limited, last: int | None) -> list[int]:
    if spec.low == 0:
        raise LawError("bucket minimum must not be 0: the engine ends with ZeroDivisionError")
    found: set[int] = set()
    for power, value in _spaced(spec, spec.low, last):
        if value not in found:
            found.add(value)
            continue
        free = [other for other in range(spec.low, spec.high + 1, spec.step) if other not in found]
        if not free:
            break
        # Of two as near as each other the engine takes the one its hash set yields first; here it is the smaller.
        found.add(min(free, key=lambda other: abs(other - power)))
    return sorted(found)


def _dropped(spec: Limited, last: int | None) -> list[int]:
    restored = {spec.low} if spec.low in {0, 1} else set()
    low = spec.step if restored else spec.low
    found = sorted({value for _, value in _spaced(spec, low, last)} | restored)
    return [*found[:-1], min(found[-1], spec.high)]


def _spaced(spec: Limited, low: int, last: int | None) -> list[tuple[float, int]]:
    """Return each value as spaced and as rounded up to a multiple of the step."""
    found = []
    for i in range(spec.limit):
        power = low * (spec.high / low) ** ((1.0 / (spec.limit - 1)) * i)
        rounded = last if last is not None and i == spec.limit - 1 else math.ceil(power / spec.step) * spec.step
        found.append((power, rounded))
    return found
