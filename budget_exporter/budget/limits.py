"""The engine's check at init: the request must not exceed what is free, and the largest utilization that passes."""

from __future__ import annotations

import math

from budget_exporter.facts.ledger import Limit, Origin

__all__ = ["passes_init_check", "requested_bytes", "utilization_limit"]

STEPS = 1000
"""A limit has three decimals, as utilizations are written."""


def requested_bytes(size: int, utilization: float, *, round_up: bool = True) -> int:
    """
    Return the bytes a utilization asks for on a device of ``size`` bytes.

    Source: vLLM 0.14 to 0.33 ``v1/worker/utils.py`` ``request_memory``: ``math.ceil(total * utilization)``; before it
    the product stayed a float, whose whole bytes are returned where ``round_up`` is False.
    """
    product = size * utilization
    return math.ceil(product) if round_up else int(product)


def passes_init_check(requested: int, free: int | None, rounding: int = 0) -> bool | None:
    """
    Return whether ``free < requested`` lets the engine go on; equal passes.

    None where ``free`` is unknown, or was printed (``rounding`` is its half-width in bytes) so coarsely that both
    outcomes are possible. Source: vLLM 0.9.1 to 0.33 ``v1/worker/gpu_worker.py`` ``init_device``.
    """
    if free is None:
        return None
    if free + rounding < requested:
        return False
    return True if free - rounding >= requested else None


def utilization_limit(size: int, free: int, rounding: int = 0, source: Origin = "measured") -> Limit:
    """
    Return the largest utilization, in steps of a thousandth, that passes the check at init with ``free`` bytes.

    ``floor(1000 * free / size) / 1000``, never above 1, which is the most the flag takes. ``low`` and ``high`` are the
    limits at both ends of a printed figure's rounding: what lies above ``high`` cannot boot, what is not above ``low``
    passes. 31.29 GiB printed of 31.86 give 0.982, with ``low`` 0.981. All sizes in bytes, ``size`` above 0.
    """
    return Limit(
        ratio=_limit(size, free),
        low=_limit(size, free - rounding),
        high=_limit(size, free + rounding),
        source=source,
    )


def _limit(size: int, free: int) -> float:
    step = min(STEPS, STEPS * free // size)
    # The engine multiplies floats: where the product of the very limit rounds up beyond free, the step below is it.
    if step > 0 and requested_bytes(size, step / STEPS) > free:
        step -= 1
    return step / STEPS
