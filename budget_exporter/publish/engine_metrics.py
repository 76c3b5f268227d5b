"""Series of the engine as a process: identity, flags, phase, supervision, verdicts."""

from __future__ import annotations

from budget_exporter.facts.snapshot import EngineState
from budget_exporter.publish.families import Families
from budget_exporter.publish.flags import by_label

__all__ = ["add", "max_model_len_of", "model_name_of", "version_of"]

_FLAGS = (
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "tensor_parallel_size",
    "kv_cache_memory_bytes",
)


def add(out: Families, state: EngineState) -> None:
    """Add identity, flags, placement, phase, supervision and verdicts of ``state``."""
    engine = state.name
    _identity(out, state)
    _supervision(out, state)
    out.add_states("budget_engine_phase", "phase", state.phase, engine=engine)
    out.add("budget_engine_phase_start_time_seconds", state.phase_since, engine=engine)
    if state.endpoint is not None:
        out.add_states("budget_engine_health", "state", state.endpoint.health, engine=engine)
    for placement in state.placements:
        if placement.device is not None:
            out.add("budget_rank_info", 1, engine=engine, rank=placement.rank, device=placement.device)
    if state.pending is not None and state.pending.flags is not None:
        out.add("budget_engine_pending_flags", len(state.pending.flags), engine=engine)
        for flag in state.pending.flags:
            out.add("budget_engine_pending_flag", 1, engine=engine, flag=flag)
    for rank, verdict in state.verdict.ranks.items():
        out.add("budget_engine_floor_reached_seconds", verdict.floor_reached, engine=engine, rank=rank)
    # A reason or finding that could not be evaluated has no series: neither 0 nor 1 is known.
    for reason, holds in state.verdict.knife_edge.items():
        out.add("budget_engine_knife_edge", holds, engine=engine, reason=reason)
    for finding, holds in state.verdict.findings.items():
        out.add("budget_engine_finding", holds, engine=engine, finding=finding)


def _identity(out: Families, state: EngineState) -> None:
    engine = state.name
    out.add(
        "budget_engine_info",
        1,
        engine=engine,
        version=version_of(state),
        model=model_name_of(state),
        supervisor=state.supervisor,
        unit_name=state.unit,
    )
    out.add("budget_engine_max_model_len_tokens", max_model_len_of(state), engine=engine)
    if state.shape is not None:
        typed = by_label(state.shape.given)
        out.add("budget_engine_flags_info", 1, engine=engine, **{flag: typed.get(flag, "") for flag in _FLAGS})


def _supervision(out: Families, state: EngineState) -> None:
    engine = state.name
    if state.expected:
        out.add("budget_engine_up", state.up, engine=engine)
    if state.up and state.sighting is not None:
        out.add("budget_engine_start_time_seconds", state.sighting.started_at, engine=engine)
    out.add("budget_engine_restarts_total", state.restarts, engine=engine)
    if state.supervision is not None:
        out.add("budget_engine_nrestarts", state.supervision.nrestarts, engine=engine)
        out.add_states("budget_engine_unit_state", "state", state.supervision.state, engine=engine)


def version_of(state: EngineState) -> str:
    """Return the version the engine printed, else that of its installed package; empty where neither is known."""
    return (state.report and state.report.version) or (state.shape and state.shape.version) or ""


def model_name_of(state: EngineState) -> str:
    """Return the name clients call the model by, else the one given or printed, else nothing."""
    shape, report = state.shape, state.report
    names = (shape and shape.served_model_name, shape and shape.model, report and report.model)
    return next((name for name in names if name), "")


def max_model_len_of(state: EngineState) -> int | None:
    """Return the longest sequence in tokens: the flag, else (``auto``, -1, not given) what the engine resolved."""
    if state.shape is not None and state.shape.max_model_len is not None:
        return state.shape.max_model_len
    return None if state.report is None else state.report.max_model_len
