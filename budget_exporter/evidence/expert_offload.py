"""
What the expert-offload fork says: its plan block, the plan check after profiling, the n-gram table in host memory.

Rows are read by their label. The spelling differs by release: ``(the rest)``, the unit, the slots and the note column
may each be there or not, and the value column is right-aligned. Rows without a unit are GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence.statements import (
    INTEGER,
    NUMBER,
    BootFact,
    Death,
    Pattern,
    PlanFact,
    RankFact,
    Statement,
    count,
    figure,
)

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_VALUE = (
    rf"(?:\s*\([^)\n]{{0,80}}\))?[\s:]*(?<=[\s:])(?P<%s>{_N})(?P<rest>\s*\n|\s*GiB(?=\s)[^\n]*\n|\s{{2,}}\S[^\n]*\n)"
)
_GAP = r"(?:\s*\([^\)]{0,80}\))?(?:\s{2,}|\s*:\s*)"


def _row(label: str, name: str, decimals: int = 2) -> Pattern:
    def make(match: re.Match[str]) -> Iterable[Statement]:
        yield PlanFact(name, figure(match[name], "GiB", decimals))
        yield from _notes(name, match["rest"])

    return Pattern(rf"^\W{{0,20}}{label}{_GAP}[-\d]", re.compile(rf"^\W{{0,20}}{label}{_VALUE % name}"), make)


def _notes(name: str, rest: str) -> Iterable[Statement]:
    if name == "non_expert" and (ple := re.search(rf"PLE ({_N})(?:\s?GiB)? excluded", rest)):
        yield PlanFact("ple", figure(ple[1], "GiB"))
    if name == "kv_reserve" and (price := re.search(rf"registry ({_I}) B/token", rest)):
        yield PlanFact("kv_bytes_per_token", count(price[1]))
    if name == "arena" and (slots := re.search(rf"({_I}) slots\b", rest)):
        yield PlanFact("slots", count(slots[1]))
    if name == "arena" and (resident := re.search(rf"resident layers \[[\d, ]*\] ({_N})(?=\s)", rest)):
        yield PlanFact("resident_experts", figure(resident[1], "GiB"))


def _overhead(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("overhead_planned", figure(match["overhead_planned"], "GiB"))
    yield RankFact("overhead_measured", figure(match["overhead_measured"], "GiB"))


def _price(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("kv_bytes_per_token_planned", count(match["kv_bytes_per_token_planned"]))
    yield RankFact("kv_bytes_per_token_measured", count(match["kv_bytes_per_token_measured"]))


def _refused(match: re.Match[str]) -> Iterable[Statement]:
    """Tell a plan that does not fit from one that cannot be made; the planner's texts are known only in part."""
    memory = re.search(r"\bGiB\b|fit|room|budget|exceed", match[1])
    yield Death("root", "unknown" if memory else "not_memory", "starting")


def _locked(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("ple_locked", figure(match["ple_locked"], "GiB", 0))
    if match["ple_not_locked"] is not None:
        yield BootFact("ple_not_locked", figure(match["ple_not_locked"], "GiB", 0))


PATTERNS = (
    _row(r"budget \(total x util\)", "budget"),
    _row("non-expert weights", "non_expert"),
    _row("KV reserve", "kv_reserve"),
    _row("CUDA graphs", "cuda_graphs"),
    _row("runtime overhead", "runtime_overhead"),
    _row("expert cache space", "arena"),
    _row("host-backed experts", "host_experts", decimals=0),
    Pattern(
        "runtime overhead planned",
        re.compile(
            rf"runtime overhead planned (?P<overhead_planned>{_N}) GiB, "
            rf"measured (?P<overhead_measured>{_N}) GiB(?![A-Za-z])"
        ),
        _overhead,
    ),
    Pattern(
        r"KV planned",
        re.compile(
            rf"KV planned (?P<kv_bytes_per_token_planned>{_I}) B/token, "
            rf"measured (?P<kv_bytes_per_token_measured>{_I}) B/token"
        ),
        _price,
    ),
    Pattern(
        r"PLE offload: locked",
        re.compile(
            rf"PLE offload: locked (?P<ple_locked>{_N}) GiB(?:, FAILED to lock (?P<ple_not_locked>{_N}) GiB| of PLE)"
        ),
        _locked,
    ),
    Pattern("ExpertPlanError", re.compile(r"ExpertPlanError: (.*)"), _refused, budget=False),
)
