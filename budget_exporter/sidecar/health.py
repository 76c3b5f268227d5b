"""How the event-driven sources fare: those that are told of changes instead of looking for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from budget_exporter.facts.source import SourceHealth
from budget_exporter.sidecar.runner import StateLog

__all__ = ["ANSWER", "Health"]

ANSWER = 5.0
"""Seconds a task may wait for its first answer, for a further one until it has all there is, and beyond its beat."""


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
        self._due: dict[object, float] = {}
        """When the next answer of a task is due; a task that may be silent for any time is not in it."""
        self._new: set[object] = set()
        """Tasks that do not have all there is yet."""
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
        self._due[task] = self._monotonic() + ANSWER
        self._new.add(task)

    def ran(
        self, task: object, error: str = "", duration: float = 0.0, *, more: bool = False, beat: float | None = None
    ) -> None:
        """
        Note a run of ``task``, or its failure; not after it left.

        ``more`` says that it does not yet have all there is, ``beat`` within how many seconds it will run again if it
        does not hang; None where that cannot be told.
        """
        if task not in self._tasks:
            return
        self._runs += 1
        self._failures += bool(error)
        self._duration = duration
        self._tasks[task] = error
        if not more:
            self._new.discard(task)
        self._due.pop(task, None)
        if not error and (more or beat is not None):
            self._due[task] = self._monotonic() + ANSWER + (beat or 0.0)

    def left(self, task: object) -> None:
        """Forget a task."""
        self._tasks.pop(task, None)
        self._due.pop(task, None)
        self._new.discard(task)

    def overdue(self, task: object) -> bool:
        """Return whether an answer of ``task`` has been due for a while: it hangs."""
        return task in self._due and self._monotonic() > self._due[task]

    def health(self) -> SourceHealth:
        """Return the health now; without an error in any task, and with an answer of each, the source succeeds."""
        overdue = any(self.overdue(task) for task in self._due)
        errors = {error for error in self._tasks.values() if error} | ({"no answer"} if overdue else set())
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
            settled=not self._new or bool(error),
        )
