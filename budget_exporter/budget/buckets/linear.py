"""The linear strategy: which values a range gives, and which of them a real size is padded to."""

from __future__ import annotations

from budget_exporter.budget.buckets.releases import Linear, Release
from budget_exporter.errors import LawError

__all__ = ["padded", "values"]

MOST = 1_000_000
"""More values than any engine warms up: a range that asks for more is a mistyped setting, not a plan."""


def values(spec: Linear, release: Release) -> list[int]:
    """
    Return the values of a range, in the engine's order.

    Doubled from ``low`` while below ``step``, then the multiples of ``step`` up to ``high``, which itself is only
    reached where it is one. To 1.17 multiples below ``low`` stay in; from 1.18 they go, even if nothing is left. The
    plugin reads ``low`` 0 as ``step`` and appends a 0.

    Raise LawError where the engine fails (``low`` above ``high``, ``step`` 0) or never ends (``low`` 0 in the fork).
    Source: ``warmup_range`` of HabanaAI/vllm-fork 1.17 and 1.18, vllm-hpu-extension as pinned by 1.19 to 1.22, and
    vllm-gaudi 0.26, each of them run; 1.16 is taken to be as 1.17.
    """
    low, step, high = spec.low, spec.step, spec.high
    zero = release.plugin and low == 0
    if low < 0 or step < 0 or (low == 0 and not zero):
        raise LawError(f"bucket range {low}, {step}, {high}: the engine never ends with a minimum or step below 1")
    if low > high:
        raise LawError(f"bucket minimum {low} is above the maximum {high}: the engine ends with AssertionError")
    if zero and high == 0:
        return [0]
    if step == 0:
        raise LawError(f"bucket step of {low} to {high} must not be 0: the engine ends with ValueError")
    low = step if zero else low
    if high // step > MOST:
        raise LawError(f"bucket range {low}, {step}, {high} has more than {MOST} values")
    ramp = []
    value = low
    while value < step and value <= high:
        ramp.append(value)
        value *= 2
    found = ramp + list(range(step, high + 1, step))
    if release.since((1, 18)):
        found = [value for value in found if value >= low]
    return [*found, 0] if zero else found


def padded(value: int, spec: Linear, release: Release) -> int:
    """
    Return the value that ``value`` is padded to at run time by the fork up to 1.21.3.

    1.17: the next power of two below ``step``, then multiples of it. 1.18 to 1.20: the smaller of the next multiple and
    of ``low`` doubled as often as a power of two from 1 would need, which overshoots where ``low`` is above 1. 1.21:
    the doubled ``low`` up to ``step``, then multiples. From 1.22 a bucket is looked up as a whole (``combined.find``).

    Raise LawError for a range without a minimum or step. Source: ``find_bucket`` of the releases named.
    """
    low, step = spec.low, spec.step
    if low < 1 or step < 1:
        raise LawError(f"bucket range {low}, {step}, {spec.high}: minimum and step must be at least 1")
    multiple = -(-value // step) * step
    if not release.since((1, 18)):
        return min(_doubled(value, 1), step) if value < step else multiple
    if not release.since((1, 21)):
        return max(low, min(multiple, low * _doubled(value, 1)))
    if value <= low:
        return low
    power = _doubled(value, low)
    return power if power <= step else multiple


def _doubled(value: int, base: int) -> int:
    while base < value:
        base *= 2
    return base
