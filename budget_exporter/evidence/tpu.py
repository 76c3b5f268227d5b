"""
What vLLM says of itself on TPUs, and how XLA says that memory ran out.

Formats are those of tpu-inference 0.11 to 0.32 ``worker/tpu_worker.py``, ``runner/tpu_runner.py`` and
``runner/kv_cache_manager.py``, whose sizes are GiB whatever they are called, of XLA's allocator and compiler, whose
``G`` is 2**30 bytes, and of the jax worker of vLLM. V0 prints blocks, torch_xla's V1 nothing of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence.statements import (
    GIB,
    INTEGER,
    NUMBER,
    BootFact,
    Death,
    Mark,
    Pattern,
    RankFact,
    Statement,
    count,
    figure,
)
from budget_exporter.facts.boot import Phase, Printed

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_UNITS = {"": "B", "B": "B", "K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}
_PAIR = rf"\({_N}, {_N}\)"
_BEFORE = re.compile(rf"hbm=\[((?:{_PAIR}, ){{0,255}})$")
_STAGES: tuple[tuple[str, str, Phase], ...] = (
    ("worker", "used_before_load", "loading"),
    ("model", "consumed", "profiling"),
    ("kv-cache", "used_after_kv", "warming_up"),
)
"""Of each line with the memory of all chips: what its first figure is, and where the boot is after it."""


def _xla(name: str) -> str:
    return rf"(?P<{name}>{_N})(?P<{name}_u>[KMGT]B?|B)(?![A-Za-z0-9]|[.,]+[0-9])"


def _figure(match: re.Match[str], name: str) -> Printed:
    return figure(match[name], _UNITS[match[name + "_u"][:1]], 0)


def _chip(match: re.Match[str]) -> Iterable[Statement]:
    """Read the figures of one chip: the pairs before it tell which one, a chip alone is that of its worker."""
    before = _BEFORE.search(match.string, 0, match.start())
    if before is not None:
        alone = not before[1] and match.string.startswith("]", match.end())
        for name, number in match.groupdict().items():
            yield RankFact(name, figure(number, "GiB"), rank=None if alone else before[1].count("("))


def _stage(lead: str, name: str, phase: Phase) -> tuple[Pattern, Pattern]:
    pair = rf"\((?P<{name}>{_N}), (?P<size_at_init>{_N})\)(?=(?:, {_PAIR}){{0,255}}\]\s?(?:GiB|Gb)(?![A-Za-z]))"
    return (
        Pattern(lead, re.compile(lead), lambda _: (Mark(name, phase),), budget=False),
        Pattern(lead, re.compile(pair), _chip, budget=False),
    )


def _blocks(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("kv_blocks", count(match["kv_blocks"]))


def _statistics(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_available", "allocating_kv")
    for name, number in match.groupdict().items():
        yield BootFact(name, figure(number, "GiB"))


def _above_cap(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "no_kv_room", "allocating_kv")
    for name, number in match.groupdict().items():
        yield BootFact(name, figure(number, "GiB"))


def _compiled(match: re.Match[str]) -> Iterable[Statement]:
    """Read a program that does not fit: the memory on the chip's cores (smem, vmem) is no device memory."""
    yield Death("root", tried=_figure(match, "needs")) if match["space"] == "hbm" else Death("root", "not_memory")


def _allocated(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", tried=_figure(match, "tried"), free=_figure(match, "free"))


def _allocated_bytes(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", tried=figure(match["tried"], "B", 0))


_LINES = (
    *(pattern for stage, name, phase in _STAGES for pattern in _stage(rf"Init {stage} \|", name, phase)),
    Pattern(r"Init kv-cache \|", re.compile(rf"num_blocks=\[(?P<kv_blocks>{_I})\]"), _blocks, budget=False),
    Pattern(
        r"Memory statistics \|",
        re.compile(
            rf"total_hbm_limit_gb=(?P<chips_limit>{_N})GiB \| total_hbm_limit_cap_gb=(?P<chips_requested>{_N})GiB \| "
            rf"total_hbm_used_gb=(?P<chips_used>{_N})GiB \| total_hbm_avail_gb=(?P<chips_available>{_N}){GIB}"
        ),
        _statistics,
    ),
    Pattern(
        "total_hbm_used_gb=",
        re.compile(
            rf"total_hbm_used_gb=(?P<chips_used>{_N})GiB exceeds total_hbm_limit(?:_cap)?_gb="
            rf"(?P<chips_requested>{_N})GiB by (?P<chips_missing>{_N}){GIB}"
        ),
        _above_cap,
    ),
)
_DEATHS = (
    Pattern(
        "Ran out of memory in memory space",
        re.compile(
            rf"Ran out of memory in memory space (?P<space>[a-z]{{3,12}})\.\s+Used {_xla('needs')} of {_xla('limit')} "
            rf"[a-z]{{3,12}}\."
        ),
        _compiled,
        budget=False,
    ),
    Pattern(
        "That was not possible",
        re.compile(
            rf"Attempting to (?:allocate|reserve) {_xla('tried')}(?: at the bottom of memory)?\.\s+"
            rf"That was not possible\.\s+There are {_xla('free')} free"
        ),
        _allocated,
        budget=False,
    ),
    Pattern(
        "Out of memory while trying to allocate",
        re.compile(rf"RESOURCE_EXHAUSTED: Out of memory while trying to allocate (?P<tried>{_I}) bytes"),
        _allocated_bytes,
        budget=False,
    ),
)
PATTERNS = (*_LINES, *_DEATHS)
