"""
The context ladder: find the longest window that boots by measuring it rung by rung.

Source: operators' procedure for the expert-offload engine on 32 GiB cards; the steps are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.checks import LARGEST_COUNT, LARGEST_SIZE, number

__all__ = ["BONUS", "DOWN", "Outcome", "Proof", "Rung", "next_rung", "proof", "proves", "scaled_pool"]

Outcome = Literal["pass", "oom", "unknown"]
"""``unknown`` is no failure: the log was gone, or the unit was stopped by hand."""
DOWN = 16_384
"""Tokens to step down after an out-of-memory."""
BONUS = 4_096
"""Tokens to step up after a pass."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One boot that was tried: its window in tokens, how it ended, and what it was tried with."""

    length: int
    outcome: Outcome
    seqs: int = 1
    pool_bytes: int | None = None
    """Explicit KV pool of each rank; None where the engine sized it itself."""
    pool_tokens: int | None = None
    """The engine's own figure of the pool."""
    survived: bool | None = None
    """Whether a request with a large ``max_tokens`` was answered after the boot; None where none was sent."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the rungs tried so far prove, and the next one to try."""

    longest_pass: int | None
    """Longest window that is proved to boot."""
    shortest_oom: int | None
    """Shortest window that is proved not to."""
    next: int | None
    """None where the ladder has ended."""
    notes: tuple[str, ...] = ()


def next_rung(length: int, outcome: Outcome, known_oom: int | None = None) -> int | None:
    """
    Return the next length to try, None where the ladder ends.

    After an out-of-memory the rung below, after a pass one bonus step up until the next is at or above ``known_oom``,
    the shortest length known to fail. A rung whose outcome is unknown is tried again: it is no failure.
    """
    number("length", length, above=0, most=LARGEST_COUNT)
    number("known_oom", known_oom, above=0, most=LARGEST_COUNT)
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
    prove nothing. Raise LawError for a size or count that cannot be.
    """
    number("reference_bytes", reference_bytes, least=0, most=LARGEST_SIZE)
    counts = {"reference_seqs": reference_seqs, "reference_length": reference_length, "seqs": seqs, "length": length}
    for name, value in counts.items():
        number(name, value, above=0, most=LARGEST_COUNT)
    return round(reference_bytes * seqs * length / (reference_seqs * reference_length))


def proves(rung: Rung, reference: Rung | None = None) -> tuple[bool, str]:
    """
    Return whether a rung proves anything of its length, and why not, or what is still open, in a sentence.

    A pass proves it only with a pool that was scaled with the window: ``reference`` is the rung that an explicit pool
    was scaled from. An out-of-memory proves it unless the pool was larger than that, an unknown outcome nothing.
    """
    if rung.outcome == "unknown":
        return False, f"{rung.length}: the outcome is unknown, which is no failure"
    scaled = None
    if reference is not None and reference.pool_bytes is not None:
        scaled = scaled_pool(reference.pool_bytes, reference.seqs, reference.length, rung.seqs, rung.length)
    if rung.outcome == "oom":
        larger = scaled is not None and rung.pool_bytes is not None and rung.pool_bytes > scaled
        above = f"{rung.length}: its pool of {rung.pool_bytes} B is above the {scaled} B its window needs"
        return not larger, above if larger else ""
    doubt = _doubt(rung, scaled)
    if doubt or rung.survived:
        return not doubt, doubt
    return True, f"{rung.length}: it booted, no large request has been sent"


def _doubt(rung: Rung, scaled: int | None) -> str:
    """Return why a pass proves nothing, empty where it does."""
    if scaled is not None and rung.pool_bytes is not None and rung.pool_bytes < scaled:
        return f"{rung.length}: its pool of {rung.pool_bytes} B was not scaled to {scaled} B"
    if rung.pool_tokens is not None and rung.pool_tokens < rung.length:
        return f"{rung.length}: its pool of {rung.pool_tokens} tokens does not hold the window"
    if rung.survived is False:
        return f"{rung.length}: it booted and died of the first large request"
    return ""


def proof(rungs: Sequence[Rung], reference: Rung | None = None) -> Proof:
    """
    Return what ``rungs`` prove together, oldest first, and the next length to try.

    The next step goes from the newest rung; one that proves nothing is tried again. A shape that died of its first
    large request counts as an out-of-memory: a boot is not survival. ``next`` is None once the longest pass is within
    a bonus step of the shortest failure, or no rung is left below.
    """
    passed: list[int] = []
    failed: list[int] = []
    notes: list[str] = []
    for rung in rungs:
        holds, note = proves(rung, reference)
        notes += [note] if note else []
        if rung.outcome == "pass" and rung.survived is False:
            failed.append(rung.length)
        elif holds:
            (passed if rung.outcome == "pass" else failed).append(rung.length)
    longest, shortest = max(passed, default=None), min(failed, default=None)
    if longest is not None and shortest is not None and longest >= shortest:
        notes.append(f"{longest} passed although {shortest} failed: memory differs from boot to boot")
    return Proof(longest, shortest, _next(rungs, passed, failed), tuple(notes))


def _next(rungs: Sequence[Rung], passed: Sequence[int], failed: Sequence[int]) -> int | None:
    if not rungs:
        return None
    newest = rungs[-1].length
    known = min(failed, default=None)
    if newest in failed:
        step = next_rung(newest, "oom", known)
        # Above what has passed there is nothing left to find but bonus steps.
        if passed and step is not None and step <= max(passed):
            return next_rung(max(passed), "pass", known)
        return step
    return next_rung(max(passed), "pass", known) if newest in passed else next_rung(newest, "unknown")
