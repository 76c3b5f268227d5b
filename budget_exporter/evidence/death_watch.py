"""Which of a dying engine's sentences is the cause, and when its death is told to the end."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from budget_exporter.evidence.phases import CAUSE_OF_PHASE, earlier
from budget_exporter.evidence.statements import Allocation, Death
from budget_exporter.facts.boot import Cause, Failure, Phase

__all__ = ["DeathWatch"]

_SETTLE = 3.0
"""Seconds after the last sentence of a death until it counts as told: a cascade takes about two."""
_SETTLE_SERVING = 15.0
"""The same for an OOM while serving that no process called fatal: vLLM logs its statistics every 10 s if it lives."""
_SAME_DEATH = 60.0
"""Seconds within which an end belongs to an OOM the engine seemed to have outlived."""
_RUNNING, _STAGE, _STEP = 1, 2, 3
"""How sure the frame of a traceback tells the phase."""


@dataclass(slots=True)
class DeathWatch:
    """
    One boot's death, if it dies.

    ``root`` is the first sentence that names a cause; it becomes final when a parent says that the engine is gone, when
    nothing more is said of it, or when the next boot starts.
    """

    root: Failure | None = None
    by_phase: bool = False
    """Whether the cause followed from the phase; then a sentence that names it is better."""
    ended: bool = False
    tentative: bool = False
    """An exception that may have been caught: later progress of its own process clears it."""
    process: Hashable = None
    """Who said the root."""
    outlived: bool = False
    told: bool = False
    last_word: bool = False
    heard: float = 0.0
    exception_at: float | None = None
    hints: dict[Hashable, tuple[Phase, int]] = field(default_factory=dict)
    """
    Innermost known frame of a process's latest traceback, and how sure it is.

    _STEP for what does one thing of a phase, _STAGE for what does all of a phase, _RUNNING for "the engine was
    running", 0 for code that mostly runs in one phase.
    """
    innermost: int = 0
    """How sure the last frame or line of any traceback is; _STEP also where it is of no phase, but takes memory."""
    methods: dict[Hashable, Phase] = field(default_factory=dict)
    """Phase of the worker method that a process said it had failed in: its tracebacks come after that."""
    allocation: Allocation | None = None
    """The allocator's account of the root."""
    boot_failed: bool = False
    """Whether a parent said that the engine never came up."""
    trouble: Failure | None = None
    """Where a process said that it failed, while none has said why."""
    handlers: int = 0
    """Requests that ended because the engine was dead."""
    one_running: bool = False

    def frame(self, process: Hashable, phase: Phase, sure: int = _STEP) -> None:
        """Note a frame of ``process``'s traceback, unless a surer one is known."""
        self.innermost = sure
        if sure and sure >= self.hints.get(process, (phase, 0))[1]:
            self.hints[process] = (phase, sure)
        else:
            self.hints.setdefault(process, (phase, sure))

    def hint(self, *, weak: bool = False) -> Phase | None:
        """Return the phase the frames of the process tell that died; the ``weak`` ones only where asked for."""
        found = self._hint()
        return None if found is None or (found[1] == 0 and not weak) else found[0]

    def torn_in(self) -> Phase | None:
        """
        Return the phase in which an exception that was not told must have been one of memory, if any.

        What does all of a phase may fail of anything, and so may what runs, but for the first request of all.
        """
        found = self._hint()
        vague = self.innermost == _STAGE or (self.innermost == _RUNNING and not self.alone)
        return None if found is None or vague else found[0]

    def _hint(self) -> tuple[Phase, int] | None:
        process = self.process if self.root is not None and self.process in self.hints else None
        return self.hints.get(process) or max(self.hints.values(), key=lambda known: known[1], default=None)

    @property
    def alone(self) -> bool:
        """Return whether exactly one request is known to have been under way."""
        return self.one_running or self.handlers == 1

    def note(self, failure: Failure) -> None:
        """Note that a process said that it failed; why may follow."""
        self.trouble = self.trouble or failure

    def traceback(self, process: Hashable) -> None:
        """Forget the frames of the process's previous traceback."""
        self.hints.pop(process, None)
        if process in self.methods:
            self.hints[process] = (self.methods[process], _STAGE)

    def method(self, process: Hashable, phase: Phase) -> None:
        """Note the worker method that failed (V0: ``while processing method load_model``), told before or after."""
        self.hints[process], self.methods[process] = (phase, _STAGE), phase
        if self.root is not None and self.root.cause == "unknown" and self.by_phase:
            self.root = replace(self.root, phase=phase, cause=CAUSE_OF_PHASE.get(phase, "unknown"))

    def sentence(
        self, death: Death, *, at: float, heard: float, phase: Phase, process: Hashable, rank: int | None, served: bool
    ) -> None:
        """Take in one sentence: ``at`` its Unix time, ``heard`` ours, ``served`` whether a request was completed."""
        self.heard = heard
        if death.kind == "root":
            cause, where = self._cause(death, phase, process, served=served)
            failure = Failure(at, where, cause, rank if rank is not None else death.local_rank, death.tried, death.free)
            self._root(failure, process, death)
        elif death.kind == "refine" or (death.kind == "place" and self.root is not None and not self.tentative):
            self._refine(death, at, rank)
        elif death.kind == "place":
            return
        elif death.kind == "other":
            self._other(at, phase, rank, process)
        else:
            self._end(at, phase, death.local_rank if death.local_rank is not None else rank)

    def _cause(self, death: Death, phase: Phase, process: Hashable, *, served: bool) -> tuple[Cause, Phase]:
        if death.cause is not None:
            return death.cause, death.phase or phase
        hint, sure = self.hints.get(process, (None, 0))
        hint = hint if sure else None
        where = phase if phase == "sleeping" or (phase == "serving" and hint != "sleeping") else hint or phase
        if where == "serving" and phase == "serving" and not served:
            return "first_request_oom", where
        return CAUSE_OF_PHASE.get(where, "unknown"), where

    def _root(self, failure: Failure, process: Hashable, death: Death) -> None:
        known, by_phase = self.root, death.cause is None
        if (
            known is None
            or self.tentative
            or self._stale(failure.at)
            or (known.cause == "unknown" and not self.by_phase)
            # No boot comes so far as the one and then dies of the other: they are two deaths in one excerpt, and the
            # one of the earlier phase must be got over first.
            or (death.cause is not None and not self.by_phase and earlier(failure.phase, known.phase))
        ):
            self.root, self.by_phase, self.tentative, self.outlived = failure, by_phase, False, False
            self.process, self.allocation = process, death.allocation
        elif known.tried is None and failure.tried is not None and (self.by_phase or known.cause.endswith("oom")):
            self.root = replace(known, tried=failure.tried, free=failure.free, rank=_first(known.rank, failure.rank))
            self.allocation = death.allocation
        elif known.cause == "unknown" and failure.cause != "unknown":
            # A runtime tells of itself before the engine shows where it was.
            self.root, self.by_phase = replace(known, cause=failure.cause, phase=failure.phase), by_phase
        elif known.tried == failure.tried and process == self.process:
            self._fill(failure, death)

    def _fill(self, again: Failure, death: Death) -> None:
        """Take what the same sentence tells when it is read to its end, or printed again."""
        if self.root is not None and self.root.free is None:
            self.root = replace(self.root, free=again.free)
        if self.allocation is None or self.allocation.slack is None:
            self.allocation = death.allocation

    def _stale(self, at: float) -> bool:
        return self.outlived and self.root is not None and at - self.root.at > _SAME_DEATH

    def _refine(self, death: Death, at: float, rank: int | None) -> None:
        cause, phase = death.cause or "unknown", death.phase or "unknown"
        if self.root is None or self.tentative:
            self.root, self.by_phase, self.tentative = Failure(at, phase, cause, rank), True, False
        elif self.by_phase:
            self.root = replace(self.root, cause=cause, phase=phase)

    def _other(self, at: float, phase: Phase, rank: int | None, process: Hashable) -> None:
        self.exception_at = at
        if self.root is None and phase not in ("serving", "sleeping", "stopped"):
            self.root, self.tentative, self.by_phase = Failure(at, phase, "not_memory", rank), not self.ended, False
            self.process = process
        elif self.root is not None and self.ended and self.root.cause == "unknown" and not self.by_phase:
            self.root = replace(self.root, cause="not_memory")

    def _end(self, at: float, phase: Phase, rank: int | None) -> None:
        if self.root is None or self._stale(at):
            known = self.exception_at is not None and abs(at - self.exception_at) <= _SAME_DEATH
            self.root, self.by_phase = Failure(at, phase, "not_memory" if known else "unknown", rank), False
        self.ended, self.tentative, self.outlived = True, False, False

    def progress(self, process: Hashable, *, serving: bool, alive: bool) -> None:
        """Take in a sign of life of ``process``; some make a suspected death none."""
        if serving or alive:
            self.trouble = None
        if self.root is None or self.ended:
            return
        if serving or (self.tentative and process == self.process):
            self.root, self.tentative = None, False
        elif alive and self.root.phase == "serving":
            self.outlived = True

    @property
    def calm(self) -> bool:
        """Return whether a sign of life would change nothing."""
        return self.root is None or self.ended

    @property
    def failure(self) -> Failure | None:
        """Return what killed the engine, as far as it is known now."""
        return None if self.outlived else self.root

    def take(self, now: float, *, over: bool = False) -> Failure | None:
        """Return the failure once, when it is told to the end; ``over`` when the next boot has begun."""
        if self.told or self.failure is None:
            return None
        settle = _SETTLE if self.ended or self.failure.phase != "serving" else _SETTLE_SERVING
        settled = not self.tentative and now - self.heard >= settle
        if over or settled or (self.last_word and (self.ended or not self.tentative)):
            self.told = True
            return self.failure
        return None


def _first(one: int | None, other: int | None) -> int | None:
    return one if one is not None else other
