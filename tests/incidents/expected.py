"""Which pages must come of each incident and by when, what else may be told, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.incidents import timelines
from tests.incidents.stage import Stage, Waits

__all__ = ["INCIDENTS", "Incident"]

MINUTE = 60.0
HOUR = 3600.0


@dataclass(frozen=True)
class Incident:
    """
    One incident.

    ``pages`` are the critical alerts that must come, by name, with the seconds after the state's begin by which they
    must; ``warnings`` the others the same way, with their reason after a colon where they have one, and ``infos`` those
    that tell nobody. Nothing that is in none of them may fire. ``live`` are the pages that a webhook must get where it
    is played in real time, with boots of seconds; None where it is not, since it takes longer. One that is not
    ``replayed`` is played in real time only, and goes on as it ended.
    """

    name: str
    play: Callable[[Stage], Waits]
    pages: Mapping[str, float] = field(default_factory=dict)
    warnings: Mapping[str, float] = field(default_factory=dict)
    infos: frozenset[str] = frozenset()
    live: Mapping[str, float] | None = None
    interval: int = 15
    sparse: int = 4
    replayed: bool = True


RESTARTED = frozenset({"BudgetEngineRestarted"})
DIED = {"BudgetEngineDied": 6 * MINUTE}
MARGIN = {"BudgetMarginBelowFloor:measured_margin": 6 * MINUTE, "BudgetShapeKnifeEdge:measured_margin": 6 * MINUTE}
INCIDENTS: tuple[Incident, ...] = (
    Incident(
        "util 1.00 crash loop",
        timelines.crash_loop,
        pages={"BudgetEngineCrashLooping": 8 * MINUTE},
        warnings=DIED | {"BudgetUtilizationAboveLimit:utilization_limit": 5 * MINUTE},
        infos=RESTARTED,
        live={"BudgetEngineCrashLooping": 120},
    ),
    Incident(
        "5 x 262144 knife edge",
        timelines.knife_edge,
        pages={"BudgetDeviceMemoryNearlyExhausted": MINUTE, "BudgetShapeDiesOnFirstRequest": 6 * MINUTE},
        warnings=DIED,
        infos=RESTARTED,
        live={"BudgetDeviceMemoryNearlyExhausted": MINUTE, "BudgetShapeDiesOnFirstRequest": 130},
    ),
    Incident(
        "bf16 2 x 262144 dies at capture",
        timelines.capture_oom,
        pages={"BudgetEngineCrashLooping": 12 * MINUTE},
        warnings=DIED,
        infos=RESTARTED,
        live={"BudgetEngineCrashLooping": 120},
    ),
    Incident(
        "graph drift after a spec-decode change",
        timelines.drift,
        warnings={
            "BudgetGraphCaptureAboveCharge:capture_over_charge": 6 * MINUTE,
            "BudgetShapeKnifeEdge:capture_over_charge": 6 * MINUTE,
        },
        infos=RESTARTED,
    ),
    Incident("foreign process takes 3 GiB", timelines.foreign, warnings={"BudgetForeignProcess": 6 * MINUTE} | MARGIN),
    Incident(
        "leak of 200 MiB an hour",
        timelines.leak,
        pages={"BudgetLeakNearFloor": 7.5 * HOUR, "BudgetDeviceMemoryNearlyExhausted": 8 * HOUR},
        warnings={
            "BudgetMemoryLeak": 1.5 * HOUR,
            "BudgetMarginBelowFloor:measured_margin": 5.5 * HOUR,
            "BudgetShapeKnifeEdge:measured_margin": 5.5 * HOUR,
        },
        interval=30,
    ),
    Incident(
        "the same leak after two good hours",
        timelines.late_leak,
        pages={"BudgetLeakNearFloor": 7.5 * HOUR, "BudgetDeviceMemoryNearlyExhausted": 8 * HOUR},
        warnings={
            "BudgetMemoryLeak": 3 * HOUR,
            "BudgetMarginBelowFloor:measured_margin": 5.5 * HOUR,
            "BudgetShapeKnifeEdge:measured_margin": 5.5 * HOUR,
        },
        interval=30,
    ),
    Incident("GTT spill", timelines.spill, warnings={"BudgetGTTSpill": 6 * MINUTE} | MARGIN),
    Incident(
        "sampler wedged",
        timelines.wedged,
        warnings={"BudgetSourceFailing": 6 * MINUTE, "BudgetSourceStale": 4 * MINUTE},
        live={},
        replayed=False,
    ),
    Incident(
        "process list wedged, then a card fills",
        timelines.blind,
        pages={"BudgetDeviceMemoryNearlyExhausted": MINUTE},
        # What the engine's shape comes to is not judged while nobody can tell whether it runs.
        warnings={
            "BudgetSourceFailing": 6 * MINUTE,
            "BudgetSourceStale": 4 * MINUTE,
            "BudgetMarginBelowFloor:measured_margin": 6 * MINUTE,
        },
        live={"BudgetDeviceMemoryNearlyExhausted": MINUTE},
        replayed=False,
    ),
    Incident(
        "card lost",
        timelines.card_lost,
        pages={"BudgetDeviceLost": 90.0},
        warnings={"BudgetSourceFailing": 6 * MINUTE, "BudgetSourceStale": 4 * MINUTE},
        # A scrape that is missed on a busy machine begins the minute anew.
        live={"BudgetDeviceLost": 150.0},
        replayed=False,
    ),
    Incident("restarted with other flags", timelines.other_flags, infos=RESTARTED),
    Incident("healthy boot with its spikes", timelines.healthy_boot, live={}),
    Incident("boot that comes to 64 MiB", timelines.tight_boot, warnings=MARGIN, live={}),
    Incident("sleep and wake", timelines.sleep_and_wake, live={}),
    Incident("rolling restart", timelines.rolling_restart, infos=RESTARTED, live={}),
)
