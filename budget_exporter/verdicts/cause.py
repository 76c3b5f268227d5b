"""Why an engine died where its log does not say: what arithmetic leaves no choice about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from budget_exporter.facts.boot import BootReport, Cause, Failure, Phase, RankFacts
from budget_exporter.facts.engine import Shape

__all__ = ["deduced", "doomed"]

_BLOCK = 16
"""Tokens of a block where neither flag nor line says another number: CUDA and ROCm, the engines that count blocks."""
_RESERVE = 1.08
"""The expert-offload plan keeps KV for one request of the longest length, and eight per cent more."""
_DIES: dict[Cause, Phase] = {"kv_below_max_len": "allocating_kv", "no_kv_room": "allocating_kv"}
_BOOTED: frozenset[Phase] = frozenset({"capturing", "warming_up", "serving", "sleeping", "stopped"})
"""Phases that an engine whose pool is refused does not reach."""


def deduced(failure: Failure, report: BootReport | None, shape: Shape | None) -> Failure:
    """Return ``failure`` with a cause that follows from printed figures and flags, where the log named none."""
    told = report is None or failure.cause != "unknown" or failure.phase in _BOOTED
    cause = None if told or report is None else doomed(report, shape)
    return failure if cause is None else replace(failure, cause=cause, phase=_DIES[cause])


def doomed(report: BootReport, shape: Shape | None) -> Cause | None:
    """
    Return why the engine cannot have come up with the figures it printed, None where nothing says that it cannot.

    An engine that went past the check of its pool was not refused, whatever the figures say.
    """
    if report.phase in _BOOTED:
        return None
    facts = [report.common, *report.ranks.values()]
    if any(known.kv_available is not None and known.kv_available.bytes < 0 for known in facts):
        return "no_kv_room"
    if any(_too_short(known, report, shape) for known in facts) or any(_drifted(known, shape) for known in facts):
        return "kv_below_max_len"
    return None


def _too_short(facts: RankFacts, report: BootReport, shape: Shape | None) -> bool:
    """Tell whether the blocks of a rank hold less than one request (vLLM before 0.8 prints blocks, not tokens)."""
    longest = next(_lengths(report, shape), None)
    if facts.kv_blocks is None or longest is None:
        return False
    block = _BLOCK if shape is None or shape.block_size is None else shape.block_size
    return 0 < facts.kv_blocks * block < longest


def _lengths(report: BootReport, shape: Shape | None) -> Iterator[int]:
    if report.max_model_len is not None:
        yield report.max_model_len
    if shape is not None and shape.max_model_len is not None:
        yield shape.max_model_len


def _drifted(facts: RankFacts, shape: Shape | None) -> bool:
    """
    Tell whether one request costs more than the plan of expert offload keeps for it, at any length.

    Only an explicit size of the pool is not capped at the plan's reserve.
    """
    planned, measured = facts.kv_bytes_per_token_planned, facts.kv_bytes_per_token_measured
    if planned is None or measured is None or (shape is not None and shape.kv_cache_memory_bytes is not None):
        return False
    return measured > _RESERVE * planned
