"""Explain a log that has ended: how far each boot came, how it died, each figure it printed, what to change."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from budget_exporter import verdicts
from budget_exporter.config import Config
from budget_exporter.engines import arguments
from budget_exporter.errors import ConfigError
from budget_exporter.evidence import Record
from budget_exporter.evidence.told import PrintedFigure, Told, read_log
from budget_exporter.facts.boot import BootReport, Failure, Phase
from budget_exporter.facts.engine import Shape
from budget_exporter.units import gib_text
from budget_exporter.verdicts.cause import deduced

__all__ = ["Explained", "explained", "parser", "run"]


def parser() -> argparse.ArgumentParser:
    """Return the command's flags."""
    made = argparse.ArgumentParser(prog="budget-exporter explain", description=__doc__, allow_abbrev=False)
    made.add_argument("log", metavar="FILE", help="the engine's log, however it was wrapped; - for standard input")
    made.add_argument(
        "--flags", default="", metavar="WORDS", help="the engine's flags, where its log does not tell them"
    )
    made.add_argument("--json", action="store_true", help="one JSON object a boot, a line each")
    return made


def run(options: argparse.Namespace) -> int:
    """
    Print what ``options.log`` tells; return 0, or 1 where no engine speaks in it.

    Raise ConfigError for a file that cannot be read or flags that are no words.
    """
    shape = _shape(options.flags)
    boots = read_log(_records(options.log))
    for number, told in enumerate(boots, start=1):
        found = explained(told, shape)
        print(found.json() if options.json else f"boot {number}: {found.text()}")  # noqa: T201 - what it is for
    if not boots:
        print(f"budget-exporter: {options.log}: no engine speaks in it", file=sys.stderr)  # noqa: T201 - as above
    return 0 if boots else 1


def _shape(flags: str) -> Shape | None:
    if not flags:
        return None
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"--flags: {error}") from error
    # A model comes first where none is named: the rest are its flags.
    return arguments.shape(["vllm", "serve", *words], {})


def _records(log: str) -> Iterator[Record]:
    with ExitStack() as stack:
        lines: IO[bytes] = sys.stdin.buffer
        try:
            if log != "-":
                lines = stack.enter_context(Path(log).open("rb"))
            for line in lines:
                yield Record(line.rstrip(b"\r\n"))
        except OSError as error:
            raise ConfigError(f"{log}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Explained:
    """What one boot of a log tells."""

    version: str | None
    phase: Phase
    death: Failure | None
    findings: tuple[str, ...]
    said: tuple[str, ...]
    """Sentences: what follows from the figures, and what to change."""
    figures: tuple[PrintedFigure, ...]

    def json(self) -> str:
        """Return it for programs: sizes in bytes, figures as they were printed."""
        return json.dumps(
            {
                "version": self.version,
                "phase": self.phase,
                "death": None if self.death is None else _death(self.death),
                "findings": self.findings,
                "said": self.said,
                "figures": [
                    {"line": it.line, "rank": it.rank, "name": it.name, "value": it.value, "unit": it.unit}
                    for it in self.figures
                ],
            }
        )

    def text(self) -> str:
        """Return it as lines to read."""
        lines = [f"vLLM {self.version or 'of unknown version'}, came to {self.phase}"]
        if self.death is not None:
            lines.append(f"  died while {self.death.phase}: {self.death.cause}{_circumstances(self.death)}")
        lines += [f"  finding: {name}" for name in self.findings]
        lines += [f"  {sentence}" for sentence in self.said]
        for it in self.figures:
            rank = "" if it.rank is None else f" rank {it.rank}"
            lines.append(f"  line {it.line}:{rank} {it.name} {it.value} {it.unit or ''}".rstrip())
        return "\n".join(lines)


def explained(told: Told, shape: Shape | None) -> Explained:
    """Return what one boot tells; ``shape`` are the engine's flags where its log does not tell them."""
    report = told.report
    verdict = verdicts.judge(
        ledger=None, report=report, shape=shape, phase=report.phase, measured={}, policy=Config().policy(None)
    )
    return Explained(
        version=report.version,
        phase=report.phase,
        death=_failure(report, shape),
        findings=tuple(name for name, holds in verdict.findings.items() if holds),
        said=(
            *verdict.sentences,
            *verdict.said.values(),
            *(f"to change: {advice.sentence}" for advice in verdict.advice),
        ),
        figures=told.figures,
    )


def _failure(report: BootReport, shape: Shape | None) -> Failure | None:
    """Return how the boot died: as its log says, else as its figures leave no choice about."""
    if report.failure is not None:
        return deduced(report.failure, report, shape)
    unsaid = Failure(report.phase_at or 0.0, report.phase, "unknown", presumed=True)
    found = deduced(unsaid, report, shape)
    return None if found == unsaid else found


def _death(failure: Failure) -> dict[str, object]:
    return {
        "phase": failure.phase,
        "cause": failure.cause,
        "presumed": failure.presumed,
        "rank": failure.rank,
        "tried_bytes": None if failure.tried is None else failure.tried.bytes,
        "free_bytes": None if failure.free is None else failure.free.bytes,
    }


def _circumstances(failure: Failure) -> str:
    words = " (presumed)" if failure.presumed else ""
    words += "" if failure.rank is None else f", rank {failure.rank}"
    words += "" if failure.tried is None else f", tried {gib_text(failure.tried.bytes)}"
    return words + ("" if failure.free is None else f", free {gib_text(failure.free.bytes)}")
