"""Count restarts from two witnesses that overlap: new main processes and the supervisor's own counter."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartCount"]

LAG = 5.0
"""Seconds by which the supervisor's word may come after we saw the new process."""


@dataclass(slots=True)
class RestartCount:
    """
    Restarts of one engine, each counted once.

    A restart shows as a new main process, and, where the supervisor made it, as its counter going up by one, in either
    order. A process that died before it could be seen shows in the counter only; a manual restart as a process only.
    """

    total: int = 0
    nrestarts: int | None = None
    _announced: bool = False
    """The counter went up; the process of the last of these restarts has not been seen yet."""
    _unannounced_at: float | None = None
    """When a new process was counted that the counter may still account for."""

    def process(self, now: float) -> None:
        """Count a new main process seen at ``now``, unless the supervisor has announced it."""
        if self._announced:
            self._announced = False
            return
        self.total += 1
        self._unannounced_at = now

    def counter(self, nrestarts: int | None, now: float) -> None:
        """Take the supervisor's counter: what it went up by and was not seen as a process is counted."""
        old, self.nrestarts = self.nrestarts, nrestarts
        if old is None or nrestarts is None or nrestarts <= old:
            return  # the first word, no word, or a manual restart that reset it
        seen = self._unannounced_at is not None and now - self._unannounced_at <= LAG
        self._unannounced_at = None
        self.total += nrestarts - old - seen
        self._announced = not seen
