"""
The two KV sizes that vLLM suggests after a boot, and what they count twice.

    to fit the request  = requested - used - capture - 150 MiB
    to use the device   = free at init - used - capture - 150 MiB

``used`` is weights, peak activation and non-torch memory, or from 0.27 all that was consumed and the peak. In 0.18 and
from 0.27 the peak holds the graph estimate that was charged, and the capture of the same graphs is subtracted as well.
Source: vLLM 0.10.2 to 0.33 ``v1/worker/gpu_worker.py`` ``compile_or_warm_up_model``; printed at INFO in 0.10.2 and from
0.26, at DEBUG between, and not with an explicit KV size.
"""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.units import MIB

__all__ = ["BUFFER", "Suggestion", "suggest"]

BUFFER = 150 * MIB
"""What vLLM holds back, because its profile slightly underestimates."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Two sizes for ``--kv-cache-memory-bytes`` as the engine prints them; bytes, signed."""

    fit: int
    """Within the request."""
    full: int
    """Within what was free at init."""
    double_count: int
    """By how much both are too small."""


def suggest(
    *, requested: int, free: int, used: int, estimate: int, capture: int, peak_holds_estimate: bool
) -> Suggestion:
    """
    Return the sizes a boot suggests; all arguments in bytes.

    ``used`` is without the graph estimate, ``estimate`` what was charged of it (0 where nothing was), ``capture`` what
    the graphs took; ``peak_holds_estimate`` as the release's row of the table says.
    """
    twice = estimate if peak_holds_estimate else 0
    taken = used + twice + capture + BUFFER
    return Suggestion(fit=requested - taken, full=free - taken, double_count=twice)
