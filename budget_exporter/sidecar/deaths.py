"""Count each death of an engine once: by what its log tells, else by the supervisor's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from budget_exporter.facts.boot import CAUSES, Cause, Failure, Phase

__all__ = ["PATIENCE", "PATIENCE_LOG", "Deaths"]

PATIENCE = 5.0
"""Seconds after an end in which a log that has told nothing yet may still tell why."""
PATIENCE_LOG = 20.0
"""The same for a log that has told of trouble: some deaths count as told only 15 s after their last line."""
EARLY = 3.0
"""Seconds by which the supervisor may know of an end before it shows in the list of processes."""
FORGET = 3600.0
"""Seconds after which an end that was counted is let go."""
KEPT = 10
"""Deaths of which the time is kept."""


@dataclass(slots=True)
class _End:
    """A main process that is gone and of which the log has not told why."""

    at: float
    phase: Phase
    unasked: bool
    """Whether the supervisor says that nobody asked for it."""
    counted: bool = False
    """Whether it was counted by that word."""


@dataclass(slots=True)
class Deaths:
    """
    Deaths of one engine by cause.

    An end is a death where the log tells of one, or where the supervisor says that nobody asked for it. Whichever comes
    first counts it; what the log tells later only explains it.
    """

    counts: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    last: Failure | None = None
    lately: list[float] = field(default_factory=list)
    """Unix times of the newest deaths counted."""
    _told: bool = False
    """Whether the log has told the death of the process that is still running."""
    _ends: list[_End] = field(default_factory=list)
    _unasked_at: float | None = None
    """When the supervisor last said that an end was none of its doing."""

    def recall(self, counts: Mapping[Cause, int], last: Failure | None, lately: Iterable[float] = ()) -> None:
        """Take up what an earlier exporter counted."""
        self.counts.update(counts)
        self.last = last
        self.lately = list(lately)

    def ended(self, at: float, phase: Phase) -> None:
        """Note that the main process was found gone at ``at``; ``phase`` is the last it was known in."""
        self._ends = [end for end in self._ends if not end.counted]
        if not self._told:
            early = self._unasked_at is not None and 0 <= at - self._unasked_at <= EARLY
            self._ends.append(_End(at, phase, unasked=early))
        self._told = False

    def tell(self, failure: Failure, *, present: bool) -> None:
        """Take a death the log tells of; ``present`` where it is that of the process that still runs."""
        end = self._ends.pop(0) if self._ends and not present else None
        if end is None or not end.counted:
            self._count(failure.cause, failure.at)
        self._told = self._told or present
        self.last = failure

    def _count(self, cause: Cause, at: float) -> None:
        self.counts[cause] += 1
        self.lately = [*self.lately[1 - KEPT :], at]

    def unasked(self, now: float) -> None:
        """Take the supervisor's word that the process ended, or was replaced, without having been asked to."""
        self._unasked_at = now
        # The newest alone: one before it, of a moment ago, may have been asked for.
        for end in self._ends[-1:]:
            end.unasked = end.unasked or now - end.at <= PATIENCE

    def judge(self, now: float, *, troubled: bool) -> None:
        """
        Count the ends that the supervisor knows to be deaths and the log had time to explain.

        ``troubled`` says that the log is not read to its end, or has told of trouble that may be a death's beginning.
        """
        patience = PATIENCE_LOG if troubled else PATIENCE
        for end in self._ends:
            if end.unasked and not end.counted and now - end.at >= patience:
                end.counted = True
                self._count("unknown", end.at)
                self.last = Failure(at=end.at, phase=end.phase, cause="unknown")
        # An end that was counted is kept longer: the next boot's first line may be what makes the log tell of it.
        self._ends = [end for end in self._ends if now - end.at <= (FORGET if end.counted else PATIENCE_LOG)]
