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
LATELY = 36
"""The newest windows, that are judged by themselves first: a leak that begins late is not to wait for what was well."""
LEAST_RISE = 64 * 2**20
"""Bytes a trend must have gained over all windows: page tables and allocators breathe by tens of MiB."""
QUARTERS = 4
KEEPS_ON = 0.7
"""
Share of the pace in the older half of the time that the newer half must keep.

An allocator that fills after a start slows down, so that after any time the newer half has half the pace of the older
or less; a leak does not.
"""


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
    Return the trend of ``windows`` (oldest first), None where there is none: that of the newest, else that of all.

    The pace is the median of the slopes between all pairs of windows (Theil 1950, Sen 1968): it holds with nearly
    a third of the windows off. That alone is no trend: one step up makes half of the slopes rise. So their lower
    quartile must rise too, and each quarter of the time must lie higher than the one before, which one step or two,
    with their two or three levels, cannot make them do. Nor is there one where the rise slows down: what fills after a
    start comes to an end by itself.
    """
    return _trend(windows[-LATELY:]) or _trend(windows)


def _trend(windows: Sequence[Window]) -> Creep | None:
    if len(windows) < FEWEST:
        return None
    points = [(window.at, float(window.used)) for window in windows]
    slopes = _slopes(points)
    if not slopes or _lower_quartile(slopes) <= 0 or _slows_down(points):
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


def _slows_down(points: Sequence[tuple[float, float]]) -> bool:
    older, newer = _slopes(points[: len(points) // 2]), _slopes(points[len(points) // 2 :])
    return not older or not newer or median(newer) < KEEPS_ON * median(older)


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
