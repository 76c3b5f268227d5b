"""Whatever a log holds: nothing raised, nothing invented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from hypothesis import given, settings, strategies as st

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import BootReport, Plan, Printed, RankFacts
from budget_exporter.units import printed_bytes

FACTS = Path(__file__).parents[1] / "lines" / "facts.jsonl"
GOLDEN = [json.loads(line)["line"].encode() for line in FACTS.read_text("utf-8").splitlines()]
DERIVED = {"activation", "size_at_init"}
"""A difference where a release prints the peak with the graph estimate in it; a sum where used and free are printed."""


def report_of(data: list[bytes]) -> BootReport:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(each) for each in data])
    reader.take_failures()
    return reader.report()


def figures(value: object) -> Iterator[tuple[str, object]]:
    """Yield every number of a report with the name of its field."""
    if not is_dataclass(value):
        return
    for field in fields(value):
        found = getattr(value, field.name)
        if isinstance(found, Printed | int | float) and not isinstance(found, bool):
            yield field.name, found
        elif isinstance(found, dict):
            for each in found.values():
                yield from figures(each)
        elif isinstance(found, RankFacts | Plan):
            yield from figures(found)


def shown(data: bytes) -> str:
    """Return the text as a terminal shows it: colours are no part of it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode("utf-8", "replace"))


def sizes_in(data: bytes) -> set[int]:
    """Return every size the text could stand for."""
    text = shown(data).replace("\N{MINUS SIGN}", "-")
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    return {printed_bytes(number, unit) for number in numbers for unit in units}


def numbers_in(data: bytes) -> set[float]:
    text = shown(data)
    return {float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)}


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_are_survived(data: list[bytes]) -> None:
    report_of(data)


@given(st.lists(st.sampled_from(GOLDEN), max_size=12))
@settings(max_examples=200)
def test_golden_lines_in_any_order_are_survived(data: list[bytes]) -> None:
    report_of(data)


mutated = st.builds(
    lambda line, at, size, new: line[:at] + new + line[at + size :],
    st.sampled_from(GOLDEN),
    st.integers(0, 400),
    st.integers(0, 6),
    st.one_of(
        st.binary(max_size=6), st.sampled_from([b".", b",", b"-", b"9", b"\r", b"\x1b[0m", b"GiB", b" ", b"1e9"])
    ),
)


@given(mutated)
@settings(max_examples=1500)
def test_a_mutated_line_gives_no_figure_that_is_not_in_it(line: bytes) -> None:
    report = report_of([line])

    sizes, numbers = sizes_in(line), numbers_in(line)
    for name, found in figures(report):
        if name in DERIVED | {"phase_at", "unparsed", "graphs"}:
            continue
        if isinstance(found, Printed):
            assert found.bytes in sizes, (name, line)
        else:
            assert found in numbers, (name, line)
    if report.failure is not None:
        assert all(size is None or size.bytes in sizes for size in (report.failure.tried, report.failure.free)), line


def test_a_line_of_many_megabytes_costs_no_more_than_its_beginning() -> None:
    for filler in (b"x", b"1", b"(", b"[", b"Tried to allocate ", b"consumed memory ", b"\r", b"{", b"\x1b[", b"9%|"):
        line = GOLDEN[0] + filler * ((4 << 20) // len(filler))
        reader = BootReader()
        reader.feed([Record(line)])
        assert reader.report().version in ("0.28.0", None)
