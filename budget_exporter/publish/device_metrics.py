"""Series of one device: what the driver says, and what is remembered of it."""

from __future__ import annotations

from budget_exporter.facts.snapshot import DeviceState
from budget_exporter.publish.families import Families

__all__ = ["add"]


def add(out: Families, state: DeviceState) -> None:
    """Add the series of ``state``; the margin is size minus high water and stays signed."""
    identity, memory, mark = state.identity, state.memory, state.high_water
    device = identity.device
    out.add(
        "budget_device_info",
        1,
        device=device,
        platform=identity.platform,
        model=identity.model,
        driver=identity.driver,
        sampler=identity.sampler,
        high_water_source=identity.high_water_source,
    )
    out.add("budget_device_memory_size_bytes", memory.size, device=device)
    out.add("budget_device_memory_used_bytes", memory.used, device=device)
    out.add("budget_device_gtt_size_bytes", memory.gtt_size, device=device)
    out.add("budget_device_gtt_used_bytes", memory.gtt_used, device=device)
    out.add("budget_device_memory_used_high_water_bytes", mark.used, device=device)
    out.add("budget_device_memory_used_high_water_timestamp_seconds", mark.at, device=device)
    out.add("budget_device_memory_used_high_water_reset_timestamp_seconds", mark.since, device=device)
    out.add("budget_device_memory_used_high_water_all_time_bytes", mark.all_time, device=device)
    out.add("budget_device_memory_used_window_max_bytes", state.window_max, device=device)
    out.add("budget_device_memory_baseline_bytes", mark.baseline, device=device)
    out.add("budget_device_margin_bytes", memory.size - mark.used, device=device)
    out.add("budget_device_memory_reserved_bytes", memory.reserved, device=device)
    out.add("budget_device_memory_allocator_used_bytes", memory.allocator_used, device=device)
    for source, difference in state.differences.items():
        out.add("budget_device_cross_check_difference_bytes", difference, device=device, source=source)
    _add_ownership(out, state)


def _add_ownership(out: Families, state: DeviceState) -> None:
    """Add whose the use is; a device whose processes nobody lists has none of these series."""
    device, owned = state.identity.device, state.ownership
    evicted = state.memory.evicted
    if owned is not None:
        evicted = owned.evicted if evicted is None else evicted
        foreign = None if owned.foreign is None else len(owned.foreign)
        out.add("budget_device_foreign_memory_bytes", owned.foreign_bytes, device=device)
        out.add("budget_device_foreign_processes", foreign, device=device)
        out.add("budget_device_unattributed_memory_bytes", owned.unattributed, device=device)
        out.add("budget_device_evicted_seconds_total", owned.evicted_seconds, device=device)
    out.add("budget_device_memory_evicted_bytes", evicted, device=device)
