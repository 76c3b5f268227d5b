"""Records of one engine to what it says of its boots: phase, facts per rank, and how it died."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from budget_exporter.evidence import Record
from budget_exporter.evidence.collected import Collected
from budget_exporter.evidence.course import Course
from budget_exporter.evidence.line_time import line_time
from budget_exporter.evidence.records import Line, Writer, lines
from budget_exporter.evidence.sentences import INTEREST, TABLES, Sentences, Tables
from budget_exporter.evidence.statements import BootFact, Death, Figure, Mark, PlanFact, RankFact, Reading
from budget_exporter.facts.boot import BootReport, Failure

__all__ = ["INTEREST", "BootReader"]

_LIMIT = 1 << 16
"""Bytes of a line that are looked at."""
_MAIN = ("APIServer", "MainProcess")
_QUOTES_WORKER = "Worker failed with error"


class BootReader:
    """
    Read the log of one engine, boot after boot.

    ``initial`` is what is already known of the boot the log goes on with, ``clock`` gives Unix seconds, ``tables`` what
    to look for. Not safe for use from two threads at once.
    """

    def __init__(
        self,
        initial: BootReport | None = None,
        clock: Callable[[], float] = time.time,
        tables: Tables = TABLES,
        over: Callable[[BootReader], None] | None = None,
    ) -> None:
        self._clock, self._tables, self._over = clock, tables, over
        self._finished: list[Failure] = []
        self._sentences = Sentences(tables)
        self._lines = 0
        self.boots = 0
        """Boot starts seen."""
        self._sentences.unparsed = initial.unparsed if initial else 0
        self._begin(initial or BootReport())
        self._course.touched = initial is not None

    def _begin(self, base: BootReport) -> None:
        self.main_pid: int | None = None
        """PID the newest boot's API server printed of itself (in its own PID namespace)."""
        self._collected = Collected(base)
        self._course = Course(base, self._collected, self._clock)
        self._engines: dict[str, int | None] = {}
        self._core = Writer()
        self._shown: list[tuple[Figure, Writer, int]] = []
        self._counted = False

    def feed(self, batch: Sequence[Record]) -> None:
        """Take in the next records; nothing in them can make this raise."""
        for record in batch:
            self._record(record)
            if self._tables.figures:
                self._lines += record.data.count(b"\n") + 1

    def _record(self, record: Record) -> None:
        """Read the lines of interest, and those after a sentence that has not ended."""
        data, at = record.data, 0
        while at < len(data):
            if not self._sentences.pending:
                found = (self._tables.news if self._course.calm else self._tables.interest).search(data, at)
                if found is None:
                    return
                at = max(at, data.rfind(b"\n", at, found.start()) + 1, data.rfind(b"\r", at, found.start()) + 1)
            end = _line_end(data, at)
            cut = (record.cut and end == len(data)) or end - at > _LIMIT
            for line in lines(data[at : min(end, at + _LIMIT)], cut=cut):
                self._line(replace(line, number=self._number(data, at)) if self._tables.figures else line, record)
            at = end + 1

    def _number(self, data: bytes, at: int) -> int:
        """Return the number of the physical line that begins at ``at``, counted from 1."""
        return self._lines + data.count(b"\n", 0, at) + 1

    def report(self) -> BootReport:
        """Return what the newest boot has said so far."""
        return BootReport(
            **self._collected.fields(),
            phase=self._course.phase,
            phase_at=self._course.phase_at,
            failure=self._course.watch.failure,
            unparsed=self._sentences.unparsed,
        )

    def conclude(self) -> BootReport:
        """Return what the newest boot has said, its log being at its end: with what can be presumed of a death."""
        known = self.report()
        failure = self._course.presumed()
        return known if failure is None else replace(known, failure=failure, phase="failing")

    @property
    def said(self) -> bool:
        """Return whether the newest boot has said anything."""
        return self._course.touched or bool(self._shown)

    def figures(self) -> list[tuple[Figure, int | None, int]]:
        """Return each number the newest boot printed, the rank that printed it and the number of its line."""
        found = [(figure, self._collected.rank_of(writer), number) for figure, writer, number in self._shown]
        return list(dict.fromkeys(found))

    def take_failures(self) -> tuple[Failure, ...]:
        """Return the deaths told to the end since the last call, oldest first, one for each boot that died."""
        last = self._course.watch.take(self._clock())
        taken = (*self._finished, *(() if last is None else (last,)))
        self._finished = []
        return taken

    def _line(self, line: Line, record: Record) -> None:
        for reading, source in self._sentences.read(line):
            if reading.statements:
                self._take(reading, source, record)
            self._shown += [(figure, source.writer, source.number) for figure in reading.figures]

    def _take(self, reading: Reading, line: Line, record: Record) -> None:
        at = line_time(record.at, line.at, line.stamp, self._clock, record.zone)
        self._boundaries(reading, line)
        self._course.touched = True
        self._collected.seen(line.writer)
        process: Hashable = line.writer.pid
        for statement in sorted(reading.statements, key=_marks_first):
            if isinstance(statement, Mark):
                self._course.mark(statement, line, process, at)
            elif isinstance(statement, Death):
                self._course.death(statement, line, process, at)
            elif not (isinstance(statement, RankFact) and _QUOTES_WORKER in line.text):
                self._collected.add(line.writer, statement)
        if any(isinstance(said, RankFact | PlanFact | BootFact) for said in reading.statements) and not any(
            isinstance(said, Death) for said in reading.statements
        ):
            self._course.sign_of_life(process, serving=False, alive=False)

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
        if "banner" in names and self._course.touched and not writer.process.startswith("ApiServer_"):
            return True
        if main and self.main_pid is not None and writer.pid != self.main_pid:
            return True
        died = self._course.watch.failure is not None and not self._course.watch.tentative
        if died and _another_core(self._core, writer):
            return True
        if "engine" not in names or writer.process not in self._engines:
            return False
        replaced = writer.pid is None or writer.pid != self._engines[writer.process]
        if replaced and self.main_pid is not None:
            self._respawn()
        return replaced and self.main_pid is None

    def _next_boot(self) -> None:
        last = self._course.watch.take(self._clock(), over=True)
        if last is not None:
            self._finished.append(last)
        if self._over is not None:
            self._over(self)
        self._begin(BootReport())

    def _respawn(self) -> None:
        """Forget the ranks: the API server lives on and has started another engine core (cold compile of the fork)."""
        self._collected.forget_ranks()
        self._course.respawn()


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
