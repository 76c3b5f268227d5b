"""What one boot shows only beside the ones before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from budget_exporter.facts.history import BootMark

__all__ = ["free_falling", "kv_changed"]

KV_CHANGE = 0.01
"""Share by which the KV pool may differ between two boots of one shape: profiling is not exact to the byte."""
BOOTS = 3
"""Boots in a row that must each have had less free memory than the one before."""
FALL = 64 * 2**20
"""Bytes the fall must come to over those boots: what printing in two decimals and a driver's own use leave open."""


def kv_changed(boots: Sequence[BootMark]) -> bool | None:
    """
    Return whether the newest of ``boots`` (oldest first) got another KV pool than the one before with the same flags.

    None where there is no earlier boot with these flags, or one of the two did not tell its pool.
    """
    *earlier, newest = boots or (BootMark(0.0, ""),)
    before = [boot.kv_tokens for boot in earlier if boot.shape == newest.shape and boot.kv_tokens is not None]
    if newest.kv_tokens is None or not before:
        return None
    return abs(newest.kv_tokens - before[-1]) > KV_CHANGE * before[-1]


def free_falling(boots: Sequence[BootMark]) -> bool | None:
    """
    Return whether memory free at init fell from boot to boot on any rank of ``boots`` (oldest first).

    The flags need not be the same: what is free before an engine has taken anything does not depend on them. None
    where too few boots told it.
    """
    answers = [
        _falls([boot.free_at_init[rank] for boot in boots if rank in boot.free_at_init]) for rank in _ranks(boots)
    ]
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def _ranks(boots: Sequence[BootMark]) -> list[str]:
    return sorted(boots[-1].free_at_init) if boots else []


def _falls(free: Sequence[int]) -> bool | None:
    if len(free) < BOOTS:
        return None
    last = free[-BOOTS:]
    falling = all(after < before for before, after in pairwise(last))
    return falling and last[0] - last[-1] >= FALL
