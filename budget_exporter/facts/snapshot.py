"""Everything published, made once a second, frozen, swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from budget_exporter.facts.boot import BootReport, Cause, Failure, Phase
from budget_exporter.facts.device import DeviceIdentity, HighWater, MemorySample, ProcessMemory, RuntimeMemory
from budget_exporter.facts.endpoint import EndpointState
from budget_exporter.facts.engine import EngineSighting, Pending, Placement, Shape, Supervision, SupervisorName
from budget_exporter.facts.ledger import Ledger, Origin
from budget_exporter.facts.ownership import DeviceOwnership, RankMemory
from budget_exporter.facts.source import SourceHealth
from budget_exporter.facts.verdict import Floors, Verdict


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device with a fresh sample and what is remembered of it."""

    identity: DeviceIdentity
    memory: MemorySample
    high_water: HighWater
    ownership: DeviceOwnership | None = None
    """Whose the use is; None where no source lists the device's processes."""
    differences: Mapping[str, int] = field(default_factory=dict)
    """How far each cross-check is above our figure, by its source."""

    @property
    def window_max(self) -> int:
        """Return the largest use of the last 60 s in bytes."""
        return max((used for _, used in self.high_water.window), default=self.memory.used)


@dataclass(frozen=True, slots=True)
class FreeAtInit:
    """Free device memory at the engine's first snapshot, in bytes, and whether it was printed (log) or measured."""

    bytes: int
    rounding: int
    source: Origin


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine, running or remembered."""

    name: str
    expected: bool
    """False where the configuration says that it may be down: then nothing is published as ``up``."""
    up: bool | None
    """None where nobody has looked lately, so that nothing can be claimed."""
    supervisor: SupervisorName
    unit: str
    phase: Phase
    phase_since: float | None
    restarts: int
    failures: Mapping[Cause, int]
    floors: Floors
    sighting: EngineSighting | None = None
    shape: Shape | None = None
    placements: tuple[Placement, ...] = ()
    supervision: Supervision | None = None
    report: BootReport | None = None
    free_at_init: Mapping[str, FreeAtInit] = field(default_factory=dict)
    ledger: Ledger | None = None
    verdict: Verdict = field(default_factory=Verdict)
    last_failure: Failure | None = None
    endpoint: EndpointState | None = None
    """None where its endpoint is not asked; what that knows of the pool is in ``report`` too."""
    disagreements: tuple[str, ...] = ()
    """A sentence for each figure of which log and endpoint say different things."""
    rank_memory: Mapping[str, RankMemory] = field(default_factory=dict)
    """What the processes of each rank hold on its device."""
    runtime: Mapping[str, RuntimeMemory] = field(default_factory=dict)
    """What the runtime's own ledger says, by rank (Neuron, from inside the engine)."""
    leftover: tuple[ProcessMemory, ...] = ()
    """Processes of an earlier life of the engine that still hold device memory."""
    pending: Pending | None = None
    """What its next start would change, None where nobody has looked."""


@dataclass(frozen=True, slots=True)
class ExporterState:
    """The exporter about itself."""

    version: str
    revision: str
    python_version: str
    demo: bool
    reload_successful: bool
    reload_at: float
    unparsed_lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What every endpoint renders; ``ready`` once each enabled source has ended its first run or timed out."""

    at: float
    ready: bool
    devices: tuple[DeviceState, ...]
    engines: tuple[EngineState, ...]
    sources: tuple[SourceHealth, ...]
    exporter: ExporterState
