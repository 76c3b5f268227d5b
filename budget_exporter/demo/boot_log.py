"""
The synthetic engine's log: pure functions that return (phase, line), for a player to write over time.

The format is that of the expert-offload fork's release 28.04.9 (vLLM 0.28.0) at TP=2; the figures are those of the box
its budget laws were measured on. ``pids`` are the engine's, ``at`` the Unix time of the first line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from budget_exporter.facts.boot import Phase
from budget_exporter.units import GIB, MIB, gib_text

__all__ = [
    "KNIFE_EDGE",
    "SHAPE_E",
    "SHAPE_F",
    "SHAPE_G",
    "Boot",
    "Pids",
    "boot",
    "crash_loop",
    "first_request_oom",
    "healthy",
    "knife_edge",
    "request",
]

Lines = list[tuple[Phase, str]]
MODEL = "/models/Qwen3.8-Flash-Next-FP8"
SIZE = 34208743424
_KV_PRICE = 9190
_KV_FACTOR = 1.08
_EXPERT = 2.344 * MIB
_NON_EXPERT = 6.34 * GIB
_OVERHEAD = 5.25 * GIB
_OVERHEAD_MEASURED = 2.5


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes as they print themselves: API server, engine core, one worker a rank."""

    api: int
    core: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Boot:
    """
    One shape and what its boot measured.

    ``kv_bytes`` is the pool asked for a rank, ``graph_mib`` the charge (base + ``graphs``), ``captured`` what capturing
    took by rank in GiB, ``arena`` (bytes) and ``slots`` the engine's own figures where they are known, else the plan's.
    """

    utilization: float
    max_model_len: int
    max_num_seqs: int
    kv_bytes: int
    kv_tokens: int
    graph_mib: int
    captured: tuple[float, float]
    slots: int | None = None
    free_at_init: float = 31.29
    graphs: int = 6
    kv_cache_dtype: str = "fp8"

    @property
    def reserve(self) -> float:
        """Return the KV reserve in bytes: one request of max_model_len at the registry's price."""
        return _KV_PRICE * self.max_model_len * _KV_FACTOR

    @property
    def arena(self) -> float:
        """Return the bytes the plan leaves for experts."""
        return SIZE * self.utilization - _NON_EXPERT - self.reserve - self.graph_mib * MIB - _OVERHEAD


SHAPE_E = Boot(0.98, 200704, 3, 3166500000, 401408, 256 + 6 * 52, (0.31, 0.17), slots=7522)
SHAPE_F = Boot(0.982, 200704, 3, 3166500000, 401408, 256 + 6 * 12, (0.31, 0.17), slots=7653)
SHAPE_G = Boot(0.982, 200704, 3, 3166500000, 401408, 6 * 12, (-0.06, 0.05), slots=7762)
_UNBOOTABLE = Boot(1.0, 200704, 3, 3166500000, 401408, 6 * 12, (0.0, 0.0))
KNIFE_EDGE = Boot(0.87, 262144, 5, 10397700000, 1350182, 6 * 12, (-0.06, 0.05))
"""5 x 262144 fp8: boots with every gate passed, and dies on a 995-token request. Its utilization is not known; this one
lets pool, weights, arena and the driver's reserve fill the card to the last 0.1 GiB, as was seen."""


def healthy(pids: Pids, at: float | None = None) -> Lines:
    """Return the boot of shape G, which held 0.89 GiB free through real traffic."""
    return boot(pids, SHAPE_G, at)


def knife_edge(pids: Pids, at: float | None = None) -> Lines:
    """Return the boot of the shape that passes every gate and has nothing left (see first_request_oom)."""
    return boot(pids, KNIFE_EDGE, at)


def boot(pids: Pids, shape: Boot, at: float | None = None) -> Lines:
    """Return the log of a boot that comes to serve."""
    log = _Log(pids, at)
    _start(log, shape)
    _load(log, shape)
    concurrency = shape.kv_tokens / shape.max_model_len
    for rank in range(len(pids.workers)):
        log.worker(
            "allocating_kv", rank, "gpu_worker.py:516",
            f"Initial free memory {shape.free_at_init} GiB, reserved {gib_text(shape.kv_bytes)} memory for KV Cache as "
            "specified by kv_cache_memory_bytes config and skipped memory profiling. This does not respect the "
            "gpu_memory_utilization config.",
        )  # fmt: skip
    log.core(
        "allocating_kv", "kv_cache_utils.py:1733",
        f"GPU KV cache size: {shape.kv_tokens:,} tokens, Maximum concurrency for {shape.max_model_len:,} tokens "
        f"per request: {concurrency:.2f}x",
    )  # fmt: skip
    log.raw(
        "capturing",
        f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/{shape.graphs} [00:00<?, ?it/s]",
    )
    for rank, took in enumerate(shape.captured):
        log.worker(
            "warming_up", rank, "model_runner.py:960", f"Graph capturing finished in 3 secs, took {took:.2f} GiB"
        )
    _check(log, shape)
    log.core("warming_up", "core.py:283", "init engine (profile, create kv cache, warmup model) took 42.18 s")
    log.api("warming_up", "api_server.py:500", "Starting vLLM API server 0 on http://0.0.0.0:7770")
    log.raw("warming_up", f"(APIServer pid={pids.api}) INFO:     Started server process [{pids.api}]")
    log.raw("serving", f"(APIServer pid={pids.api}) INFO:     Application startup complete.")
    return log.lines


def request(pids: Pids) -> Lines:
    """Return the access line of a request that was answered."""
    line = f'(APIServer pid={pids.api}) INFO:     127.0.0.1:51022 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    return [("serving", line)]


def crash_loop(pids: Pids, at: float | None = None) -> Lines:
    """Return one boot at utilization 1.00: both ranks refuse before a weight is loaded."""
    shape = _UNBOOTABLE
    log = _Log(pids, at)
    _start(log, shape)
    for rank in range(len(pids.workers)):
        _traceback(log, rank, ("worker.init_device()", "init_device"), ("raise ValueError(", "request_memory"))
        log.worker(
            "failing", rank, "multiproc_executor.py:857",
            f"ValueError: Free memory on device cuda:{rank} ({shape.free_at_init}/{SIZE / GIB:.2f} GiB) on startup "
            f"is less than desired GPU memory utilization ({shape.utilization}, {SIZE / GIB:.2f} GiB). "
            "Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            level="ERROR",
        )  # fmt: skip
    log.core("failing", "core.py:1108", "EngineCore failed to start.", level="ERROR")
    log.raw(
        "failing",
        f"(APIServer pid={pids.api}) RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
    )
    return log.lines


def first_request_oom(pids: Pids, at: float | None = None) -> Lines:
    """Return what a 995-token prompt with max_tokens 261149 does to the knife-edge shape: 50 MiB tried, 0 free."""
    log = _Log(pids, at)
    _traceback(log, 0, ("output = func(*args, **kwargs)", "execute_model"))
    log.worker(
        "failing", 0, "multiproc_executor.py:949",
        f"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of "
        f"{SIZE / GIB:.2f} GiB of which 0 bytes is free. Of the allocated memory 29.61 GiB is allocated by PyTorch, "
        "with 102.00 MiB allocated in private pools (e.g., HIP Graphs), and 311.44 MiB is reserved by PyTorch but "
        "unallocated.",
        level="ERROR",
    )  # fmt: skip
    log.core("failing", "core.py:1233", "EngineCore encountered a fatal error.", level="ERROR")
    log.api(
        "failing", "async_llm.py:708",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause.",
        level="ERROR",
    )  # fmt: skip
    log.raw("failing", f"(APIServer pid={pids.api}) INFO:     Shutting down")
    log.raw("failing", f"(APIServer pid={pids.api}) INFO:     Application shutdown complete.")
    return log.lines


class _Log:
    """Lines with their prefix and a stamp that advances by a second each."""

    def __init__(self, pids: Pids, at: float | None) -> None:
        self._pids = pids
        self._at = time.time() if at is None else at
        self.lines: Lines = []

    def raw(self, phase: Phase, line: str) -> None:
        self.lines.append((phase, line))

    def api(self, phase: Phase, place: str, text: str, level: str = "INFO") -> None:
        self._say(phase, f"APIServer pid={self._pids.api}", place, text, level)

    def core(self, phase: Phase, place: str, text: str, level: str = "INFO") -> None:
        self._say(phase, f"EngineCore pid={self._pids.core}", place, text, level)

    def worker(self, phase: Phase, rank: int, place: str, text: str, level: str = "INFO") -> None:
        self._say(phase, f"Worker_TP{rank} pid={self._pids.workers[rank]}", place, text, level)

    def _say(self, phase: Phase, writer: str, place: str, text: str, level: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self._at))
        self.lines.append((phase, f"({writer}) {level} {stamp} [{place}] {text}"))


def _start(log: _Log, shape: Boot) -> None:
    log.api("starting", "api_utils.py:395", f"version 0.28.0  model {MODEL}  Clav Version 28.04.9")
    args = {
        "model_tag": MODEL,
        "port": 7770,
        "model": MODEL,
        "served_model_name": ["Qwen3.8-Flash-Next"],
        "max_model_len": shape.max_model_len,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": shape.utilization,
        "kv_cache_memory_bytes": shape.kv_bytes,
        "kv_cache_dtype": shape.kv_cache_dtype,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": shape.max_num_seqs,
        "enable_expert_offload": True,
        "expert_precise_memory": True,
    }
    log.api("starting", "utils.py:233", f"non-default args: {args}")
    log.api("starting", "model.py:549", "Resolved architecture: Qwen3NextForCausalLM")
    log.api("starting", "model.py:1678", f"Using max model len {shape.max_model_len}")
    log.core(
        "starting", "core.py:105",
        f"Initializing a V1 LLM engine (v0.28.0) with config: model='{MODEL}', speculative_config=None, "
        f"max_seq_len={shape.max_model_len}, tensor_parallel_size=2, pipeline_parallel_size=1, "
        f"kv_cache_dtype={shape.kv_cache_dtype}",
    )  # fmt: skip


def _load(log: _Log, shape: Boot) -> None:
    for row in _plan(shape):
        log.core("starting", "expert_plan.py:540", row)
    ranks: Sequence[int] = range(2)
    for rank in ranks:
        log.worker("loading", rank, "model_runner.py:301", f"Starting to load model {MODEL}...")
    for rank in ranks:
        log.worker("profiling", rank, "model_runner.py:322", "Model loading took 6.31 GiB memory and 93.412087 seconds")
    for rank in ranks:
        log.worker(
            "profiling",
            rank,
            "cudagraph_utils.py:873",
            f"Profiling CUDA graph memory: PIECEWISE={shape.graphs} (largest=16)",
        )
        log.worker(
            "profiling",
            rank,
            "cudagraph_mem.py:88",
            f"Estimated CUDA graph memory: {shape.graph_mib / 1024:.2f} GiB total",
        )


def _plan(shape: Boot) -> Iterable[str]:
    slots = shape.slots or int(shape.arena // _EXPERT)
    yield _row("budget (total x util)", SIZE * shape.utilization, unit=" GiB")
    yield _row("non-expert weights", _NON_EXPERT, note="PLE 38.74 excluded")
    yield _row("KV reserve (one max-model-len request +8%)", shape.reserve, note=f"registry {_KV_PRICE} B/token")
    yield _row("CUDA graphs", shape.graph_mib * MIB)
    yield _row("runtime overhead", _OVERHEAD)
    yield _row("expert cache space", shape.arena, unit=" GiB", note=f"{slots:,} slots")


def _row(label: str, size: float, unit: str = "", note: str = "") -> str:
    return f"{label:<44}{size / GIB:>8.2f}{unit}{'     ' + note if note else ''}"


def _check(log: _Log, shape: Boot) -> None:
    planned, measured = _OVERHEAD / GIB, _OVERHEAD_MEASURED
    price = round(shape.kv_bytes / shape.kv_tokens)
    for rank in range(2):
        log.worker(
            "warming_up", rank, "gpu_worker.py:663",
            f"expert offload plan check (this rank): runtime overhead planned {planned:.2f} GiB, "
            f"measured {measured} GiB ({measured - planned:+.2f}); KV planned {_KV_PRICE} B/token, "
            f"measured {price} B/token ({price - _KV_PRICE:+d})",
        )  # fmt: skip


def _traceback(log: _Log, rank: int, *frames: tuple[str, str]) -> None:
    place = "multiproc_executor.py:857"
    log.worker("failing", rank, place, "Traceback (most recent call last):", level="ERROR")
    for source, function in frames:
        log.worker("failing", rank, place, f'  File "/opt/vllm/vllm/worker.py", line 213, in {function}', level="ERROR")
        log.worker("failing", rank, place, f"    {source}", level="ERROR")
