"""Where one boot is: the phase machine, and what it makes of sentences of death."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from budget_exporter.evidence.collected import Collected
from budget_exporter.evidence.death_watch import DeathWatch
from budget_exporter.evidence.presumed import presumed
from budget_exporter.evidence.records import Line
from budget_exporter.evidence.statements import Death, Mark
from budget_exporter.facts.boot import BootReport, Failure, Phase

__all__ = ["Course"]

_SURE = {"hint": 0, "running": 1, "stage": 2, "frame": 3}
"""How sure a phase is that a line of a traceback tells."""
_TRACEBACK = ("traceback", "cumem", "method", "allocates", *_SURE)
_NOTES = ("last_word", "stopping", "trouble", "boot_failed", "one_running", "handler")


class Course:
    """
    The course of one boot, line by line.

    ``base`` is what is already known of it, ``collected`` keeps its facts, ``clock`` gives Unix seconds.
    """

    def __init__(self, base: BootReport, collected: Collected, clock: Callable[[], float]) -> None:
        self._collected, self._clock = collected, clock
        self.watch = DeathWatch(root=base.failure, told=base.failure is not None, ended=base.failure is not None)
        self.phase: Phase = base.phase
        self.phase_at = base.phase_at
        self.touched = False
        """Whether any line told something of this boot."""
        self._before = (self.phase, self.phase_at)
        self._served = self._stopping = self._seen_up = False

    @property
    def calm(self) -> bool:
        """Return whether a sign of life would tell nothing: the engine serves, and no ill is known of it."""
        return self.phase == "serving" and self._served and self.watch.calm

    def respawn(self) -> None:
        """Begin again within the boot: the engine core was started anew."""
        self.watch = DeathWatch()
        self.phase = "unknown"

    def presumed(self) -> Failure | None:
        """Return the failure, the log being at its end: with what can be presumed where nothing told the cause."""
        return presumed(self.watch, served=self._served or self._seen_up)

    def mark(self, mark: Mark, line: Line, process: Hashable, at: float) -> None:
        """Take in a line of ``process`` that tells where the boot is; ``at`` is its Unix time."""
        if mark.name in _TRACEBACK:
            self._traceback(mark, line, process, at)
        elif mark.name in _NOTES:
            self._note(mark.name, line, at)
        elif mark.name in ("alive", "asked", "batch", "completed"):
            self._living(mark, process, at)
        elif line.level != "ERROR":
            self._progress(mark, process, at)

    def _traceback(self, mark: Mark, line: Line, process: Hashable, at: float) -> None:
        if mark.name == "traceback":
            self.watch.traceback(process)
        elif mark.name == "cumem":
            self.watch.frame(process, "sleeping", 3 if self.phase in ("unknown", "serving") else 1)
        elif mark.name == "allocates":
            self.watch.innermost = _SURE["frame"]
            if line.level == "ERROR":
                self._trouble(line, at)
        elif mark.name == "method" and mark.phase is not None:
            self.watch.method(process, mark.phase)
        elif mark.phase is not None:
            self.watch.frame(process, mark.phase, _SURE[mark.name])
            if line.level == "ERROR":
                self._trouble(line, at)

    def _trouble(self, line: Line, at: float) -> None:
        self.watch.note(Failure(at, self.phase, "unknown", self._collected.rank_of(line.writer)))

    def _note(self, name: str, line: Line, at: float) -> None:
        if name == "last_word":
            self._last_word(at)
        elif name == "stopping":
            self._stop(at)
        elif name == "trouble":
            self._trouble(line, at)
        elif name == "boot_failed":
            self.watch.boot_failed = True
        elif name == "one_running":
            self.watch.one_running = True
        else:
            self.watch.handlers += 1

    def _living(self, mark: Mark, process: Hashable, at: float) -> None:
        """Take in what only an engine says that is up: statistics, requests taken and answered."""
        self._served = self._served or mark.name == "completed"
        # A script asks for all it wants at once: where its boot was seen, this is the first.
        self._seen_up = self._seen_up or (mark.name == "batch" and self.phase != "unknown")
        self.sign_of_life(process, serving=False, alive=True)
        if self.watch.failure is None and self.phase not in ("serving", "sleeping", "stopped"):
            self._set("serving", at)

    def _progress(self, mark: Mark, process: Hashable, at: float) -> None:
        if mark.name in ("kv_available", "kv_size"):
            self._collected.forget_captures()
        phase = mark.phase
        self._seen_up = self._seen_up or mark.name == "initialised"
        if mark.name == "captured" and self.phase == "profiling":
            phase = "profiling"
        self.sign_of_life(process, serving=mark.name == "serving", alive=False)
        if phase is None or not self._may_follow(phase):
            return
        self._seen_up = self._seen_up or phase == "serving"
        self._set(phase, at)

    def _may_follow(self, phase: Phase) -> bool:
        """Tell whether a line of ``phase`` moves the boot: stragglers and figures repeated later do not."""
        if phase == "starting":
            return self.phase == "unknown"
        if self.phase in ("serving", "sleeping"):
            return phase in ("serving", "sleeping")
        return self.phase != "stopped" and self.watch.failure is None

    def sign_of_life(self, process: Hashable, *, serving: bool, alive: bool) -> None:
        """Take in that ``process`` goes on: some suspected deaths are none then."""
        was = self.watch.failure
        self.watch.progress(process, serving=serving, alive=alive)
        if was is not None and self.watch.failure is None and self.phase == "failing":
            self.phase, self.phase_at = self._before

    def _set(self, phase: Phase, at: float) -> None:
        if phase != self.phase:
            self._before = (self.phase, self.phase_at)
            self.phase, self.phase_at = phase, at

    def _stop(self, at: float) -> None:
        if self.watch.failure is None:
            self._stopping = True
            self._set("stopped", at)

    def _last_word(self, at: float) -> None:
        self.watch.last_word = True
        if self.watch.failure is None and self.touched:
            self._set("stopped", at)

    def death(self, death: Death, line: Line, process: Hashable, at: float) -> None:
        """Take in a sentence of a dying engine."""
        if self._stopping or (death.kind == "other" and (line.cut or line.level not in ("", "ERROR", "CRITICAL"))):
            return
        phase = self.watch.failure.phase if self.phase == "failing" and self.watch.failure else self.phase
        if phase == "warming_up" and self._seen_up:
            # The engine core is up: what it allocates now it allocates for a request.
            phase = "serving"
        self.watch.sentence(
            death,
            at=at,
            heard=self._clock(),
            phase=phase,
            process=process,
            rank=self._collected.rank_of(line.writer),
            served=self._served or not self._seen_up,
        )
        if self.watch.failure is not None:
            self._set("failing", at)
