"""
Every metric, once: name, type, labels, unit, help.

Names, types, labels and units are the contract with dashboards and alert rules. ``docs/metrics.md`` is generated from
this list and the exposition is checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from budget_exporter.facts.boot import CAUSES, PHASES
from budget_exporter.facts.endpoint import HEALTH_STATES
from budget_exporter.facts.engine import UNIT_STATES, SupervisorName
from budget_exporter.facts.ledger import COMPONENTS, Origin
from budget_exporter.facts.verdict import FINDINGS, KNIFE_EDGE_REASONS

__all__ = ["CATALOGUE", "Metric", "closed_list"]

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the contract; ``section`` groups it in the documentation."""

    section: str
    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str


def _rows(section: str, *rows: tuple[str, Kind, str, str, str]) -> list[Metric]:
    return [Metric(section, name, kind, tuple(labels.split()), unit, text) for name, kind, labels, unit, text in rows]


# A row a line: a table is read across.
# fmt: off
_METRICS: list[Metric] = [
    *_rows(
        "device",
        ("budget_device_info", "gauge", "device platform model driver sampler high_water_source", "1", "Device identity and how it is sampled; always 1."),
        ("budget_device_memory_size_bytes", "gauge", "device", "bytes", "Device memory the driver says exists."),
        ("budget_device_memory_used_bytes", "gauge", "device", "bytes", "Device memory in use by all clients, from the most recent sample."),
        ("budget_device_memory_used_high_water_bytes", "gauge", "device", "bytes", "Largest device memory use since the newest engine on it started."),
        ("budget_device_memory_used_high_water_timestamp_seconds", "gauge", "device", "seconds", "Unix time at which the high-water mark was set."),
        ("budget_device_memory_used_high_water_reset_timestamp_seconds", "gauge", "device", "seconds", "Unix time since which the high-water mark covers every sample."),
        ("budget_device_memory_used_window_max_bytes", "gauge", "device", "bytes", "Largest use in the last 60 s of samples, so that a scrape at any interval up to 60 s misses no spike."),
        ("budget_device_memory_baseline_bytes", "gauge", "device", "bytes", "Smallest use seen while no engine held the device (driver and firmware reserve)."),
        ("budget_device_margin_bytes", "gauge", "device", "bytes", "Device memory left at the high-water mark (size minus high water)."),
        ("budget_device_memory_evicted_bytes", "gauge", "device", "bytes", "Device-preferred memory the driver has evicted to system memory."),
        ("budget_device_gtt_size_bytes", "gauge", "device", "bytes", "System memory the device may map (amdgpu GTT)."),
        ("budget_device_gtt_used_bytes", "gauge", "device", "bytes", "System memory mapped by the device (amdgpu GTT)."),
        ("budget_device_foreign_memory_bytes", "gauge", "device", "bytes", "Device memory held by processes that belong to no known engine."),
        ("budget_device_foreign_processes", "gauge", "device", "count", "Processes holding device memory that belong to no known engine."),
        ("budget_device_memory_used_high_water_all_time_bytes", "gauge", "device", "bytes", "Largest use ever seen on this device, across engines and restarts."),
        ("budget_device_memory_reserved_bytes", "gauge", "device", "bytes", "Memory the driver keeps for itself where it says so (NVML v2)."),
        ("budget_device_memory_allocator_used_bytes", "gauge", "device", "bytes", "Use inside the framework's own pool where it is published (Gaudi)."),
        ("budget_device_evicted_seconds_total", "counter", "device", "seconds", "Time the queues of processes on the device were evicted (KFD)."),
        ("budget_device_cross_check_difference_bytes", "gauge", "device source", "bytes", "A cross-check's used minus ours."),
        ("budget_device_unattributed_memory_bytes", "gauge", "device", "bytes", "Device memory in use that no visible process accounts for."),
    ),
    *_rows(
        "rank",
        ("budget_rank_info", "gauge", "engine rank device", "1", "Which device each engine rank runs on; always 1."),
        ("budget_rank_memory_used_bytes", "gauge", "engine rank", "bytes", "Device memory held by the rank's processes, shared buffers counted once."),
        ("budget_rank_memory_used_high_water_bytes", "gauge", "engine rank", "bytes", "Largest device memory held by the rank since its engine started."),
        ("budget_rank_gtt_used_bytes", "gauge", "engine rank", "bytes", "System memory mapped for the rank's processes (amdgpu GTT)."),
    ),
    *_rows(
        "model",
        ("budget_model_requested_bytes", "gauge", "engine rank", "bytes", "Device memory the running flags ask the engine to use."),
        ("budget_model_charge_bytes", "gauge", "engine rank component", "bytes", "Part of the request the budget law charges, by component; with the pool (or, for expert offload, the arena) the parts sum to requested."),
        ("budget_model_charge_info", "gauge", "engine rank component source", "1", "Where the figure of that component came from; always 1."),
        ("budget_model_resident_experts_bytes", "gauge", "engine rank", "bytes", "Of the arena: experts of the resident layers."),
        ("budget_model_host_bytes", "gauge", "engine component", "bytes", "Host memory the shape pins (host_experts, ple, kv_offload, swap)."),
        ("budget_model_kv_pool_bytes", "gauge", "engine rank", "bytes", "KV pool the budget law predicts; for expert offload it is allocated out of kv_reserve and not added to it."),
        ("budget_model_kv_pool_tokens", "gauge", "engine", "tokens", "KV pool the budget law predicts, smallest over ranks."),
        ("budget_model_arena_bytes", "gauge", "engine rank", "bytes", "Expert arena the law predicts (expert-offload engines only)."),
        ("budget_model_arena_slots", "gauge", "engine rank", "slots", "Whole experts that fit the predicted arena."),
        ("budget_model_margin_bytes", "gauge", "engine rank", "bytes", "Device memory the law predicts left after every charge, the KV pool and capture beyond its charge; negative when the shape does not fit."),
    ),
    *_rows(
        "reported",
        ("budget_reported_charge_bytes", "gauge", "engine rank component", "bytes", "The engine's own figure for a charged component."),
        ("budget_reported_kv_pool_bytes", "gauge", "engine rank", "bytes", "The engine's own figure for its KV pool."),
        ("budget_reported_kv_pool_tokens", "gauge", "engine", "tokens", "The engine's own figure for its KV pool."),
        ("budget_reported_kv_max_concurrency_ratio", "gauge", "engine", "ratio", "The engine's own maximum concurrency at max_model_len."),
        ("budget_reported_arena_bytes", "gauge", "engine rank", "bytes", "The engine's own figure for its expert arena."),
        ("budget_reported_arena_slots", "gauge", "engine rank", "slots", "The engine's own figure for its arena slots."),
        ("budget_kv_bytes_per_token", "gauge", "engine source", "bytes", "Price of one token of KV by source: registry, geometry, measured. Never compared across shapes."),
        ("budget_estimator_gap_bytes", "gauge", "engine rank", "bytes", "Measured free memory minus the free memory the plan predicted; what no flag can reach."),
        ("budget_reported_graph_capture_bytes", "gauge", "engine rank", "bytes", "Device memory graph capture actually took; the engine can report a negative value."),
        ("budget_graph_drift_bytes", "gauge", "engine rank", "bytes", "Graph capture minus the graph charge applied to the budget; positive means under-charged."),
    ),
    *_rows(
        "law",
        ("budget_law_info", "gauge", "engine law version assumed", "1", "Budget law applied to the engine; always 1."),
        ("budget_law_utilization_limit_ratio", "gauge", "engine rank", "ratio", "Largest share of the device the law lets the flags request."),
        ("budget_law_margin_floor_bytes", "gauge", "engine severity", "bytes", "Smallest margin accepted, by the severity (critical, warning) of what happens below it."),
        ("budget_kv_contract_tokens", "gauge", "engine", "tokens", "KV pool the operator has promised for the engine."),
        ("budget_kv_min_tokens", "gauge", "engine", "tokens", "KV pool below which the engine refuses to start."),
    ),
    *_rows(
        "engine and supervision",
        ("budget_engine_info", "gauge", "engine version model supervisor unit_name", "1", "Engine identity and what supervises it; always 1."),
        ("budget_engine_flags_info", "gauge", "engine gpu_memory_utilization kv_cache_dtype block_size max_model_len max_num_seqs tensor_parallel_size kv_cache_memory_bytes", "1", "Budget flags of the running process as given; always 1."),
        ("budget_engine_up", "gauge", "engine", "bool", "Whether an expected engine has a running main process."),
        ("budget_engine_start_time_seconds", "gauge", "engine", "seconds", "Unix time at which the engine's main process started."),
        ("budget_engine_restarts_total", "counter", "engine", "count", "Restarts of the engine as the exporter saw them (new main process), whatever the cause; survives a restart of the exporter."),
        ("budget_engine_nrestarts", "gauge", "engine", "count", "The supervisor's raw counter (systemd NRestarts, podman/docker RestartCount); a manual restart resets it."),
        ("budget_engine_phase", "gauge", "engine phase", "bool", "1 for the phase the engine is in."),
        ("budget_engine_phase_start_time_seconds", "gauge", "engine", "seconds", "Unix time at which the current phase began."),
        ("budget_engine_failures_total", "counter", "engine cause", "count", "Deaths of the engine by cause."),
        ("budget_engine_last_failure_info", "gauge", "engine phase cause rank", "1", "Phase, cause and rank of the last failure; always 1."),
        ("budget_engine_last_failure_tried_bytes", "gauge", "engine", "bytes", "Size of the allocation that failed in the last memory failure."),
        ("budget_engine_last_failure_free_bytes", "gauge", "engine", "bytes", "Free device memory the engine reported in its last memory failure."),
        ("budget_engine_last_failure_timestamp_seconds", "gauge", "engine", "seconds", "Unix time of the last failure."),
        ("budget_engine_knife_edge", "gauge", "engine reason", "bool", "1 where the shape is on a knife edge, by reason: predicted_margin, measured_margin, utilization_limit, kv_below_contract, capture_over_charge, kv_minimum, compile_cap."),
        ("budget_engine_finding", "gauge", "engine finding", "bool", "1 while the finding holds."),
        ("budget_engine_free_at_init_bytes", "gauge", "engine rank source", "bytes", "Free device memory when the engine took its first snapshot, printed or measured."),
        ("budget_engine_graph_estimate_bytes", "gauge", "engine rank", "bytes", "Graph memory the engine estimated, whether or not it charged it."),
        ("budget_engine_graph_charge_applied", "gauge", "engine rank", "bool", "Whether the estimate was charged to the budget."),
        ("budget_engine_health", "gauge", "engine state", "bool", "1 for the state of the health endpoint: ok, unavailable, refused, timeout, unknown."),
        ("budget_engine_unit_state", "gauge", "engine state", "bool", "1 for the supervisor's state: active, activating, auto_restart, failed, inactive, unknown."),
        ("budget_engine_pending_flag", "gauge", "engine flag", "1", "A budget flag whose configured value differs from the running one; allow-listed names only."),
        ("budget_engine_floor_reached_seconds", "gauge", "engine rank", "seconds", "Time until the floor at the present rate of creep; absent where there is no trend."),
        ("budget_engine_graph_charge_suggested_bytes", "gauge", "engine", "bytes", "Graph charge that would cover the heaviest rank's measured capture."),
        ("budget_engine_pending_flags", "gauge", "engine", "count", "Budget flags whose configured value differs from the running process."),
        ("budget_engine_memory_utilization_ratio", "gauge", "engine rank", "ratio", "Share of the device the running flags request, explicit KV sizes included."),
        ("budget_engine_max_model_len_tokens", "gauge", "engine", "tokens", "Longest sequence the running flags admit."),
        ("budget_neuron_kv_cap_bytes", "gauge", "engine rank", "bytes", "Compile-safe cap on the KV pool (requested x cap fraction)."),
        ("budget_neuron_kv_minimum_bytes", "gauge", "engine", "bytes", "KV pool below which the Neuron worker refuses to start."),
        ("budget_neuron_vnc_memory_used_bytes", "gauge", "engine rank", "bytes", "The runtime's own ledger (get_vnc_memory_stats), published by the in-engine hook."),
        ("budget_neuron_vnc_memory_limit_bytes", "gauge", "engine rank", "bytes", "Limit of that ledger: one HBM bank; two ranks of a bank at LNC=1 both report it."),
    ),
    *_rows(
        "the exporter itself",
        ("budget_exporter_build_info", "gauge", "version revision python_version", "1", "Build of the exporter; always 1."),
        ("budget_exporter_demo", "gauge", "", "bool", "1 where the figures come from a synthetic host."),
        ("budget_exporter_config_last_reload_successful", "gauge", "", "bool", "Whether the last configuration reload attempt succeeded."),
        ("budget_exporter_config_last_reload_success_timestamp_seconds", "gauge", "", "seconds", "Unix time of the last successful configuration reload."),
        ("budget_exporter_unparsed_lines_total", "counter", "source", "count", "Engine lines that passed the budget pre-filter but did not parse; other lines are not counted."),
        ("budget_source_success", "gauge", "source", "bool", "Whether the source's latest run succeeded."),
        ("budget_source_duration_seconds", "gauge", "source", "seconds", "Duration of the source's latest run."),
        ("budget_source_interval_seconds", "gauge", "source", "seconds", "Time between two runs of the source."),
        ("budget_source_last_success_timestamp_seconds", "gauge", "source", "seconds", "Unix time of the source's latest successful run."),
        ("budget_source_runs_total", "counter", "source", "count", "Runs of the source."),
        ("budget_source_failures_total", "counter", "source", "count", "Failed runs of the source."),
    ),
]
# fmt: on

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _METRICS}
"""The contract by name."""

_LISTS: dict[str, tuple[str, ...]] = {
    "phase": PHASES,
    "cause": CAUSES,
    "reason": KNIFE_EDGE_REASONS,
    "finding": FINDINGS,
    "component": COMPONENTS,
    "severity": ("critical", "warning"),
    "platform": ("amd", "neuron", "gaudi", "tpu", "nvidia", "host"),
    "supervisor": get_args(SupervisorName),
    "assumed": ("true", "false"),
}
_LISTS_OF_ONE_METRIC: dict[tuple[str, str], tuple[str, ...]] = {
    ("budget_model_host_bytes", "component"): ("host_experts", "ple", "kv_offload", "swap"),
    ("budget_model_charge_info", "source"): get_args(Origin),
    ("budget_kv_bytes_per_token", "source"): ("registry", "geometry", "measured"),
    ("budget_engine_free_at_init_bytes", "source"): get_args(Origin),
    ("budget_engine_health", "state"): HEALTH_STATES,
    ("budget_engine_unit_state", "state"): UNIT_STATES,
}


def closed_list(metric: str, label: str) -> tuple[str, ...] | None:
    """Return the only values ``label`` of ``metric`` may take, or None where the list is open."""
    return _LISTS_OF_ONE_METRIC.get((metric, label), _LISTS.get(label))
