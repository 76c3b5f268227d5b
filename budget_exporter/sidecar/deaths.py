"""Count each death of an engine once: by what its log tells, else by the supervisor's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from budget_exporter.facts.boot import CAUSES, BootReport, Cause, Failure, Phase
from budget_exporter.facts.engine import Supervision, UnitState

__all__ = ["PATIENCE", "PATIENCE_LOG", "Deaths", "died"]

DEAD: frozenset[UnitState] = frozenset({"failed", "auto_restart"})

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
    asked: bool = False
    """Whether the supervisor says that somebody did."""
    counted: bool = False
    """Whether it was counted by the supervisor's word."""


@dataclass(slots=True)
class Deaths:
    """
    Deaths of one engine by cause.

    An end is a death where the log tells of one, or where the supervisor says that nobody asked for it. Whichever comes
    first counts it; what the log tells later only explains it.
    """

    counts: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    last: Failure | None = None
    lately: list[Failure] = field(default_factory=list)
    """The newest deaths counted, oldest first."""
    restarts: list[float] = field(default_factory=list)
    """
    Unix times of the newest restarts that nobody asked for, by the supervisor's counter.

    Of lives so short that nobody saw them it is the only word where the log has none.
    """
    _told: bool = False
    """Whether the log has told the death of the process that is still running."""
    _ends: list[_End] = field(default_factory=list)
    _unasked_at: float | None = None
    """When the supervisor last said that an end was none of its doing; None since another process has begun."""
    _asked_at: float | None = None
    """When it last said that an end was."""

    def recall(self, counts: Mapping[Cause, int], last: Failure | None, lately: Iterable[Failure] = ()) -> None:
        """Take up what an earlier exporter counted."""
        self.counts.update(counts)
        self.last = last
        self.lately = list(lately)

    def ended(self, at: float, phase: Phase) -> None:
        """Note that the main process was found gone at ``at``; ``phase`` is the last it was known to work in."""
        self._ends = [end for end in self._ends if not end.counted]
        if not self._told:
            unasked = _lately(self._unasked_at, at)
            self._ends.append(_End(at, phase, unasked=unasked, asked=_lately(self._asked_at, at) and not unasked))
        self._told = False

    def began(self) -> None:
        """Note that another main process has begun: what the supervisor said so far is not of that one."""
        self._unasked_at = self._asked_at = None

    def tell(self, failure: Failure, *, present: bool) -> None:
        """Take a death the log tells of; ``present`` where it is that of the process that still runs."""
        end = self._ends.pop(0) if self._ends and not present else None
        if end is None or not end.counted:
            self._count(failure)
        else:
            self.lately = [failure if _is(known, end) else known for known in self.lately]
        self._told = self._told or present
        self.last = failure

    def _count(self, failure: Failure) -> None:
        self.counts[failure.cause] += 1
        self.lately = [*self.lately[1 - KEPT :], failure]

    def asked(self, now: float) -> None:
        """Take the supervisor's word that somebody asked for the end of the newest process."""
        self._asked_at = now
        for end in self._ends[-1:]:
            end.asked = end.asked or (now - end.at <= PATIENCE and not end.unasked)

    def unasked(self, now: float, *, running: bool = False, restarts: int = 0) -> None:
        """
        Take the supervisor's word that the process ended, or was replaced, without having been asked to.

        ``restarts`` are how many its counter went up by.
        ``running`` says that a process is there: then a word that fits no end so far is of that one, whose end was not
        noticed yet.
        """
        self._unasked_at = now
        self.restarts = [*self.restarts, *[now] * min(restarts, KEPT)][-KEPT:]
        # The newest alone: one before it, of a moment ago, may have been asked for.
        for end in self._ends[-1:]:
            fits = now - end.at <= PATIENCE and not (end.asked and running)
            end.unasked = end.unasked or fits

    def judge(self, now: float, *, troubled: bool) -> None:
        """
        Count the ends that the supervisor knows to be deaths and the log had time to explain.

        ``troubled`` says that the log is not read to its end, or has told of trouble that may be a death's beginning.
        """
        patience = PATIENCE_LOG if troubled else PATIENCE
        for end in self._ends:
            if end.unasked and not end.counted and now - end.at >= patience:
                end.counted = True
                self.last = Failure(at=end.at, phase=end.phase, cause="unknown")
                self._count(self.last)
        # An end that was counted is kept longer: the next boot's first line may be what makes the log tell of it.
        self._ends = [end for end in self._ends if now - end.at <= (FORGET if end.counted else PATIENCE_LOG)]


def _lately(said: float | None, at: float) -> bool:
    """Return whether what was said at one time can be of an end that shows at another."""
    return said is not None and 0 <= at - said <= EARLY


def _is(failure: Failure, end: _End) -> bool:
    return failure.cause == "unknown" and failure.at == end.at


def died(supervision: Supervision, words: BootReport | None, *, running: bool, failing: bool) -> bool:
    """
    Return whether the supervisor's word is that an engine ended by itself.

    ``words`` are the engine's own as far as its log is heard, ``failing`` says that its core was known to be dead. One
    that ended with 0 may have been sent a signal by hand: then its last words are those of a stop, and without words
    that cannot be told.
    """
    if supervision.state in DEAD:
        return not supervision.asked
    if supervision.state != "inactive" or supervision.asked is not False or running:
        return False
    return failing or (words is not None and words.phase != "stopped")
