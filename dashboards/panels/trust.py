"""Can these figures be trusted?"""

from __future__ import annotations

from dashboards.expressions import HOST, SHAPE
from dashboards.palette import BYTES, COUNT
from dashboards.parts import Q, Row, lines, states
from dashboards.tables import table

__all__ = ["row"]


def row() -> Row:
    """Show the devices as the exporter sees them and the health of every source."""

    def per_device(metric: str) -> Q:
        return Q(f"max by (instance, device) ({metric}{{{HOST}}})")

    identity = "instance, device, platform, model, driver, sampler"
    return Row(
        "Can these figures be trusted?",
        [
            table(
                "Devices",
                "Every device of the chosen hosts and the rank of the engine on it. A rank on an unexpected device: "
                "look at the visible-devices environment. A mark kept for minutes has not seen the day's "
                "load yet. GTT in use far above its usual figure: device memory spills into system memory, which is "
                "slow rather than fatal.",
                {
                    "instance": "Instance",
                    "device": "Device",
                    "rank": "Rank",
                    "model": "Model",
                    "driver": "Driver",
                    "sampler": "Sampler",
                    "Value #C": "Size",
                    "Value #D": "Used",
                    "Value #E": "High water",
                    "Value #F": "Margin",
                    "Value #G": "Mark kept since",
                    "Value #H": "GTT used",
                    "Value #I": "GTT size",
                },
                [
                    Q(f"max by ({identity}) (budget_device_info{{{HOST}}})"),
                    Q(f"max by (instance, device, rank) (budget_rank_info{{{SHAPE}}})"),
                    per_device("budget_device_memory_size_bytes"),
                    per_device("budget_device_memory_used_bytes"),
                    per_device("budget_device_memory_used_high_water_bytes"),
                    per_device("budget_device_margin_bytes"),
                    Q(
                        "1000 * max by (instance, device) "
                        f"(budget_device_memory_used_high_water_reset_timestamp_seconds{{{HOST}}})"
                    ),
                    per_device("budget_device_gtt_used_bytes"),
                    per_device("budget_device_gtt_size_bytes"),
                ],
                units={
                    **dict.fromkeys(("Size", "Used", "High water", "Margin", "GTT used", "GTT size"), BYTES),
                    "Mark kept since": "dateTimeFromNow",
                },
                span=24,
                height=6,
            ),
            table(
                "Sources",
                "Each source of facts, its latest run and the age of its latest success. Red: its series are absent, "
                "not zero; the exporter's log says why (often a missing capability). An age far above the interval "
                "is a source that hangs in the kernel.",
                {
                    "instance": "Instance",
                    "source": "Source",
                    "Value #A": "Latest run",
                    "Value #B": "Last success",
                    "Value #C": "Interval",
                    "Value #D": "Took",
                },
                [
                    Q(f"max by (instance, source) (budget_source_success{{{HOST}}})"),
                    Q(f"1000 * max by (instance, source) (budget_source_last_success_timestamp_seconds{{{HOST}}})"),
                    Q(f"max by (instance, source) (budget_source_interval_seconds{{{HOST}}})"),
                    Q(f"max by (instance, source) (budget_source_duration_seconds{{{HOST}}})"),
                ],
                units={"Last success": "dateTimeFromNow", "Interval": "s", "Took": "s"},
                span=10,
                height=9,
                words={"Latest run": {1: ("ok", "green"), 0: ("failed", "red")}},
            ),
            lines(
                "Failed runs",
                "Failed runs of each source per second. Above zero: see 'Sources' and the exporter's log; a source "
                "that fails now and then is a device or file that comes and goes.",
                [
                    Q(
                        f"sum by (instance, source) (rate(budget_source_failures_total{{{HOST}}}[$__rate_interval]))",
                        "{{source}} on {{instance}}",
                    )
                ],
                unit="cps",
                span=6,
                soft_max=0.1,
            ),
            lines(
                "Lines that did not parse",
                "Engine lines that looked like a budget line and did not parse. A step up after an engine's upgrade: "
                "its wording changed and some figures are missing; report the line.",
                [
                    Q(
                        f"max by (instance, source) (budget_exporter_unparsed_lines_total{{{HOST}}})",
                        "{{source}} on {{instance}}",
                    )
                ],
                unit=COUNT,
                span=5,
                soft_max=4,
                steps=True,
            ),
            states(
                "Configuration",
                "Whether the last configuration reload succeeded. Red: the previous configuration is still in force; "
                "the exporter's log names file, key and line.",
                Q(f"max by (instance) (budget_exporter_config_last_reload_successful{{{HOST}}})", "{{instance}}"),
                {1: ("loaded", "green"), 0: ("reload failed", "red")},
                span=3,
                height=9,
            ),
        ],
    )
