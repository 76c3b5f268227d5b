"""Count restarts from two witnesses that overlap: new main processes and the supervisor's own counter."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    unit: str = ""
    """Whose counter ``nrestarts`` is: another unit's is no continuation of it."""
    _announced: bool = False
    """The counter went up; the process of the last of these restarts has not been seen yet."""
    _unannounced: list[float] = field(default_factory=list)
    """When new processes were counted that the counter may still account for."""

    def process(self, now: float) -> None:
        """Count a new main process seen at ``now``, unless the supervisor has announced it."""
        if self._announced:
            self._announced = False
            return
        self.total += 1
        if self.nrestarts is not None:
            self._unannounced.append(now)

    def silent(self, now: float) -> None:
        """Note that the supervisor cannot be heard: its next word may be of any process counted since."""
        self._unannounced = [now] * len(self._unannounced)

    def counter(self, nrestarts: int | None, now: float, unit: str = "") -> int:
        """
        Take the counter of ``unit``: what it went up by and was not seen as a process is counted.

        Return by how much it went up. The first word, no word, and a counter that a manual restart has reset count
        nothing.
        """
        old = self.nrestarts if unit == self.unit else None
        self.nrestarts, self.unit = nrestarts, unit
        lately = [at for at in self._unannounced if now - at <= LAG]
        if old is None or nrestarts is None or nrestarts <= old:
            self._unannounced = lately
            self._announced = self._announced and nrestarts == old
            return 0
        rise = nrestarts - old
        seen = min(rise, len(lately))
        self._unannounced = lately[seen:]
        self.total += rise - seen
        # Those that nobody saw came before those that were seen.
        self._announced = not seen
        return rise
