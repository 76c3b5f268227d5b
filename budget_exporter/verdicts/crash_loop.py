"""Whether an engine dies again and again without getting to work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from budget_exporter.facts.boot import Failure, Phase
from budget_exporter.facts.history import BootMark, Loop

__all__ = ["crash_loop", "loop", "loop_said"]

T = TypeVar("T")
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


def loop(
    deaths: Sequence[Failure],
    restarts: Iterable[float],
    boots: Iterable[BootMark],
    phase: Phase,
    since: float | None,
    now: float,
) -> Loop | None:
    """
    Return how the engine goes on dying at ``now``, None where it does not.

    ``restarts`` are Unix times of restarts that nobody asked for: each stands for a death, seen or not. ``boots`` are
    those that came to serve.
    """
    lately = [death for death in deaths if now - death.at <= WITHIN]
    times = max([death.at for death in lately], [at for at in restarts if now - at <= WITHIN], key=len)
    if not crash_loop(times, phase, since, now):
        return None
    # The newest counts where two are as frequent.
    where, there = _most(death.phase for death in reversed(lately)) or ("unknown", 0)
    cause, _ = _most(death.cause for death in reversed(lately) if death.phase == where) or ("unknown", 0)
    return Loop(len(times), where, there, cause, served=any(boot.started_at > min(times) for boot in boots))


def _most(told: Iterable[T]) -> tuple[T, int] | None:
    """Return what is told most often, and how often."""
    return next(iter(Counter(told).most_common(1)), None)


def loop_said(found: Loop) -> str:
    """Return the loop as a sentence."""
    share = "all" if found.in_phase == found.deaths else f"{found.in_phase} of them"
    where = f", {share} while {found.phase} ({found.cause})" if found.in_phase else ""
    between = "it comes to serve in between" if found.served else "it has not come to serve in between"
    return f"it died {found.deaths} times in the last {WITHIN / 60:.0f} min{where}; {between}"
