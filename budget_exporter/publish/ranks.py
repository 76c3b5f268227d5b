"""Which ranks an engine has and what each of them printed."""

from __future__ import annotations

import re

from budget_exporter.facts.boot import RankFacts
from budget_exporter.facts.snapshot import EngineState

__all__ = ["facts_of", "ranks_of"]

_MOST = 1024
"""More ranks than that are none, as in placements: what the flags ask for no host can have."""
_NUMBER = re.compile(r"(\d+)")


def ranks_of(engine: EngineState) -> list[str]:
    """Return every rank something is known of, in natural order (``2`` before ``10``, ``d1.0`` after ``d0.1``)."""
    known = {placement.rank for placement in engine.placements}
    known.update(engine.verdict.ranks, engine.free_at_init)
    if engine.ledger is not None:
        known.update(engine.ledger.ranks)
    if not known and engine.report is not None:
        known.update(str(rank) for rank in engine.report.ranks or _ranks_of_shape(engine))
    return sorted(known, key=lambda rank: [int(part) if part.isdecimal() else part for part in _NUMBER.split(rank)])


def _ranks_of_shape(engine: EngineState) -> range:
    """Return the ranks the flags ask for; none where data parallelism makes a plain number ambiguous."""
    shape = engine.shape
    if shape is None or shape.data_parallel_size != 1:
        return range(0)
    ranks = shape.tensor_parallel_size * shape.pipeline_parallel_size
    return range(ranks if ranks <= _MOST else 0)


def facts_of(engine: EngineState, rank: str) -> RankFacts | None:
    """
    Return what ``rank`` printed, None without a report.

    For a rank of a data-parallel replica (``d1.0``) only what holds for every rank: a line with a plain number could be
    any replica's.
    """
    if engine.report is None:
        return None
    return engine.report.of(int(rank)) if rank.isdecimal() else engine.report.common
