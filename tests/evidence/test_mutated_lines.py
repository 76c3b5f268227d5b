"""
100 000 mutated lines: nothing raised, and no fact whose number does not stand in a line as a number of its own.

What counts as standing in a line is said here once more, in other words than the reader's: a line as a terminal shows
it is cut at white space and brackets, and a piece is a number only if it is one as a whole, with a unit or a full stop
behind it. A number that a pattern takes out of the middle of such a piece (1.29 of 31.29, 1 of 1e31) is not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.figures import PATTERNS as FIGURES
from budget_exporter.evidence.records import lines
from budget_exporter.evidence.sentences import INTEREST, NEWS, TABLE, Sentences, Tables
from budget_exporter.evidence.statements import Allocation, BootFact, Death, Figure, PlanFact, RankFact, Reading
from budget_exporter.facts.boot import GraphProfile, Printed
from tests.evidence.mutator import mutated

LINES = Path(__file__).parents[1] / "lines"
WRAPPED = tuple(
    "\n".join(each)
    for each in (
        (
            "(Worker_TP0 pid=30) ERROR 02-03 10:00:30 [x.py:1] ValueError: To serve at least one request with the",
            " model's max seq len (100000), (4.26 GiB KV cach",
            "(Worker_TP0 pid=30) e is needed, which is larger than the available KV cache memory (4.25 GiB). Based on",
            " the available memory, the estimated maximum model length is 5632.",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00",
            " MiB. GPU 1 has a total capacity of 79.19 GiB of",
            "which 298.50 MiB is free.",
        ),
        (
            "Memory profiling takes 5.39 seconds",
            "the current vLLM instance can use total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.90) = 14.20GiB",
            "model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak memory takes 2.53GiB;",
            " the rest of the memory reserved for KV Cache is 3.77GiB.",
        ),
    )
)
CORPUS = [
    *(json.loads(line)["line"] for line in (LINES / "facts.jsonl").read_text("utf-8").splitlines()),
    *(LINES / "false_friends.txt").read_text("utf-8").splitlines(),
    *WRAPPED,
]
SHARES = 20
LINES_A_SHARE = 5000
UNITS = {
    "GB": "GiB",
    "MB": "MiB",
    "KB": "KiB",
    "TB": "TiB",
    "bytes": "B",
    "G": "GiB",
    "M": "MiB",
    "K": "KiB",
    "T": "TiB",
}
FACTORS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]|\^\[\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]")
PIECE = re.compile(r"[^\s()\[\]{}=:;/|\"'<>~#@!?&^$\\\x00\u00d7]+")
NUMBER = re.compile(
    r"(?:ND|v)?([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r"(?:([KMGT]i?B|bytes|[BKMGTxs])(?:[^a-z0-9.,].*)?|%(?:[^0-9.,].*)?)?(?:[.,]+(?:[^\d.,].*)?)?",
    re.ASCII | re.DOTALL,
)
ROWS = re.compile(r"(\d{1,6})-1", re.ASCII)
"""``(83-1)`` of the line that tells how many graphs there are."""
DIGIT = re.compile(r"[\d.,-]")
UNIT = re.compile(r"\s?([KMGT]i?B|bytes|B(?!/))(?![A-Za-z])")
DERIVED = {"graphs"}
"""The sum over the kinds of graphs."""

TEXTS = {"version", "release"}
"""No numbers, even where they look like one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The numbers that stand in a text: the size each means by its unit or without one, its value, and as printed."""

    sizes: frozenset[int]
    values: frozenset[Decimal]
    texts: frozenset[str]


def shown(data: bytes) -> list[str]:
    """Return the lines a terminal shows, markup off; of JSON also the message."""
    text = data.decode("utf-8", "replace").replace("\N{MINUS SIGN}", "-")
    found = [text]
    for part in re.split(r"[\r\n]+|\^M", text):
        try:
            entry = json.loads(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            found += [each.replace("\N{MINUS SIGN}", "-") for each in entry.values() if isinstance(each, str)]
    whole = [CONTROL.sub(" ", COLOUR.sub("", part)) for each in found for part in re.split(r"[\r\n]+|\^M", each)]
    return [part.replace("**", "").replace("`", "") for part in whole]


def standing(texts: Iterable[str]) -> Standing:
    sizes: set[int] = set()
    values: set[Decimal] = set()
    printed: set[str] = set()
    for text in texts:
        for piece in PIECE.finditer(text):
            rows = ROWS.fullmatch(piece[0])
            if rows is not None:
                values.add(Decimal(rows[1]))
                printed.add(rows[1])
            number = NUMBER.fullmatch(piece[0])
            if number is None:
                continue
            plain = number[1].replace(",", "")
            value = Decimal(plain)
            values.add(value)
            printed.add(plain.lstrip("+"))
            sizes |= {size(value, unit) for unit in units(number[2], text, piece.start() + number.end(1))}
    return Standing(frozenset(sizes), frozenset(values), frozenset(printed))


def units(glued: str | None, text: str, end: int) -> tuple[str, ...]:
    """Return the unit behind a number; where none stands there its unit is a matter of the sentence."""
    if not glued:
        after = UNIT.match(text, end)
        glued = after[1] if after else ""
    unit = UNITS.get(glued, glued)
    return (unit,) if unit in FACTORS else () if glued else ("GiB", "B")


def size(value: Decimal, unit: str) -> int:
    return int((value * FACTORS[unit]).to_integral_value())


def numbers(reading: Reading) -> Iterator[tuple[str, object]]:
    """Yield every number a reading holds with a name."""
    for said in reading.statements:
        if isinstance(said, RankFact | PlanFact | BootFact):
            if isinstance(said.value, GraphProfile):
                yield from ((said.name, getattr(said.value, each.name)) for each in fields(said.value))
            elif said.name not in DERIVED:
                yield said.name, said.value
        elif isinstance(said, Death):
            yield from (("tried", said.tried), ("free", said.free), ("local_rank", said.local_rank))
            yield from allocation(said.allocation)


def allocation(said: Allocation | None) -> Iterator[tuple[str, object]]:
    if said is not None:
        yield from ((name, Printed(part)) for name in ("tried", "total", "allocated") if (part := getattr(said, name)))


def misread(reading: Reading, there: Standing, texts: list[str]) -> str | None:
    """Return what a reading holds that does not stand in the texts."""
    for name, value in numbers(reading):
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, Printed):
            stands = value.bytes in there.sizes
        elif isinstance(value, int | float):
            stands = Decimal(str(value)) in there.values
        elif isinstance(value, dict):
            stands = all(any(part in text for text in texts) for part in value.values())
        else:
            stands = any(str(value) in text for text in texts)
        if not stands:
            return f"{name} {value}"
    for figure in reading.figures:
        if figure.name not in TEXTS and not literal(figure, there):
            return str(figure)
    return None


def literal(figure: Figure, there: Standing) -> bool:
    return figure.value in there.texts


TABLES = Tables((*TABLE, *((re.compile(each.lead), each) for each in FIGURES)), INTEREST, NEWS, figures=True)
"""All that an engine's log is read for, and what is only shown of it."""


def joined(texts: list[str]) -> list[str]:
    """Return lines put together as a terminal tore them apart; digits on both sides of a tear are no number."""
    glued = ""
    for text in texts:
        glued += (" " if DIGIT.fullmatch(glued[-1:]) and DIGIT.fullmatch(text[:1]) else "") + text
    return [glued, " ".join(texts)]


def misreadings(data: list[bytes], *, cut: bool) -> Iterator[str | None]:
    """Yield for each reading of these lines that holds a fact what does not stand in them, None where all does."""
    sentences = Sentences(TABLES)
    texts: list[str] = []
    bodies: list[str] = []
    for number, record in enumerate(data):
        texts += shown(record)
        for line in lines(record, cut=cut and number == len(data) - 1):
            bodies.append(line.text)
            for reading, _ in sentences.read(line):
                if reading.statements or reading.figures:
                    there = standing([*texts, *joined(bodies)])
                    wrong = misread(reading, there, [*texts, "".join(texts), " ".join(texts)])
                    yield wrong


@pytest.mark.parametrize("share", range(SHARES))
def test_no_mutated_line_gives_a_number_that_does_not_stand_in_it(share: int) -> None:
    random = Random(share)  # noqa: S311 - the same lines in every run
    reader = BootReader(clock=lambda: 1770200000.0)
    read = told = 0
    for _ in range(LINES_A_SHARE):
        data = [part.encode("utf-8", "surrogateescape") for part in mutated(random, CORPUS)]
        cut = random.random() < 0.1
        found = list(misreadings(data, cut=cut))
        assert not any(found), (found, data, cut)
        told += bool(found)
        reader.feed([Record(part, cut=cut) for part in data])
        read += len(data)
    reader.report()
    reader.take_failures()
    assert read >= LINES_A_SHARE
    assert told >= LINES_A_SHARE // 3, "most mutated lines say nothing: nothing was tested"
