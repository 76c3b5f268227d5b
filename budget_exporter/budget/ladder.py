"""
The context ladder: find the longest window that boots by measuring it rung by rung.

Source: operators' procedure for the expert-offload engine on 32 GiB cards; the steps are theirs.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["BONUS", "DOWN", "Outcome", "next_rung", "scaled_pool"]

Outcome = Literal["pass", "oom", "unknown"]
DOWN = 16_384
"""Tokens to step down after an out-of-memory."""
BONUS = 4_096
"""Tokens to step up after a pass."""


def next_rung(length: int, outcome: Outcome, known_oom: int | None = None) -> int | None:
    """
    Return the next length to try, None where the ladder ends.

    After an out-of-memory the rung below, after a pass one bonus step up until the next is at or above ``known_oom``,
    the shortest length known to fail. A rung whose outcome is unknown is tried again: it is no failure.
    """
    if outcome == "unknown":
        return length
    if outcome == "oom":
        return length - DOWN if length > DOWN else None
    above = length + BONUS
    return above if known_oom is None or above < known_oom else None


def scaled_pool(reference_bytes: int, reference_seqs: int, reference_length: int, seqs: int, length: int) -> int:
    """
    Return the explicit KV pool in bytes for another rung, scaled from a rung that booted.

    ``round(bytes x (seqs x length) / (reference seqs x reference length))``: with the old pool a longer window would
    prove nothing.
    """
    return round(reference_bytes * seqs * length / (reference_seqs * reference_length))
