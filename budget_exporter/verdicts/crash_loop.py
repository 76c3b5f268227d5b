"""Whether an engine dies again and again without getting to work."""

from __future__ import annotations

from collections.abc import Iterable

from budget_exporter.facts.boot import Phase

__all__ = ["crash_loop"]

DEATHS = 3
WITHIN = 1800.0
"""Seconds in which so many deaths are a loop: a large model takes up to ten minutes to load."""
WORKED = 600.0
"""Seconds of serving after which the engine is past it."""


def crash_loop(deaths: Iterable[float], phase: Phase, since: float | None, now: float) -> bool:
    """
    Return whether the engine is in a crash loop at ``now``.

    ``deaths`` are Unix times, ``phase`` the engine's present one and ``since`` the Unix time it began, None where that
    is not known. An engine that came to serve and dies of its first requests is in the loop as well: only serving for
    ten minutes ends it before its deaths are half an hour old.
    """
    lately = [at for at in deaths if now - at <= WITHIN]
    works = phase == "serving" and since is not None and now - since >= WORKED
    return len(lately) >= DEATHS and not works
