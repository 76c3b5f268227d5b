"""
PromQL that more than one panel asks.

Everything here is text made of catalogue names. ``job`` and ``instance`` come from the scrape, all other labels from
the exporter.
"""

from __future__ import annotations

__all__ = ["HOST", "SHAPE", "SHAPE_LABELS", "by_rank", "floor", "margin_at_worst", "margin_now", "state"]

HOST = 'job=~"$job", instance=~"$instance"'
"""Selector of series without an engine label: devices, sources, the exporter itself."""

SHAPE = f'{HOST}, engine="$engine"'
"""Selector of one engine's series on the chosen hosts."""

SHAPE_LABELS = "job, instance, engine, rank"
"""What makes a rank unique in a fleet: two hosts may run an engine of the same name."""


def by_rank(device_expression: str) -> str:
    """
    Give a device expression the engine and rank that run on the device.

    ``device_expression`` must have one series per (job, instance, device). Devices without a rank of the chosen engine
    drop out; a device with two ranks appears once for each.
    """
    return f"budget_rank_info{{{SHAPE}}} * on (job, instance, device) group_left () ({device_expression})"


def margin_now() -> str:
    """Bytes left per rank at the newest sample."""
    used = f"budget_device_memory_size_bytes{{{HOST}}} - budget_device_memory_used_bytes{{{HOST}}}"
    return by_rank(used)


def margin_at_worst() -> str:
    """Bytes left per rank at the high-water mark."""
    return by_rank(f"budget_device_margin_bytes{{{HOST}}}")


def floor(severity: str = "") -> str:
    """Smallest margin accepted; of one severity, or of both with the severity as a label."""
    chosen = f', severity="{severity}"' if severity else ""
    return f"budget_law_margin_floor_bytes{{{SHAPE}{chosen}}}"


def state(margin: str) -> str:
    """
    Say per rank on which side of its floors a margin lies: 0 above both, 1 below warning, 2 below critical.

    The floors are series of the engine, so that no figure of policy stands in the dashboard.
    """
    below = [
        f"({margin} < bool on (job, instance, engine) group_left () {floor(severity)})"
        for severity in ("critical", "warning")
    ]
    return f"max by (instance, rank) ({' + '.join(below)})"
