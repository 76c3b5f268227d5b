"""Two synthetic hosts as OpenMetrics history, for a real Prometheus to answer the dashboard's queries from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
MIB = 2**20
SIZE = 34208743424  # one R9700
REQUESTED = round(0.982 * SIZE)

Value = float | Callable[[float], float]
Series = tuple[str, Mapping[str, str], Value]

OFFLOAD = {"weights": 6.34, "runtime_overhead": 5.25, "kv_reserve": 1.855, "cuda_graphs": 0.0703}
PLAIN = {"weights": 14.2, "activation": 2.1, "non_torch": 0.45, "cuda_graphs": 0.31}
PHASES = ("starting", "loading", "profiling", "allocating_kv", "capturing", "warming_up", "serving", "unknown")
CAUSES = ("profile_oom", "no_kv_room", "graph_capture_oom", "first_request_oom", "runtime_oom", "not_memory", "unknown")
REASONS = ("predicted_margin", "measured_margin", "utilization_limit", "kv_below_contract", "capture_over_charge")
FINDINGS = ("graph_charge_over", "graph_charge_under", "knife_edge", "leak", "model_mismatch", "law_assumed")


@dataclass(frozen=True)
class Host:
    """One exporter: its instance label, the engine on it, and the free memory of each rank's device in GiB."""

    instance: str
    engine: str
    charges: Mapping[str, float]
    free: tuple[float, ...]
    start: float
    failed: bool = False

    @property
    def offload(self) -> bool:
        return "runtime_overhead" in self.charges


def fleet(start: float) -> list[Host]:
    """Two hosts that run an engine of one name with different figures, and a third with another engine and law."""
    return [
        Host("gpu-a.example.org:19470", "vllm-qwen", OFFLOAD, (1.02, 0.97), start),
        Host("gpu-b.example.org:19470", "vllm-qwen", {**OFFLOAD, "weights": 6.0}, (0.52, 0.1), start, failed=True),
        Host("gpu-c.example.org:19470", "vllm-small", PLAIN, (2.4,), start),
    ]


def _device(rank: int, free: float, start: float) -> Iterator[Series]:
    device = {"device": f"0000:{3 + 4 * rank:02x}:00.0"}
    worst = round(SIZE - (free - 0.08) * GIB)

    def used(at: float) -> float:
        return round(SIZE - free * GIB - 30 * MIB * ((at // 300 + rank) % 3))

    def high_water(at: float) -> float:
        return worst if at > start + 3600 else used(at)

    info = {"platform": "amd", "model": "AMD Radeon AI PRO R9700", "driver": "6.14.0", "sampler": "amdgpu_vram"}
    yield "budget_device_info", {**device, **info, "high_water_source": "sampled"}, 1
    yield "budget_device_memory_size_bytes", device, SIZE
    yield "budget_device_memory_used_bytes", device, used
    yield "budget_device_memory_used_high_water_bytes", device, high_water
    yield "budget_device_memory_used_high_water_timestamp_seconds", device, start + 3600
    yield "budget_device_memory_used_high_water_reset_timestamp_seconds", device, start
    yield "budget_device_memory_used_high_water_all_time_bytes", device, worst + 200 * MIB
    yield "budget_device_memory_used_window_max_bytes", device, lambda at: used(at) + 20 * MIB
    yield "budget_device_margin_bytes", device, lambda at: SIZE - high_water(at)
    yield "budget_device_foreign_memory_bytes", device, 0
    yield "budget_device_unattributed_memory_bytes", device, round(0.57 * GIB)
    yield "budget_device_gtt_size_bytes", device, 62 * GIB
    yield "budget_device_gtt_used_bytes", device, 41 * MIB + rank * 3 * MIB


def _rank(host: Host, rank: int, free: float) -> Iterator[Series]:
    key = {"engine": host.engine, "rank": str(rank)}
    capture = (0.31, 0.17)[rank] * GIB
    pool = REQUESTED
    yield "budget_rank_info", {**key, "device": f"0000:{3 + 4 * rank:02x}:00.0"}, 1
    yield "budget_rank_memory_used_bytes", key, SIZE - round((free + 0.57) * GIB)
    yield "budget_model_requested_bytes", key, REQUESTED
    for component, gib in host.charges.items():
        charge = round(gib * GIB)
        pool -= charge
        yield "budget_model_charge_bytes", {**key, "component": component}, charge
        source = "registry" if component == "runtime_overhead" else "log"
        yield "budget_model_charge_info", {**key, "component": component, "source": source}, 1
        yield "budget_reported_charge_bytes", {**key, "component": component}, round(gib * 100) / 100 * GIB
    if host.offload:
        yield "budget_model_arena_bytes", key, pool
        yield "budget_model_arena_slots", key, 7762
        yield "budget_reported_arena_slots", key, 7761
        yield "budget_model_kv_pool_bytes", key, 3166500000
    else:
        yield "budget_model_kv_pool_bytes", key, pool
    yield "budget_model_margin_bytes", key, round((free + 1.7) * GIB)
    yield "budget_estimator_gap_bytes", key, round((free - 0.57) * GIB)
    yield "budget_reported_graph_capture_bytes", key, capture
    yield "budget_graph_drift_bytes", key, capture - round(host.charges["cuda_graphs"] * GIB)
    yield "budget_law_utilization_limit_ratio", key, 0.982
    yield "budget_engine_memory_utilization_ratio", key, 0.982
    yield "budget_engine_free_at_init_bytes", {**key, "source": "log"}, round(31.29 * GIB)


def _engine(host: Host) -> Iterator[Series]:
    key = {"engine": host.engine}
    flags = {"gpu_memory_utilization": "0.982", "kv_cache_dtype": "fp8", "block_size": "", "max_model_len": "200704"}
    flags |= {"max_num_seqs": "3", "tensor_parallel_size": str(len(host.free)), "kv_cache_memory_bytes": ""}
    info = {"version": "0.28.0", "model": host.engine, "supervisor": "systemd", "unit_name": f"{host.engine}.service"}
    restart = host.start + 2 * 3600
    yield "budget_engine_info", {**key, **info}, 1
    yield "budget_engine_flags_info", {**key, **flags}, 1
    law = "expert_offload" if host.offload else "vllm_gpu"
    yield "budget_law_info", {**key, "law": law, "version": "0.28.0", "assumed": "false"}, 1
    yield "budget_engine_up", key, 1
    yield "budget_engine_start_time_seconds", key, lambda at: restart if host.failed and at > restart else host.start
    yield "budget_engine_restarts_total", key, lambda at: float(host.failed and at > restart)
    for phase in PHASES:
        yield "budget_engine_phase", {**key, "phase": phase}, float(phase == "serving")
    for cause in CAUSES:
        dead = host.failed and cause == "first_request_oom"
        yield "budget_engine_failures_total", {**key, "cause": cause}, float(dead)
    for reason in REASONS:
        edge = host.failed and reason in {"capture_over_charge", "measured_margin"}
        yield "budget_engine_knife_edge", {**key, "reason": reason}, float(edge)
    for finding in FINDINGS:
        yield "budget_engine_finding", {**key, "finding": finding}, float(finding == "graph_charge_under")
    if host.failed:
        last = {**key, "phase": "serving", "cause": "first_request_oom", "rank": "0"}
        yield "budget_engine_last_failure_info", last, 1
        yield "budget_engine_last_failure_tried_bytes", key, 50 * MIB
        yield "budget_engine_last_failure_free_bytes", key, 0
        yield "budget_engine_last_failure_timestamp_seconds", key, restart - 90
    yield "budget_law_margin_floor_bytes", {**key, "severity": "critical"}, 256 * MIB
    yield "budget_law_margin_floor_bytes", {**key, "severity": "warning"}, 768 * MIB
    yield "budget_reported_kv_pool_tokens", key, 401408
    yield "budget_model_kv_pool_tokens", key, 401390
    yield "budget_kv_contract_tokens", key, 401408
    yield "budget_kv_min_tokens", key, 200704
    yield "budget_engine_graph_charge_suggested_bytes", key, round(0.31 * GIB)
    for source, price in (("registry", 9190), ("measured", 7888)):
        yield "budget_kv_bytes_per_token", {**key, "source": source}, price


def _every_ten_minutes(start: float) -> Callable[[float], float]:
    return lambda at: (at - start) // 600


def _exporter(host: Host) -> Iterator[Series]:
    yield "budget_exporter_build_info", {"version": "0.1.0", "revision": "", "python_version": "3.11.7"}, 1
    yield "budget_exporter_config_last_reload_successful", {}, 1
    for source, interval in (("amdgpu", 0.1), ("procfs", 1.0), ("journal", 1.0)):
        key = {"source": source}
        failing = host.failed and source == "procfs"
        yield "budget_source_success", key, float(not failing)
        yield "budget_source_interval_seconds", key, interval
        yield "budget_source_duration_seconds", key, interval / 300
        yield "budget_source_last_success_timestamp_seconds", key, lambda at: at - 0.2
        yield "budget_source_failures_total", key, _every_ten_minutes(host.start) if failing else 0
        yield "budget_exporter_unparsed_lines_total", key, 0


def series(host: Host) -> Iterator[Series]:
    """Yield every series of one host, without the labels of the scrape."""
    for rank, free in enumerate(host.free):
        yield from _device(rank, free, host.start)
        yield from _rank(host, rank, free)
    yield from _engine(host)
    yield from _exporter(host)


def write_history(path: Path, hosts: list[Host], times: list[float]) -> None:
    """Write the hosts' series at ``times`` (Unix seconds, rising) as OpenMetrics for ``promtool tsdb``."""
    with path.open("w", encoding="utf-8") as out:
        for host in hosts:
            for name, labels, value in series(host):
                scraped = {"job": "budget_exporter", "instance": host.instance, **labels}
                text = ",".join(f'{label}="{content}"' for label, content in scraped.items())
                for at in times:
                    figure = value(at) if callable(value) else value
                    out.write(f"{name}{{{text}}} {figure!r} {at}\n")
        out.write("# EOF\n")
