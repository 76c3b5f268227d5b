"""A whole log at once, for people: every boot with what it said, each figure as it was printed."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.figures import PATTERNS
from budget_exporter.evidence.prefilter import prefilter
from budget_exporter.evidence.sentences import TABLE, Tables
from budget_exporter.evidence.streams import apart
from budget_exporter.facts.boot import BootReport

__all__ = ["PrintedFigure", "Told", "read_log"]


@dataclass(frozen=True, slots=True)
class PrintedFigure:
    """
    One number of a log.

    ``value`` and ``unit`` are as printed, thousands separators off and no unit where none is printed; ``rank`` is None
    where neither line nor process tells it, ``line`` the number of the physical line its sentence began in, from 1.
    """

    name: str
    value: str
    unit: str | None
    rank: int | None
    line: int


@dataclass(frozen=True, slots=True)
class Told:
    """One boot of a log that has ended; of a death it also holds what can only be presumed."""

    report: BootReport
    figures: tuple[PrintedFigure, ...]


def read_log(records: Iterable[Record], clock: Callable[[], float] = time.time) -> tuple[Told, ...]:
    """Return the boots of a whole log, engine by engine, oldest first; a log without an engine in it has none."""
    boots: list[Told] = []

    def over(reader: BootReader) -> None:
        if reader.said:
            figures = tuple(
                PrintedFigure(it.name, it.value, it.unit, rank, line) for it, rank, line in reader.figures()
            )
            boots.append(Told(reader.conclude(), figures))

    for stream in apart(records):
        reader = BootReader(clock=clock, tables=_tables(), over=over)
        reader.feed(stream)
        over(reader)
    return tuple(boots)


@functools.cache
def _tables() -> Tables:
    rows = (*TABLE, *((re.compile(pattern.lead), pattern) for pattern in PATTERNS))
    interest = prefilter(pattern.lead for _, pattern in rows)
    return Tables(rows, interest, interest, figures=True)
