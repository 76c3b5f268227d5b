"""Lines to readings: all tables as one, the pre-filter made of them, and sentences that go on in the next line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from budget_exporter.evidence import cpu, deaths, expert_offload, gaudi, neuron, tpu, vllm
from budget_exporter.evidence.prefilter import prefilter
from budget_exporter.evidence.records import Line
from budget_exporter.evidence.statements import Death, Mark, Pattern, Reading, Statement, read

__all__ = ["INTEREST", "NEWS", "TABLE", "TABLES", "Sentences", "Tables"]

_PATTERNS: tuple[Pattern, ...] = (
    *vllm.PATTERNS,
    *expert_offload.PATTERNS,
    *cpu.PATTERNS,
    *gaudi.PATTERNS,
    *neuron.PATTERNS,
    *tpu.PATTERNS,
    *deaths.PATTERNS,
)
TABLE = tuple((re.compile(pattern.lead), pattern) for pattern in _PATTERNS)
INTEREST = prefilter(pattern.lead for pattern in _PATTERNS)
"""The pre-filter: a line in which it finds nothing says nothing of a budget and is not decoded."""
NEWS = prefilter(pattern.lead for pattern in _PATTERNS if not pattern.life)
"""The same without signs of life, which a busy engine prints for every request."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What a reader looks for: rows and the pre-filters made of them; ``figures`` asks for the numbers as printed."""

    rows: Sequence[tuple[re.Pattern[str], Pattern]]
    interest: re.Pattern[bytes]
    news: re.Pattern[bytes]
    figures: bool = False


TABLES = Tables(TABLE, INTEREST, NEWS)
_ENDED = re.compile(r"(?:\)|[^\d\s.]\.)\s*$")
_TORN = "\0"
"""Stands where a break may have torn a number: two halves that only happen to follow each other make a third number."""
_LINES = 6
_CHARACTERS = 4096


@dataclass(slots=True)
class _Held:
    """A sentence that began in one line and may go on in the next (terminals and pagers wrap hard)."""

    line: Line
    glued: str
    spaced: str
    left: int
    counted: bool


class Sentences:
    """Read line after line; a sentence that was wrapped is read when its end has come."""

    def __init__(self, tables: Tables = TABLES) -> None:
        self._tables = tables
        self._held: _Held | None = None
        self.unparsed = 0
        """Lines that led a figure and whose figure could not be read, not even with the lines after them."""

    @property
    def pending(self) -> bool:
        """Return whether the next line may be the end of a sentence, whatever it holds."""
        return self._held is not None

    def read(self, line: Line) -> Iterator[tuple[Reading, Line]]:
        """Yield what can be read now, each with the line it began in."""
        whole = self._continued(line) if self._held is not None else None
        if whole is not None:
            yield whole
            return
        reading = self._read(line.text, cut=line.cut)
        if reading.unparsed or _open_ended(reading.statements, line.text):
            self._drop()
            self._held = _Held(line, line.text, line.text, _LINES, reading.unparsed)
        yield reading, line

    def _read(self, text: str, *, cut: bool) -> Reading:
        return read(text, self._tables.rows, cut=cut, figures=self._tables.figures)

    def _continued(self, line: Line) -> tuple[Reading, Line] | None:
        held = self._held
        if held is None:
            return None
        held.left -= 1
        if not line.level or line.writer.pid == held.line.writer.pid:
            seam = _TORN if _digit(held.glued[-1:]) and _digit(line.text[:1]) else ""
            held.glued, held.spaced = held.glued + seam + line.text, f"{held.spaced} {line.text}"
            whole = self._whole(held, cut=line.cut)
            if whole is not None:
                self._held = None
                return whole, held.line
        elif _digit(held.glued[-1:]):
            held.left = 0  # The rest of its last number may stand in what another process wrote.
        if held.left <= 0 or len(held.glued) > _CHARACTERS:
            self._drop()
        return None

    def _drop(self) -> None:
        if self._held is not None and self._held.counted:
            self.unparsed += 1
        self._held = None

    def _whole(self, held: _Held, *, cut: bool) -> Reading | None:
        """Return what the lines say as one, where joining with and without a space does not disagree."""
        found: list[Reading] = []
        for text in (held.glued, held.spaced):
            reading = self._read(text, cut=cut)
            if reading.statements and not reading.unparsed and not _open_ended(reading.statements, text):
                found.append(reading)
        best = [each for each in found if _told(each) == max(_told(other) for other in found)]
        return best[0] if best and all(_figures(each) == _figures(best[0]) for each in best) else None


def _digit(char: str) -> bool:
    return char.isdigit() or char in (".", ",", "-")


def _open_ended(statements: Sequence[Statement], text: str) -> bool:
    """Tell whether an OOM sentence breaks off before it told what was free, and what else it has to tell."""
    return _ENDED.search(text) is None and any(isinstance(said, Death) and _halved(said) for said in statements)


def _halved(death: Death) -> bool:
    said = death.allocation
    whole = said is None or said.total is None or said.slack is not None
    return death.tried is not None and (death.free is None or not whole)


def _told(reading: Reading) -> int:
    """Count what a reading tells: a failure with all sizes tells more than one without."""
    deaths = [said for said in reading.statements if isinstance(said, Death)]
    return len(reading.statements) + sum((said.free is not None) + (not _halved(said)) for said in deaths)


def _figures(reading: Reading) -> list[Statement]:
    return [said for said in reading.statements if not isinstance(said, Mark)]
