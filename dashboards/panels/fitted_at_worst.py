"""Did it fit at its worst?"""

from __future__ import annotations

from dashboards.expressions import HOST, by_rank, margin_at_worst, state
from dashboards.palette import BYTES, RANK
from dashboards.panels.fits_now import FIT_WORDS, FLOORS
from dashboards.parts import Q, Row, lines, stat, states

__all__ = ["row"]


def row() -> Row:
    """Show the high-water mark of each rank's device, and how old it is."""
    set_at = f"time() - budget_device_memory_used_high_water_timestamp_seconds{{{HOST}}}"
    ever = f"budget_device_memory_size_bytes{{{HOST}}} - budget_device_memory_used_high_water_all_time_bytes{{{HOST}}}"
    return Row(
        "Did it fit at its worst?",
        [
            states(
                "Fitted at its worst",
                "Margin at the high-water mark against the engine's floors. Red while 'Fits now' is green: it was that "
                "close once since the engine started and will be again under the same load. Give the shape more room.",
                Q(state(margin_at_worst()), RANK),
                FIT_WORDS,
                span=6,
            ),
            stat(
                "Margin at high water",
                "Bytes left on the rank's device at the largest use since the engine started. This is the figure to "
                "plan with: a shape needs room for its worst moment, not for its present one.",
                Q(margin_at_worst(), RANK),
                unit=BYTES,
                span=6,
                decimals=2,
            ),
            stat(
                "Mark set",
                "How long ago the high-water mark was set. Seconds, again and again: use still climbs, so the margin "
                "shown is not yet the worst one.",
                Q(by_rank(set_at), RANK),
                unit="s",
                span=6,
                decimals=1,
            ),
            stat(
                "Smallest margin ever",
                "Bytes left at the largest use ever seen on the device, across engines and restarts. Much below the "
                "present mark: an earlier shape or another tenant was tighter.",
                Q(by_rank(ever), RANK),
                unit=BYTES,
                span=6,
                decimals=2,
            ),
            lines(
                "Margin at high water over time",
                "Size minus high water per rank, with the engine's floors. It only falls while an engine runs and "
                "starts anew with the next one. A step down names the moment to look for in the engine's log.",
                [Q(margin_at_worst(), RANK), FLOORS],
                unit=BYTES,
                span=12,
                steps=True,
            ),
            lines(
                "High water and peaks",
                "The high-water mark, and the largest use in each 60 s so that no spike falls between two scrapes. "
                "Peaks that reach the size are allocations that nearly failed.",
                [
                    Q(by_rank(f"budget_device_memory_used_high_water_bytes{{{HOST}}}"), f"high water {RANK}"),
                    Q(by_rank(f"budget_device_memory_used_window_max_bytes{{{HOST}}}"), f"peak {RANK}"),
                    Q(by_rank(f"budget_device_memory_size_bytes{{{HOST}}}"), f"size {RANK}"),
                ],
                unit=BYTES,
                span=12,
                from_zero=False,
            ),
        ],
    )
