"""Whether use creeps up while load does not, and how long until the floor at that pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from budget_exporter.facts.history import Creep

__all__ = ["FEWEST", "Window", "creep"]

FEWEST = 12
"""Windows without which there is no trend."""
LEAST_RISE = 64 * 2**20
"""Bytes a trend must have gained over all windows: page tables and allocators breathe by tens of MiB."""
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Window:
    """
    A few minutes of one rank while it served: their middle (Unix seconds) and the smallest use in them, bytes.

    The smallest use is what stays when requests end; ``load`` is the largest number of requests at work, None where the
    engine does not tell.
    """

    at: float
    used: int
    load: float | None = None


def creep(windows: Sequence[Window]) -> Creep | None:
    """
    Return the trend of ``windows`` (oldest first), None where there is none.

    The pace is the median of the slopes between all pairs of windows (Theil 1950, Sen 1968): it holds with nearly
    a third of the windows off. That alone is no trend: one step up makes half of the slopes rise. So their lower
    quartile must rise too, and each quarter of the time must lie higher than the one before, which one step or two,
    with their two or three levels, cannot make them do.
    """
    if len(windows) < FEWEST:
        return None
    slopes = _slopes([(window.at, float(window.used)) for window in windows])
    if not slopes or _lower_quartile(slopes) <= 0:
        return None
    levels = _levels([float(window.used) for window in windows])
    rise = round(levels[-1] - levels[0])
    if rise < LEAST_RISE or any(after <= before for before, after in pairwise(levels)):
        return None
    return Creep(median(slopes), rise, _load_rises(windows))


def _slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    return [
        (later_value - value) / (later - at)
        for index, (at, value) in enumerate(points)
        for later, later_value in points[index + 1 :]
        if later > at
    ]


def _lower_quartile(slopes: Sequence[float]) -> float:
    return sorted(slopes)[len(slopes) // QUARTERS]


def _levels(values: Sequence[float]) -> list[float]:
    """Return a middle value of each quarter of ``values``; one that occurs, since a mean of two makes a new level."""
    size = len(values)
    return [median_low(values[size * k // QUARTERS : size * (k + 1) // QUARTERS]) for k in range(QUARTERS)]


def _load_rises(windows: Sequence[Window]) -> bool | None:
    """Return whether load was clearly higher in the second half than in the first: by a half, and by a request."""
    loads = [window.load for window in windows if window.load is not None]
    if len(loads) < len(windows):
        return None
    before, after = median_low(loads[: len(loads) // 2]), median_low(loads[len(loads) // 2 :])
    return after > max(before * 1.5, before + 1)
