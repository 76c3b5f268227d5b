"""The padding-aware strategy of the plugin from 0.20: a linear range, thinned out by how much padding is accepted."""

from __future__ import annotations

from budget_exporter.budget.buckets.linear import MOST
from budget_exporter.budget.buckets.releases import Padded
from budget_exporter.errors import LawError

__all__ = ["values"]

MOST_PERCENT = 50


def values(spec: Padded) -> list[int]:
    """
    Return the values of a range, ascending.

    Doubled from ``low`` (0 is followed by 1) to ``step``; then of the multiples added to it one is kept where the next
    would need more padding than ``pad_max``, or a larger share than ``pad_percent``, or where it is a multiple of
    ``pad_max``; ``high`` always ends the list.

    Raise LawError where the engine fails: ``low`` above ``high``, a step below 1, a share that is not 0 to 50.
    Source: vllm-gaudi ``extension/bucketing/padding_aware.py`` ``warmup_range_with_limits``.
    """
    low, step, high = spec.low, spec.step, spec.high
    if not 0 <= low <= high:
        raise LawError(f"bucket minimum {low} is below 0 or above the maximum {high}")
    if step < 1 or spec.pad_max < 0:
        raise LawError(f"bucket step must be at least 1 and padding at least 0, not {step} and {spec.pad_max}")
    if not 0 <= spec.pad_percent <= MOST_PERCENT:
        raise LawError(f"bucket padding must be 0 to {MOST_PERCENT} percent, not {spec.pad_percent}")
    if high // step > MOST:
        raise LawError(f"bucket range {low}, {step}, {high} has more than {MOST} values")
    found, current = [low], low
    while current <= high:
        last = found[-1]
        if current <= step:
            current = last * 2 or 1
            if current <= high:
                found.append(current)
            continue
        if current != last and _kept(current, current + step - last - 1, current + step, spec):
            found.append(current)
        current += step
    return found if found[-1] == high else [*found, high]


def _kept(current: int, padding: int, following: int, spec: Padded) -> bool:
    pad_max = spec.pad_max or spec.high
    return padding / following > spec.pad_percent / 100.0 or padding > pad_max or current % pad_max == 0
