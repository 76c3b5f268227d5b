"""The budget of one shape: terms with their origin, a partition per rank, the limits that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Component = Literal[
    "weights",
    "activation",
    "non_torch",
    "consumed",
    "headroom",
    "cuda_graphs",
    "multimodal",
    "runtime_overhead",
    "kv_reserve",
    "graph_reserve",
    "dummy_block",
]
COMPONENTS: tuple[Component, ...] = (
    "weights",
    "activation",
    "non_torch",
    "consumed",
    "headroom",
    "cuda_graphs",
    "multimodal",
    "runtime_overhead",
    "kv_reserve",
    "graph_reserve",
    "dummy_block",
)
Origin = Literal["flag", "env", "config", "default", "registry", "geometry", "log", "endpoint", "measured"]


@dataclass(frozen=True, slots=True)
class Term:
    """One named part of a budget in bytes, where it came from, and what a deploy can turn to change it."""

    name: str
    bytes: int
    source: Origin
    lever: str = ""
    """Flag or environment name that moves the term; empty where only an image edit reaches it."""
    note: str = ""
    rounding: int = 0
    """Half-width of a printed figure, in bytes."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A ratio that must not be exceeded; ``low`` and ``high`` differ where it comes from a printed figure."""

    ratio: float
    low: float
    high: float
    source: Origin


@dataclass(frozen=True, slots=True)
class Constants:
    """
    Fitted constants of one (architecture, release, TP); bytes, tokens or ratios, None where no source states one.

    Data, not law: loaded from ``registry/*.yaml`` or the configuration and handed to the law, which leaves out the
    terms it has no constant for and says so.
    """

    architecture: str
    release: str | None
    tensor_parallel_size: int
    source: str
    kv_bytes_per_token: int | None = None
    kv_reserve_factor: float | None = None
    kv_reserve_requests: int | None = None
    overhead_precise: int | None = None
    overhead_default: int | None = None
    overhead_anchor_tokens: int | None = None
    overhead_slope_per_1024_tokens: int | None = None
    expert_bytes: int | None = None
    experts_per_layer: int | None = None
    graph_base_mib: int | None = None
    graph_per_graph_mib: int | None = None
    graphs_piecewise: int | None = None
    graphs_speculative: int | None = None
    non_expert: int | None = None
    mamba_pages: int | None = None
    """Bytes of mamba pages per sequence; None where they are only known as a part of ``non_expert``."""
    non_torch: int | None = None


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """Constants and the engines they are for: shell patterns on the model's name, on the fork's release, and TP."""

    models: tuple[str, ...]
    releases: tuple[str, ...]
    constants: Constants


@dataclass(frozen=True, slots=True)
class RankInput:
    """What a law must know of one rank's device."""

    rank: str
    size: int
    free_at_init: int | None = None
    free_at_init_rounding: int = 0
    free_at_init_source: Origin = "measured"
    platform: str = ""
    """amd, nvidia, neuron, gaudi, tpu or host; empty where unknown."""
    integrated: bool = False
    """True where the device's memory is the host's (an APU, GB10, Strix Halo)."""
    model: str = ""
    """The device's own name; empty where unknown."""
    container_limit: int | None = None
    """The host memory its container lets the rank's process have; None without such a limit, or where unknown."""


@dataclass(frozen=True, slots=True)
class RankLedger:
    """
    One rank's request as a partition: the charges and ``pool`` (KV pool, or arena) sum to ``requested``.

    ``within`` are parts of a charge or of the arena, ``outside`` what the device carries beside the request; neither is
    ever added to the partition.
    """

    rank: str
    size: int
    requested: int
    charges: tuple[Term, ...]
    pool: Term | None
    """What the charges leave: the KV pool or the arena; None where a charge is unknown, so the partition is open."""
    kv_pool: Term | None = None
    arena_slots: int | None = None
    within: tuple[Term, ...] = ()
    outside: tuple[Term, ...] = ()
    limit: Limit | None = None
    bootable: bool | None = None
    """Whether the engine's own check at init passes; None where free at init is unknown or too coarsely printed."""
    margin: int | None = None
    """Bytes the law predicts left on the device after everything; signed."""
    requested_rounding: int = 0
    """Half-width of ``requested`` where it is a share of a printed figure."""
    kv_cap: int | None = None
    """Bytes that the KV pool may have at most so that the engine's programs compile (Neuron)."""
    registry: tuple[Term, ...] = ()
    """What flags and registry give for ``charges`` and ``pool`` where the engine's plan block won; only to compare."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The budget of all ranks of an engine under one law."""

    law: str
    version: str
    """Version of the engine the law was applied for; empty when unknown."""
    assumed: bool
    """True where law or version had to be assumed."""
    ranks: Mapping[str, RankLedger] = field(default_factory=dict)
    kv_pool_tokens: int | None = None
    kv_pool_tokens_rounding: int = 0
    """Tokens that printed figures and assumptions behind ``kv_pool_tokens`` leave open, to either side."""
    kv_pool_tokens_source: Origin | None = None
    """Where the price behind ``kv_pool_tokens`` comes from, where that is its geometry; else None."""
    kv_blocks: int | None = None
    """Blocks the KV pool is cut into on the rank that has fewest, by the model's geometry."""
    kv_concurrency: float | None = None
    """Requests of max_model_len that these blocks hold."""
    kv_bytes_per_token: Mapping[str, int] = field(default_factory=dict)
    """Price of a token by origin: registry, geometry, measured."""
    kv_min_tokens: int | None = None
    kv_min_bytes: int | None = None
    """Bytes of a rank's KV pool below which the engine refuses to start (Neuron); None where it does not look."""
    utilization: Term | None = None
    """Where the share asked for comes from; ``bytes`` is the largest request over ranks."""
    utilization_ratio: float | None = None
    """The share itself: the flag, or the default of the engine's version."""
    graphs: int | None = None
    """Number of graphs the graph charge is for."""
    host: tuple[Term, ...] = ()
    """Host memory the shape pins."""
    notes: tuple[str, ...] = ()
