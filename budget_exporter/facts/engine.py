"""What runs: the engine's processes, the shape its flags give it, where its ranks sit, who restarts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from budget_exporter.facts.model import ModelFiles
from budget_exporter.facts.neuron import NeuronFacts

SupervisorName = Literal["systemd", "podman", "docker", "kubernetes", "none"]
UnitState = Literal["active", "activating", "auto_restart", "failed", "inactive", "unknown"]
UNIT_STATES: tuple[UnitState, ...] = ("active", "activating", "auto_restart", "failed", "inactive", "unknown")


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """A process that stays the same process: a PID alone is reused."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """One process below the engine's main process; ``rank`` where its title tells (``VLLM::Worker_TP1`` is 1)."""

    pid: int
    title: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSighting:
    """
    One engine as a finder saw it.

    ``argv`` and ``environ`` never leave the process; ``environ`` holds allow-listed names only and is None where it may
    not be read, which is not the same as empty.
    """

    source: str
    main: ProcessKey
    started_at: float
    """Unix time of the main process's start."""
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None
    workers: tuple[Worker, ...] = ()
    cwd: str | None = None
    unit: str | None = None
    """systemd unit with its suffix, e.g. ``vllm-qwen.service``."""
    container: str | None = None
    supervisor: SupervisorName = "none"
    container_id: str | None = None
    """The whole id of the container it runs in, where processes or the container's daemon tell it."""
    container_socket: str | None = None
    """The socket of that daemon, as a path of ours, once it has told of the container."""
    log_driver: str | None = None
    """Where that daemon puts the container's output, in its own word for it."""
    inner_pid: int | None = None
    """The main process's PID inside its own PID namespace, which is what its log lines print."""
    model_files: ModelFiles | None = None
    """What the engine's model says of its KV cache; None where nobody has looked yet."""


@dataclass(frozen=True, slots=True)
class Shape:
    """
    One set of budget flags, as the engine understands them; None means not given, so the engine's default applies.

    Sizes in bytes or tokens, ``utilization`` as a ratio. ``given`` keeps the allow-listed flags as they were typed, by
    their long name without dashes in front (``max-model-len``).
    """

    model: str | None = None
    served_model_name: str | None = None
    port: int | None = None
    utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    max_model_len: int | None = None
    """None also for ``auto`` and -1: then only the engine knows."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enforce_eager: bool = False
    optimization_level: int | None = None
    """``-O``: of ``--optimization-level`` from 0.12, before it the level of compilation; 0 captures no graphs."""
    cudagraph_mode: str | None = None
    """In capitals, as ``--compilation-config`` says; NONE captures no graphs."""
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    speculative: bool = False
    speculative_method: str | None = None
    """How drafts are made (``mtp``, ``eagle3``, ``ngram``); None where the flag leaves it to the engine."""
    speculative_tokens: int | None = None
    expert_offload: bool = False
    expert_precise_memory: bool = False
    expert_offload_mem: str | None = None
    expert_resident_layers: str | None = None
    graph_base_mib: int | None = None
    """VLLM_CUDAGRAPH_MEM_BASE_MB of the expert-offload fork."""
    graph_per_graph_mib: int | None = None
    """VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB."""
    graph_estimate_mib: int | None = None
    """VLLM_CUDAGRAPH_MEM_ESTIMATE_MB: an explicit total that beats the two above."""
    estimate_graphs: bool | None = None
    """VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, None when unset."""
    layout_flags: tuple[str, ...] = ()
    """Flags that change the model or its KV cache, given with values that are not kept: only their names."""
    neuron: NeuronFacts | None = None
    """What is compiled on AWS Neuron, None where nothing is said of it."""
    given: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    """Allow-listed environment names with their values as given, for laws whose settings come from there."""
    version: str | None = None
    """The engine's, as its installed package says; None where that is not known."""
    faults: tuple[str, ...] = ()
    """Flags the engine itself would reject or that could not be read, one sentence each."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What the next start would change: names of flags and variables, None where that cannot be told (``why``)."""

    flags: tuple[str, ...] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one rank runs; ``device`` is None where that cannot be told, and ``why`` says so."""

    rank: str
    device: str | None
    why: str = ""
    """Also what a device that is assumed rests on."""
    contradicted: str | None = None
    """The device that flags and environment name, where the rank's process holds its memory on another."""
    among: tuple[str, ...] = ()
    """Devices of which one is certainly the rank's, where that is all that can be told."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the supervisor says of a unit or container."""

    supervisor: SupervisorName
    unit: str
    state: UnitState
    nrestarts: int | None
    exit_code: int | None = None
    result: str = ""
    """How it ended in systemd's words: ``exit-code``, ``signal``, ``oom-kill``, ``start-limit-hit`` …"""
    asked: bool | None = None
    """Whether somebody asked for the end it has come to or is coming to; None where that is not told."""
