"""What a source that is run again and again has said, and how its runs fared; safe to read from any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from budget_exporter.facts.source import SourceHealth

__all__ = ["Outcome", "StateLog"]

RESTS = 3.0
"""A source rests for at least so many times as long as its run took: a slow one is asked less often."""

T = TypeVar("T")
A = TypeVar("A")


class StateLog:
    """Log what is wrong with ``name`` when that changes, not every time it is noticed."""

    def __init__(self, name: str) -> None:
        self._name = f"budget_exporter.{name}"
        self._last = ""

    def note(self, error: str) -> None:
        """Log ``error`` where it differs from the last one; an empty text means that the source works."""
        if error == self._last:
            return
        # Only now: a logger stays for ever, and engines of any name come and go.
        log = logging.getLogger(self._name)
        if error:
            log.warning(error)
        else:
            log.info("works again")
        self._last = error


class Outcome(Generic[T, A]):
    """
    Keep the results of the runs of one source, folded until they are taken, and its health.

    Runs begin every ``interval`` seconds, and less often where they are slow: a source that keeps its time limit never
    runs for more than a quarter of the time.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        fold: Callable[[A | None, T], A],
        timeout: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self._interval = interval
        self._pace = interval
        self._fold = fold
        self._timeout = timeout
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._taken: A | None = None
        self._began: float | None = None
        self._gave: float | None = None
        self._health = SourceHealth(name, interval, success=False, duration=0.0, last_success=None, runs=0, failures=0)
        self._log = StateLog(f"source.{name}")

    def take(self) -> A | None:
        """Return what was folded since the last call, None where no run gave a result."""
        with self._lock:
            taken, self._taken = self._taken, None
            return taken

    @property
    def pace(self) -> float:
        """Return the seconds from the beginning of one run to the next: more than the interval where runs are slow."""
        with self._lock:
            return self._pace

    @property
    def fresh(self) -> bool:
        """Return whether the newest result is no older than one run may take after the one before it."""
        with self._lock:
            gave, pace = self._gave, self._pace
        return gave is not None and self._monotonic() - gave <= pace + self._timeout

    def health(self) -> SourceHealth:
        """Return the source's health; a run in flight for longer than the time limit is a failure."""
        with self._lock:
            health, began = self._health, self._began
        if began is None or self._monotonic() - began <= self._timeout:
            return health
        stuck = f"no answer for {self._monotonic() - began:.0f} s"
        self._log.note("no answer within the time limit; the thread is left alone")
        return SourceHealth(
            health.name,
            health.interval,
            success=False,
            duration=health.duration,
            last_success=health.last_success,
            runs=health.runs,
            failures=health.failures,
            error=stuck,
            settled=True,
        )

    def _begin(self) -> float:
        """Note that a run begins; return the time of the clock that never jumps."""
        began = self._monotonic()
        with self._lock:
            self._began = began
        return began

    def _settle(self, result: T | None, error: str, duration: float) -> None:
        with self._lock:
            old = self._health
            self._began = None
            self._pace = self._paced(duration)
            if result is not None:
                self._taken = self._fold(self._taken, result)
                self._gave = self._monotonic()
            self._health = SourceHealth(
                self.name,
                self._pace,
                success=not error,
                duration=duration,
                last_success=old.last_success if error else self._clock(),
                runs=old.runs + 1,
                failures=old.failures + bool(error),
                error=error,
                settled=True,
            )
        self._log.note(error)

    def _paced(self, duration: float) -> float:
        # What overran the time limit hung, which tells nothing of what the next run costs.
        return self._interval if duration > self._timeout else max(self._interval, (1 + RESTS) * duration)
