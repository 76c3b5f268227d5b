"""What follows from plan, engine's words and measurement, compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

KnifeEdgeReason = Literal[
    "predicted_margin",
    "measured_margin",
    "utilization_limit",
    "kv_below_contract",
    "capture_over_charge",
    "kv_minimum",
    "compile_cap",
]
KNIFE_EDGE_REASONS: tuple[KnifeEdgeReason, ...] = (
    "predicted_margin",
    "measured_margin",
    "utilization_limit",
    "kv_below_contract",
    "capture_over_charge",
    "kv_minimum",
    "compile_cap",
)
Finding = Literal[
    "graph_charge_over",
    "graph_charge_under",
    "graph_charge_negative",
    "graph_estimate_not_charged",
    "kv_report_misleading",
    "util_misread",
    "knife_edge",
    "leak",
    "crash_loop",
    "model_mismatch",
    "kv_changed_since_last_boot",
    "free_at_init_falling",
    "kv_price_drift",
    "zombie_memory",
    "mlock_failed",
    "advertised_above_servable",
    "law_assumed",
]
FINDINGS: tuple[Finding, ...] = (
    "graph_charge_over",
    "graph_charge_under",
    "graph_charge_negative",
    "graph_estimate_not_charged",
    "kv_report_misleading",
    "util_misread",
    "knife_edge",
    "leak",
    "crash_loop",
    "model_mismatch",
    "kv_changed_since_last_boot",
    "free_at_init_falling",
    "kv_price_drift",
    "zombie_memory",
    "mlock_failed",
    "advertised_above_servable",
    "law_assumed",
)


@dataclass(frozen=True, slots=True)
class Floors:
    """Smallest margin accepted, in bytes, by the severity of what happens below it."""

    critical: int
    warning: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator decides for one engine: floors, the KV promised, how much drift is tolerated (bytes)."""

    floors: Floors
    contract_tokens: int | None = None
    graph_drift_tolerance: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the device of one rank holds, in bytes."""

    size: int
    used: int
    high_water: int


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """One rank's comparison; bytes, signed, None where a side is unknown."""

    rank: str
    margin_now: int | None = None
    margin_high_water: int | None = None
    drift: int | None = None
    estimator_gap: int | None = None
    floor_reached: float | None = None
    """Seconds until the critical floor at the present creep; None where there is no trend."""
    why: Mapping[KnifeEdgeReason, str] = field(default_factory=dict)
    """Reason to one sentence with the figures."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing a deploy can change, for one reason or finding, with the value to set."""

    reason: str
    lever: str
    """Flag or environment name; empty where nothing that a deploy can reach helps."""
    value: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that can be said of one engine now; a reason or finding that could not be evaluated is in neither set."""

    ranks: Mapping[str, RankVerdict] = field(default_factory=dict)
    knife_edge: Mapping[KnifeEdgeReason, bool] = field(default_factory=dict)
    findings: Mapping[Finding, bool] = field(default_factory=dict)
    contract_tokens: int | None = None
    graph_charge_suggested: int | None = None
    sentences: tuple[str, ...] = ()
    """What a person reads: one sentence per reason that holds."""
    said: Mapping[Finding, str] = field(default_factory=dict)
    """What there is to say of a finding in this case."""
    advice: tuple[Advice, ...] = ()
