"""Series of how an engine died."""

from __future__ import annotations

from budget_exporter.facts.boot import CAUSES
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.families import Families

__all__ = ["add"]


def add(out: Families, state: EngineState) -> None:
    """Add deaths by cause, each from 0 on, and the last failure where there was one."""
    engine = state.name
    for cause in CAUSES:
        out.add("budget_engine_failures_total", state.failures.get(cause, 0), engine=engine, cause=cause)
    failure = state.last_failure
    if failure is None:
        return
    rank = "" if failure.rank is None else str(failure.rank)
    info = {"engine": engine, "phase": failure.phase, "cause": failure.cause, "rank": rank}
    out.add("budget_engine_last_failure_info", 1, **info)
    out.add("budget_engine_last_failure_timestamp_seconds", failure.at, engine=engine)
    if failure.tried is not None:
        out.add("budget_engine_last_failure_tried_bytes", failure.tried.bytes, engine=engine)
    if failure.free is not None:
        out.add("budget_engine_last_failure_free_bytes", failure.free.bytes, engine=engine)
