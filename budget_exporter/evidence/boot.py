"""Records of one engine to what it says of its boots: phase, facts per rank, and how it died."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

from budget_exporter.evidence import Record
from budget_exporter.evidence.collected import Collected
from budget_exporter.evidence.death_watch import DeathWatch
from budget_exporter.evidence.line_time import line_time
from budget_exporter.evidence.records import Line, Writer, lines
from budget_exporter.evidence.sentences import INTEREST, NEWS, TABLE, Sentences
from budget_exporter.evidence.statements import BootFact, Death, Mark, PlanFact, RankFact, Reading
from budget_exporter.facts.boot import BootReport, Failure, Phase

__all__ = ["INTEREST", "BootReader"]

_LIMIT = 1 << 16
"""Bytes of a line that are looked at."""
_MAIN = ("APIServer", "MainProcess")
_QUOTES_WORKER = "Worker failed with error"


class BootReader:
    """
    Read the log of one engine, boot after boot.

    ``initial`` is what is already known of the boot the log goes on with, ``clock`` gives Unix seconds. Not safe for
    use from two threads at once.
    """

    def __init__(self, initial: BootReport | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._finished: list[Failure] = []
        self._sentences = Sentences(TABLE)
        self.boots = 0
        """Boot starts seen."""
        self._sentences.unparsed = initial.unparsed if initial else 0
        self._begin(initial or BootReport())
        self._touched = initial is not None

    def _begin(self, base: BootReport) -> None:
        self.main_pid: int | None = None
        """PID the newest boot's API server printed of itself (in its own PID namespace)."""
        self._collected = Collected(base)
        self._watch = DeathWatch(root=base.failure, told=base.failure is not None, ended=base.failure is not None)
        self._phase: Phase = base.phase
        self._phase_at = base.phase_at
        self._before = (self._phase, self._phase_at)
        self._engines: dict[str, int | None] = {}
        self._core = Writer()
        self._touched = self._counted = self._served = self._stopping = self._seen_serving = False

    def feed(self, batch: Sequence[Record]) -> None:
        """Take in the next records; nothing in them can make this raise."""
        for record in batch:
            self._record(record)

    def _record(self, record: Record) -> None:
        """Read the lines of interest, and those after a sentence that has not ended."""
        data, at = record.data, 0
        while at < len(data):
            if not self._sentences.pending:
                found = (NEWS if self._calm else INTEREST).search(data, at)
                if found is None:
                    return
                at = max(at, data.rfind(b"\n", at, found.start()) + 1, data.rfind(b"\r", at, found.start()) + 1)
            end = _line_end(data, at)
            cut = (record.cut and end == len(data)) or end - at > _LIMIT
            for line in lines(data[at : min(end, at + _LIMIT)], cut=cut):
                self._line(line, record)
            at = end + 1

    @property
    def _calm(self) -> bool:
        """Return whether a sign of life would tell nothing: the engine serves, and no ill is known of it."""
        return self._phase == "serving" and self._served and self._watch.calm

    def report(self) -> BootReport:
        """Return what the newest boot has said so far."""
        return BootReport(
            **self._collected.fields(),
            phase=self._phase,
            phase_at=self._phase_at,
            failure=self._watch.failure,
            unparsed=self._sentences.unparsed,
        )

    def take_failures(self) -> tuple[Failure, ...]:
        """Return the deaths told to the end since the last call, oldest first, one for each boot that died."""
        last = self._watch.take(self._clock())
        taken = (*self._finished, *(() if last is None else (last,)))
        self._finished = []
        return taken

    def _line(self, line: Line, record: Record) -> None:
        for reading, source in self._sentences.read(line):
            if reading.statements:
                self._take(reading, source, record)

    def _take(self, reading: Reading, line: Line, record: Record) -> None:
        at = line_time(record.at, line.at, line.stamp, self._clock)
        self._boundaries(reading, line)
        self._touched = True
        self._collected.seen(line.writer)
        process: Hashable = line.writer.pid
        for statement in sorted(reading.statements, key=_marks_first):
            if isinstance(statement, Mark):
                self._mark(statement, line, process, at)
            elif isinstance(statement, Death):
                self._death(statement, line, process, at)
            elif not (isinstance(statement, RankFact) and _QUOTES_WORKER in line.text):
                self._collected.add(line.writer, statement)
        if any(isinstance(said, RankFact | PlanFact | BootFact) for said in reading.statements) and not any(
            isinstance(said, Death) for said in reading.statements
        ):
            self._alive(process, serving=False, alive=False)

    def _boundaries(self, reading: Reading, line: Line) -> None:
        """Begin a new boot where the line shows one: a banner, another API server, or an engine without one."""
        names = {said.name for said in reading.statements if isinstance(said, Mark)}
        writer = line.writer
        main = writer.process in _MAIN and writer.pid is not None
        starts = self._starts(names, writer, main=main)
        if starts:
            self._next_boot()
        if main:
            self.main_pid = writer.pid
        if writer.process.startswith("EngineCore"):
            self._core = writer
        if "engine" in names:
            self._engines[writer.process] = writer.pid
        if (starts or names & {"banner", "engine"}) and not self._counted:
            self.boots += 1
            self._counted = True

    def _starts(self, names: set[str], writer: Writer, *, main: bool) -> bool:
        if "banner" in names and self._touched and not writer.process.startswith("ApiServer_"):
            return True
        if main and self.main_pid is not None and writer.pid != self.main_pid:
            return True
        died = self._watch.failure is not None and not self._watch.tentative
        if died and _another_core(self._core, writer):
            return True
        if "engine" not in names or writer.process not in self._engines:
            return False
        replaced = writer.pid is None or writer.pid != self._engines[writer.process]
        if replaced and self.main_pid is not None:
            self._respawn()
        return replaced and self.main_pid is None

    def _next_boot(self) -> None:
        last = self._watch.take(self._clock(), over=True)
        if last is not None:
            self._finished.append(last)
        self._begin(BootReport())

    def _respawn(self) -> None:
        """Forget the ranks: the API server lives on and has started another engine core (cold compile of the fork)."""
        self._collected.forget_ranks()
        self._watch = DeathWatch()
        self._phase = "unknown"

    def _mark(self, mark: Mark, line: Line, process: Hashable, at: float) -> None:
        if mark.name == "traceback":
            self._watch.traceback(process)
        elif mark.name in ("frame", "running") and mark.phase is not None:
            self._watch.frame(process, mark.phase, strong=mark.name == "frame")
        elif mark.name == "cumem":
            self._watch.frame(process, "sleeping", strong=self._phase in ("unknown", "serving"))
        elif mark.name == "method" and mark.phase is not None:
            self._watch.method(process, mark.phase)
        elif mark.name == "last_word":
            self._last_word(at)
        elif mark.name == "stopping":
            self._stop(at)
        elif mark.name in ("alive", "completed"):
            self._served = self._served or (mark.name == "completed" and self._phase == "serving")
            self._alive(process, serving=False, alive=True)
        elif line.level != "ERROR":
            self._progress(mark, process, at)

    def _progress(self, mark: Mark, process: Hashable, at: float) -> None:
        if mark.name in ("kv_available", "kv_size"):
            self._collected.forget_captures()
        phase = mark.phase
        if mark.name == "captured" and self._phase == "profiling":
            phase = "profiling"
        self._alive(process, serving=mark.name == "serving", alive=False)
        if phase is None or not self._may_follow(phase):
            return
        self._seen_serving = self._seen_serving or phase == "serving"
        self._set(phase, at)

    def _may_follow(self, phase: Phase) -> bool:
        """Tell whether a line of ``phase`` moves the boot: stragglers and figures repeated later do not."""
        if phase == "starting":
            return self._phase == "unknown"
        if self._phase in ("serving", "sleeping"):
            return phase in ("serving", "sleeping")
        return self._phase != "stopped" and self._watch.failure is None

    def _alive(self, process: Hashable, *, serving: bool, alive: bool) -> None:
        was = self._watch.failure
        self._watch.progress(process, serving=serving, alive=alive)
        if was is not None and self._watch.failure is None and self._phase == "failing":
            self._phase, self._phase_at = self._before

    def _set(self, phase: Phase, at: float) -> None:
        if phase != self._phase:
            self._before = (self._phase, self._phase_at)
            self._phase, self._phase_at = phase, at

    def _stop(self, at: float) -> None:
        if self._watch.failure is None:
            self._stopping = True
            self._set("stopped", at)

    def _last_word(self, at: float) -> None:
        self._watch.last_word = True
        if self._watch.failure is None and self._touched:
            self._set("stopped", at)

    def _death(self, death: Death, line: Line, process: Hashable, at: float) -> None:
        if self._stopping or (death.kind == "other" and (line.cut or line.level not in ("", "ERROR", "CRITICAL"))):
            return
        phase = self._watch.failure.phase if self._phase == "failing" and self._watch.failure else self._phase
        self._watch.sentence(
            death,
            at=at,
            heard=self._clock(),
            phase=phase,
            process=process,
            rank=self._collected.rank_of(line.writer),
            served=self._served or not self._seen_serving,
        )
        if self._watch.failure is not None:
            self._set("failing", at)


def _line_end(data: bytes, start: int) -> int:
    """Return where the line that begins at ``start`` ends."""
    newline = data.find(b"\n", start)
    end = newline if newline >= 0 else len(data)
    carriage = data.find(b"\r", start, end)
    return carriage if carriage >= 0 else end


def _another_core(known: Writer, writer: Writer) -> bool:
    """Tell whether ``writer`` is an engine core of the same name with another PID: the one that died is replaced."""
    return known.process == writer.process and None not in (known.pid, writer.pid) and known.pid != writer.pid


def _marks_first(said: object) -> bool:
    """Order what one line says: where the engine is before what happened there."""
    return not isinstance(said, Mark)
