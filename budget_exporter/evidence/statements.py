"""What one line of an engine can say, typed, and the tables that read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from budget_exporter.facts.boot import Cause, GraphProfile, Phase, Printed
from budget_exporter.units import printed_bytes, rounding_of

__all__ = [
    "GIB",
    "INTEGER",
    "NUMBER",
    "SIZE",
    "Allocation",
    "BootFact",
    "Death",
    "Figure",
    "Mark",
    "Pattern",
    "PlanFact",
    "RankFact",
    "Reading",
    "Statement",
    "count",
    "figure",
    "read",
    "sizes",
]

_ALONE = r"(?<![^\s(\[{<>=:;/|\"'#~\u00d7])"
"""Where a number may begin: what stands in another place (1.29 of 31.29, 3 of 1e-3, 5 of 4%5) is a part of one."""
NUMBER = rf"(?:{_ALONE}|(?<=,)(?=-))-?(?:[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,5}}|[0-9]{{1,15}})(?:\.[0-9]{{1,15}})?"
"""
A printed number with its sign; no dash before it may be left out. Not ``[\\d,]+``, which takes the comma of
``# GPU blocks: 378, # CPU``.
"""
INTEGER = (
    _ALONE
    + r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,15})(?![0-9_%]|[.,]+[\w-]|[-+\u2010-\u2015\u2212]|[eE][-+]?[0-9])"
)
"""A printed count: nothing behind it makes it a part of something longer, but a unit may be glued to it."""
GIB = r"\s?GiB(?![0-9a-z]|[.,]+[0-9])"
"""The unit of a figure that is always in GiB; another process's line may be glued to it (``GiBINFO``)."""
SIZE = r"(?:[KMGT]i?B|bytes|B)(?![A-Za-z0-9]|[.,]+[0-9])"
"""A unit that is complete: ``Gi`` of a line cut short is none."""
_UNITS = {"bytes": "B", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
"""Old releases print GB and mean 2**30 (``Loading model weights took 5.2032 GB``, vLLM <= 0.7)."""
_DECIMALS = 2
"""vLLM rounds sizes to two decimals and drops trailing zeros: ``24.0`` stands for 23.995 to 24.005."""


@dataclass(frozen=True, slots=True)
class RankFact:
    """
    A figure of the rank that wrote the line; ``name`` is a field of RankFacts or one that boot.py derives from.

    ``rank`` is set where the line tells of a rank other than its writer's: one process of a TPU host has all its chips.
    """

    name: str
    value: Printed | int | float | GraphProfile
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PlanFact:
    """A row of the expert-offload plan; ``name`` is a field of Plan."""

    name: str
    value: Printed | int


@dataclass(frozen=True, slots=True)
class BootFact:
    """A figure of the engine as a whole; ``name`` is a field of BootReport or one that boot.py derives from."""

    name: str
    value: str | int | float | bool | Printed | dict[str, str]


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that tells where the boot is."""

    name: str
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """What an allocator says of an allocation that failed, in bytes; None where it does not say."""

    tried: int | None = None
    total: int | None = None
    allocated: int | None = None
    slack: int | None = None
    """Reserved by the allocator and not in use."""
    pools: bool = False
    """Whether some of it lies in private pools, which graphs have."""


@dataclass(frozen=True, slots=True)
class Death:
    """
    A sentence of a dying engine.

    ``cause`` is None for a memory failure whose cause follows from the phase, ``local_rank`` the index of the device in
    the sentence (``cuda:1``, ``GPU 1``).
    """

    kind: str
    """
    ``root`` (names the cause), ``refine`` (tells more of a root), ``place`` (the same, but says nothing of memory),
    ``other`` (some exception), ``end`` (it died).
    """
    cause: Cause | None = None
    phase: Phase | None = None
    tried: Printed | None = None
    free: Printed | None = None
    local_rank: int | None = None
    allocation: Allocation | None = None


Statement = RankFact | PlanFact | BootFact | Mark | Death


@dataclass(frozen=True, slots=True)
class Pattern:
    """
    One form of one line.

    ``lead`` is a short regular expression without groups: where it is found, the line claims to hold these figures.
    """

    lead: str
    body: re.Pattern[str]
    make: Callable[[re.Match[str]], Iterable[Statement]]
    budget: bool = True
    """Whether a line with the lead that no body reads counts as unparsed."""
    life: bool = False
    """Whether it is a sign of life, of which a healthy engine gives any number."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as it stands in the line, thousands separators off; ``unit`` None where none is printed."""

    name: str
    value: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a line said; ``unparsed`` where it led a budget figure that no pattern could read."""

    statements: tuple[Statement, ...] = ()
    unparsed: bool = False
    figures: tuple[Figure, ...] = ()


_ECHO = re.compile(r"^\s*(?:f?[\"']|raise |logger\.|File \"|return |assert )|%[sd.]|\{[a-z_]|\.format\(")


_NUMERAL = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?", re.ASCII)
_PRINTED_UNIT = re.compile(
    r"(?:/-?[\d.,]+)?\s?(?P<unit>[KMGT]i?B|bytes|B/token|B|tokens/s|tokens?|blocks?|slots?|secs?|seconds|reqs|x|%|[KMG]|s)"
    r"(?![A-Za-z/])"
)


def read(text: str, table: Sequence[tuple[re.Pattern[str], Pattern]], *, cut: bool, figures: bool = False) -> Reading:
    """
    Return what ``text`` says by ``table``, whose rows are (compiled lead, pattern).

    A line that is not ``cut`` ends in a newline for the patterns, so that a figure at its end is known to be complete.
    With ``figures`` each number is also given as it is printed, under the name of its group.
    """
    whole = text if cut else text + "\n"
    said: list[Statement] = []
    shown: list[Figure] = []
    claimed: set[str] = set()
    answered: set[str] = set()
    for lead, pattern in table:
        if lead.search(text) is None:
            continue
        found = list(pattern.body.finditer(whole))
        made = [statement for match in found for statement in pattern.make(match)]
        if figures:
            shown += [figure for match in found for figure in _shown(match)]
        if pattern.budget:
            claimed.add(pattern.lead)
        if made:
            answered.add(pattern.lead)
            said += made
    return Reading(
        tuple(said),
        unparsed=bool(claimed - answered)
        and all(isinstance(each, Mark) for each in said)
        and _ECHO.search(text) is None,
        figures=tuple(dict.fromkeys(shown)),
    )


def _shown(match: re.Match[str]) -> Iterable[Figure]:
    """Yield the numbers of named groups, each with the unit of ``<name>_u``, else with the one printed after it."""
    groups = match.groupdict()
    for name, number in groups.items():
        if number is None or name.endswith("_u") or _NUMERAL.fullmatch(number) is None:
            continue
        after = _PRINTED_UNIT.match(match.string, match.end(name))
        yield Figure(name, number.replace(",", ""), groups.get(name + "_u") or (after["unit"] if after else None))


def figure(number: str, unit: str, decimals: int = _DECIMALS) -> Printed:
    """
    Return a printed size.

    ``number`` and ``unit`` as printed, ``decimals`` the engine's own rounding where it drops trailing zeros (0: none).
    """
    unit = _UNITS.get(unit, unit)
    rounding = rounding_of(number, unit)
    if decimals:
        rounding = min(rounding, rounding_of("0." + "0" * decimals, unit))
    return Printed(printed_bytes(number, unit), rounding)


def count(number: str) -> int:
    """Return the integer of a printed count, thousands separators off."""
    return int(number.replace(",", ""))


def sizes(match: re.Match[str]) -> Iterable[Statement]:
    """Make a RankFact of each named group, in GiB where no group ``<name>_u`` holds its unit."""
    groups = match.groupdict()
    for name, number in groups.items():
        if number is not None and not name.endswith("_u"):
            yield RankFact(name, figure(number, groups.get(name + "_u") or "GiB"))
