"""What an exporter said over a time, as a rule test for promtool, and what its rules made of it."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.alerts.recorded import MOVES, RULES, UNIX_TIMES

__all__ = ["Fired", "Recording", "fired"]

_GOT = re.compile(r"(\{[^{}]*\}) ([-+.0-9eE]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
WORKS = "budget_source_success{"


@dataclass(slots=True)
class _Series:
    """One series: the places in the recording at which it was there, and its values."""

    unix: bool
    places: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


class Recording:
    """
    Expositions at equal distances of time, in seconds; the first is taken at Unix time ``begin``.

    promtool's clock starts at 0, so whatever is an instant is told relative to ``begin``.
    """

    def __init__(self, begin: float, interval: int) -> None:
        self.begin = begin
        self.interval = interval
        self.length = 0
        self._series: dict[str, _Series] = {}

    def add(self, text: str | None) -> None:
        """Take in the next exposition; None where the exporter did not answer."""
        place, self.length = self.length, self.length + 1
        self._note("up", "0" if text is None else "1", place)
        for line in (text or "").splitlines():
            if line and line[0] != "#":
                key, _, value = line.rpartition(" ")
                self._note(key, value, place)

    def hold(self, times: int) -> None:
        """Take in what was said last ``times`` times again; sources that succeeded go on to do so."""
        last = self.length - 1
        present = {key: series for key, series in self._series.items() if series.places[-1] == last}
        working = {key.partition("{")[2] for key in present if key.startswith(WORKS) and float(present[key].values[-1])}
        for key, series in present.items():
            name, _, labels = key.partition("{")
            step = self.interval if name == MOVES and labels in working else 0
            value = series.values[-1]
            series.places += range(self.length, self.length + times)
            series.values += [_later(value, step * n) if step else value for n in range(1, times + 1)]
        self.length += times

    def _note(self, key: str, value: str, place: int) -> None:
        series = self._series.get(key)
        if series is None:
            name = key.partition("{")[0]
            series = self._series[key] = _Series(name.endswith(UNIX_TIMES))
        series.places.append(place)
        series.values.append(value)

    def test(self, name: str, instance: str, expressions: Sequence[str]) -> dict[str, Any]:
        """Return a rule test that claims of each of ``expressions`` that it has no result at the end."""
        end = f"{(self.length - 1) * self.interval}s"
        return {
            "name": name,
            "interval": f"{self.interval}s",
            "input_series": [
                {"series": _named(key, instance), "values": " ".join(self._values(series))}
                for key, series in self._series.items()
            ],
            "promql_expr_test": [{"expr": expr, "eval_time": end, "exp_samples": []} for expr in expressions],
        }

    def _values(self, series: _Series) -> Iterator[str]:
        """Yield promtool's notation of a series: a run of equal values once, an end marked as a scrape marks it."""
        before = -1
        entries = zip(series.places, (self._number(series, value) for value in series.values), strict=True)
        for text, run in groupby(_runs(entries), key=lambda entry: entry[1]):
            places = [place for place, _ in run]
            gap = places[0] - before - 1
            if gap and before >= 0:
                yield "stale"
                gap -= 1
            if gap:
                yield f"_x{gap}"
            yield text[0] if len(places) == 1 else f"{text[0]}x{len(places) - 1}"
            before = places[-1]
        if before < self.length - 1:
            yield "stale"

    def _number(self, series: _Series, value: str) -> str:
        figure = Decimal(value) - Decimal(repr(self.begin)) if series.unix else Decimal(value)
        if not math.isfinite(figure):
            raise ValueError(f"promtool cannot repeat {value}")
        return f"{figure:f}".removesuffix(".0")


def _runs(entries: Iterator[tuple[int, str]]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield places with their value and the number of their run: a run ends where the value or the place jumps."""
    number, last, known = 0, -2, ""
    for place, value in entries:
        number += place != last + 1 or value != known
        yield place, (value, number)
        last, known = place, value


def _later(value: str, seconds: float) -> str:
    return f"{Decimal(value) + Decimal(seconds):f}"


def _named(key: str, instance: str) -> str:
    name, brace, labels = key.partition("{")
    target = f'job="budget_exporter",instance={json.dumps(instance)}'
    return f"{name}{{{target}{',' if brace and labels != '}' else ''}{labels if brace else '}'}"


@dataclass(frozen=True, slots=True)
class Fired:
    """One alert that fired: of which instance, its labels, and the seconds from the recording's begin it did so."""

    instance: str
    name: str
    severity: str
    reason: str
    first: float
    last: float


def fired(promtool: str, folder: Path, recordings: dict[str, Recording], rules: Path = RULES) -> list[Fired]:
    """
    Return which alerts the rules raise on ``recordings`` (by instance), from when to when.

    promtool answers no questions, it only says how an answer differs from the one expected: so it is told to expect
    nothing, and what it got is read.
    """
    paths = [_written(folder, instance, recording, rules) for instance, recording in recordings.items()]

    def told(path: Path) -> list[Fired]:
        words = [promtool, "test", "rules", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        return _read(done.returncode, done.stdout + done.stderr)

    with ThreadPoolExecutor(2) as pool:
        return [alert for alerts in pool.map(told, paths) for alert in alerts]


def _written(folder: Path, instance: str, recording: Recording, rules: Path) -> Path:
    test = recording.test(instance, instance, _questions(recording))
    document = {"rule_files": [str(rules)], "evaluation_interval": f"{recording.interval}s", "tests": [test]}
    path = folder / f"{instance}.test.yml"
    # JSON is YAML, and written in a hundredth of the time.
    path.write_text(json.dumps(document))
    return path


def _questions(recording: Recording) -> tuple[str, str, str]:
    span = f"{recording.length * recording.interval}s:{recording.interval}s"
    when = f'timestamp(ALERTS{{alertstate="firing"}})[{span}]'
    kept = "instance, alertname, severity, reason"
    return (
        f"min by ({kept}) (min_over_time({when}))",
        f"max by ({kept}) (max_over_time({when}))",
        "vector(42)",
    )


def _read(code: int, output: str) -> list[Fired]:
    # The third question always has an answer: where it is not told, promtool ended for another reason.
    answers = [part.partition("got:")[2] for part in output.split("expr: ")[1:]]
    assert code == 1, output
    assert "4.2E+01" in answers[-1], output
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for answer in answers[:-1]:
        for labels, value in _GOT.findall(answer):
            named = dict(_LABEL.findall(labels))
            key = (named["instance"], named["alertname"], named["severity"], named.get("reason", ""))
            found.setdefault(key, []).append(float(value))
    return [Fired(*key, first, last) for key, (first, last) in found.items()]
