"""What the engine says of itself: figures as printed, facts per rank, phase, and how it died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

Phase = Literal[
    "starting",
    "loading",
    "profiling",
    "allocating_kv",
    "capturing",
    "warming_up",
    "serving",
    "sleeping",
    "failing",
    "stopped",
    "unknown",
]
PHASES: tuple[Phase, ...] = (
    "starting",
    "loading",
    "profiling",
    "allocating_kv",
    "capturing",
    "warming_up",
    "serving",
    "sleeping",
    "failing",
    "stopped",
    "unknown",
)
Cause = Literal[
    "budget_above_free",
    "weights_oom",
    "profile_oom",
    "profile_assert",
    "no_kv_room",
    "kv_below_max_len",
    "kv_alloc_oom",
    "graph_capture_oom",
    "warmup_oom",
    "first_request_oom",
    "runtime_oom",
    "wakeup_oom",
    "not_memory",
    "unknown",
]
CAUSES: tuple[Cause, ...] = (
    "budget_above_free",
    "weights_oom",
    "profile_oom",
    "profile_assert",
    "no_kv_room",
    "kv_below_max_len",
    "kv_alloc_oom",
    "graph_capture_oom",
    "warmup_oom",
    "first_request_oom",
    "runtime_oom",
    "wakeup_oom",
    "not_memory",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class Printed:
    """
    A size the engine printed.

    ``bytes`` is the printed figure (signed), ``rounding`` the half-width of what it may stand for: 31.29 GiB is
    33597381673 B give or take 5368709 B.
    """

    bytes: int
    rounding: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The expert-offload plan block, row by row; a row that was not printed is None."""

    budget: Printed | None = None
    non_expert: Printed | None = None
    kv_reserve: Printed | None = None
    kv_bytes_per_token: int | None = None
    """``registry N B/token`` of the reserve row."""
    cuda_graphs: Printed | None = None
    runtime_overhead: Printed | None = None
    arena: Printed | None = None
    slots: int | None = None
    resident_experts: Printed | None = None
    host_experts: Printed | None = None
    ple: Printed | None = None


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """What the profiler measured of one mode of graphs: the first capture, each further one, and how many there are."""

    first: Printed
    per_graph: Printed
    graphs: int


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Figures one rank printed; None where it printed none."""

    free_at_init: Printed | None = None
    size_at_init: Printed | None = None
    requested: Printed | None = None
    weights: Printed | None = None
    activation: Printed | None = None
    non_torch: Printed | None = None
    consumed: Printed | None = None
    graph_estimate: Printed | None = None
    graph_capture: Printed | None = None
    graph_full: GraphProfile | None = None
    graph_piecewise: GraphProfile | None = None
    kv_available: Printed | None = None
    """The KV pool, after what is reserved for the frontend's multimodal decoding."""
    multimodal: Printed | None = None
    """What is reserved for the frontend's multimodal decoding, out of what was available for KV."""
    kv_reserved: Printed | None = None
    """``reserved X GiB memory for KV Cache as specified by kv_cache_memory_bytes``."""
    plan: Plan | None = None
    overhead_planned: Printed | None = None
    """``runtime overhead planned X GiB`` of the plan check, printed also where the plan block was not seen."""
    overhead_measured: Printed | None = None
    kv_bytes_per_token_planned: int | None = None
    kv_bytes_per_token_measured: int | None = None
    free_after_load: Printed | None = None
    """Free memory after weights and profile run, of which Gaudi's utilization is a share."""
    graph_reserve: Printed | None = None
    """What Gaudi's split keeps back for HPU graphs."""
    dummy_block: Printed | None = None
    """The one KV block Gaudi keeps for padding (its V1 workers)."""
    kv_blocks: int | None = None
    """KV blocks the engine said the rank may use, the dummy block not counted."""
    kv_cap: Printed | None = None
    """What KV may take at most on AWS Neuron, of the request."""
    kv_minimum: Printed | None = None
    """The KV pool below which the Neuron worker said it would not start."""
    node: int | None = None
    """NUMA node whose memory a rank on CPUs takes."""
    hybrid_factor: float | None = None
    """By how much Gaudi scales down the KV memory it reports for a model of attention and recurrent layers."""

    def over(self, fallback: RankFacts) -> RankFacts:
        """Return these facts with the gaps filled from ``fallback`` (facts whose line named no rank)."""
        gaps = {f.name: getattr(fallback, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **gaps)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an engine died; ``tried`` and ``free`` where the engine printed them."""

    at: float
    """Unix time of the line, or of the death where there was no line."""
    phase: Phase
    cause: Cause
    rank: int | None = None
    tried: Printed | None = None
    free: Printed | None = None
    presumed: bool = False
    """Whether the cause is a guess from a log that breaks off."""


@dataclass(frozen=True, slots=True)
class Chips:
    """What an engine on TPUs says of all its local chips together."""

    limit: Printed | None = None
    requested: Printed | None = None
    used: Printed | None = None
    available: Printed | None = None


@dataclass(frozen=True, slots=True)
class BootReport:
    """Everything one boot of one engine has said so far."""

    version: str | None = None
    """vLLM's version, e.g. ``0.28.0``."""
    release: str | None = None
    """The fork's own release, e.g. ``28.04.9``."""
    model: str | None = None
    architecture: str | None = None
    device_type: str | None = None
    """What the engine runs on in torch's words: ``cuda`` (ROCm too), ``cpu``, ``hpu``, ``tpu``, ``xpu``, ``neuron``."""
    core: str | None = None
    """Generation of the engine where its line names one: ``V0`` or ``V1``."""
    model_runner: str | None = None
    """``V1`` or ``V2`` where a line names the model runner."""
    phase: Phase = "unknown"
    phase_at: float | None = None
    common: RankFacts = field(default_factory=RankFacts)
    """Facts whose line named no rank: they hold for every rank that has none of its own."""
    ranks: Mapping[int, RankFacts] = field(default_factory=dict)
    kv_tokens: int | None = None
    kv_concurrency: float | None = None
    max_model_len: int | None = None
    graphs: int | None = None
    """Number of graphs the engine said it would capture."""
    prompt_buckets: int | None = None
    """Shapes of prompts that a Gaudi engine said it would warm up."""
    decode_buckets: int | None = None
    chips: Chips | None = None
    graph_charge_applied: bool | None = None
    """Whether an estimate was charged; None where neither line nor version tells."""
    args: Mapping[str, str] = field(default_factory=dict)
    """``non-default args`` after the engine resolved them; allow-listed names only."""
    ple_locked: Printed | None = None
    """Host memory the n-gram table locked (expert offload)."""
    ple_not_locked: Printed | None = None
    """What could not be locked: the sign of a missing memlock limit."""
    failure: Failure | None = None
    unparsed: int = 0
    """Lines that passed the budget pre-filter and did not parse."""

    def of(self, rank: int) -> RankFacts:
        """Return the facts that hold for ``rank``."""
        own = self.ranks.get(rank)
        return self.common if own is None else own.over(self.common)
