"""How the event-driven sources fare: those that are told of changes instead of looking for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from budget_exporter.facts.source import SourceHealth
from budget_exporter.sidecar.runner import StateLog

__all__ = ["ANSWER", "Health"]

ANSWER = 5.0
"""Seconds a task may wait for its first answer, and be without a further one until it has all there is."""


class Health:
    """
    Health of one event-driven source: it succeeds for as long as all its tasks are connected.

    A run is something taken in: a batch of lines, a change of a unit. Between two of them a task that is connected
    waits, which is a success too. ``interval`` are the seconds between two looks at all this.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._interval = interval
        self._clock = clock
        self._monotonic = monotonic
        self._tasks: dict[object, str] = {}
        self._waiting: dict[object, float] = {}
        self._runs = 0
        self._failures = 0
        self._last_success: float | None = None
        self._duration = 0.0
        self._log = StateLog(f"source.{name}")

    @property
    def used(self) -> bool:
        """Return whether the source has a task."""
        return bool(self._tasks)

    def joined(self, task: object) -> None:
        """Take in a new task, whose first answer is waited for."""
        self._tasks[task] = ""
        self._waiting[task] = self._monotonic()

    def ran(self, task: object, error: str = "", duration: float = 0.0, *, more: bool = False) -> None:
        """Note a run of ``task`` or its failure; ``more`` where it does not yet have all there is."""
        if task not in self._tasks:
            return
        self._runs += 1
        self._failures += bool(error)
        self._duration = duration
        self._tasks[task] = error
        if more:
            self._waiting[task] = self._monotonic()
        else:
            self._waiting.pop(task, None)

    def left(self, task: object) -> None:
        """Forget a task."""
        self._tasks.pop(task, None)
        self._waiting.pop(task, None)

    def health(self) -> SourceHealth:
        """Return the health now; without an error in any task, and with an answer of each, the source succeeds."""
        now = self._monotonic()
        overdue = any(now - since > ANSWER for since in self._waiting.values())
        errors = {error for error in self._tasks.values() if error} | ({"no answer yet"} if overdue else set())
        error = "; ".join(sorted(errors))
        if not error and self._runs:
            self._last_success = self._clock()
        self._log.note(error)
        return SourceHealth(
            self.name,
            self._interval,
            success=not error,
            duration=self._duration,
            last_success=self._last_success,
            runs=self._runs,
            failures=self._failures,
            error=error,
            settled=not self._waiting or bool(error),
        )
