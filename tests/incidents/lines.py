"""Lines that engines of the incidents write beside those of the demo's: a death at capture, sleep, an older vLLM."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from budget_exporter.demo import boot_log
from budget_exporter.demo.boot_log import Boot, Lines, Pids
from budget_exporter.demo.host import SIZE
from budget_exporter.facts.boot import Phase
from budget_exporter.units import GIB

__all__ = ["Boot19", "boot_19", "capture_oom", "fall_asleep", "wake_up"]


def capture_oom(pids: Pids, shape: Boot, at: float) -> Lines:
    """Return a boot that dies while it captures its graphs, by 76 MiB."""
    whole = boot_log.boot(pids, shape, at)
    lines = whole[: 1 + next(i for i, (phase, _) in enumerate(whole) if phase == "capturing")]
    for rank, worker in enumerate(pids.workers):
        said = _writer(f"(Worker_TP{rank} pid={worker})", at, "multiproc_executor.py:857", "ERROR")
        lines += [
            ("failing", said("Traceback (most recent call last):")),
            ("failing", said('  File "/opt/vllm/vllm/v1/worker/gpu_worker.py", line 640, in compile_or_warm_up_model')),
            ("failing", said("    cuda_graph_memory_bytes = self.model_runner.capture_model()")),
            (
                "failing",
                said(
                    f"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 76.00 MiB. GPU {rank} has a total "
                    f"capacity of {SIZE / GIB:.2f} GiB of which 0 bytes is free. Of the allocated memory 30.43 GiB is "
                    "allocated by PyTorch, and 88.21 MiB is reserved by PyTorch but unallocated."
                ),
            ),
        ]
    failed = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    core = _writer(f"(EngineCore pid={pids.core})", at, "core.py:1108", "ERROR")
    return [
        *lines,
        ("failing", core("EngineCore failed to start.")),
        ("failing", f"(APIServer pid={pids.api}) RuntimeError: {failed}"),
    ]


def fall_asleep(pids: Pids, at: float, freed: float) -> Lines:
    """Return what an engine says that gives its memory back, ``freed`` GiB a rank."""
    lines: Lines = []
    for rank, worker in enumerate(pids.workers):
        said = _writer(f"(Worker_TP{rank} pid={worker})", at, "gpu_worker.py:120", "INFO")
        lines.append(("sleeping", said(f"Sleep mode freed {freed:.2f} GiB memory, 1.45 GiB memory is still in use.")))
    core = _writer(f"(EngineCore pid={pids.core})", at, "executor_base.py:211", "INFO")
    return [*lines, ("sleeping", core("It took 3.114250 seconds to fall asleep."))]


def wake_up(pids: Pids, at: float) -> Lines:
    """Return what it says once it has taken the memory again."""
    core = _writer(f"(EngineCore pid={pids.core})", at, "executor_base.py:227", "INFO")
    return [("serving", core("It took 0.871904 seconds to wake up tags {'weights', 'kv_cache'}."))]


@dataclass(frozen=True, slots=True)
class Boot19:
    """
    A boot of upstream vLLM 0.19 on a card of ``size``, all figures in GiB; two ranks that say the same.

    ``capture`` is what capturing the graphs took, ``estimate`` what was estimated and, in this release, not charged.
    """

    utilization: float
    weights: float
    activation: float
    non_torch: float
    estimate: float
    capture: float
    max_model_len: int
    tokens_per_gib: int
    size: float = 31.86
    free: float = 31.29

    @property
    def requested(self) -> float:
        """Return what the engine may use."""
        return self.size * self.utilization

    @property
    def pool(self) -> float:
        """Return what is left for KV."""
        return self.requested - self.weights - self.activation - self.non_torch

    @property
    def tokens(self) -> int:
        """Return the tokens the pool holds, in whole blocks of 16."""
        return int(self.pool * self.tokens_per_gib) // 16 * 16

    @property
    def left(self) -> float:
        """Return what stays free once everything is captured."""
        return self.free - self.requested - self.capture


def boot_19(pids: Pids, made: Boot19, at: float) -> Lines:
    """Return the log of the boot, at the level DEBUG, as someone has it who wants to know the terms."""
    api = _writer(f"(APIServer pid={pids.api})", at, "utils.py:233", "INFO")
    core = _writer(f"(EngineCore pid={pids.core})", at, "core.py:105", "INFO")
    config = (
        f"model='/models/plain-8b', speculative_config=None, max_seq_len={made.max_model_len}, "
        "tensor_parallel_size=2, pipeline_parallel_size=1, kv_cache_dtype=auto, device_config=cuda, seed=0"
    )
    lines: Lines = [
        ("starting", api("version 0.19.0")),
        ("starting", core(f"Initializing a V1 LLM engine (v0.19.0) with config: {config}")),
    ]
    for phase, texts in _terms_19(made):
        for rank, worker in enumerate(pids.workers):
            said = _writer(f"(Worker_TP{rank} pid={worker})", at, "gpu_worker.py:436", "INFO")
            lines += [(phase, said(text)) for text in texts]
        if phase == "allocating_kv":
            concurrency = made.tokens / made.max_model_len
            lines += [
                (phase, core(f"GPU KV cache size: {made.tokens:,} tokens")),
                (
                    phase,
                    core(f"Maximum concurrency for {made.max_model_len:,} tokens per request: {concurrency:.2f}x"),
                ),
                ("capturing", "Capturing CUDA graphs (decode, FULL):   0%|          | 0/35 [00:00<?, ?it/s]"),
            ]
    return [
        *lines,
        ("warming_up", core("init engine (profile, create kv cache, warmup model) took 61.40 seconds")),
        ("serving", f"(APIServer pid={pids.api}) INFO:     Application startup complete."),
    ]


def _terms_19(made: Boot19) -> list[tuple[Phase, list[str]]]:
    used = made.weights + made.activation + made.non_torch
    wider = made.utilization + made.estimate / made.size
    return [
        (
            "starting",
            [
                (
                    f"worker init memory snapshot: torch_peak=0.0GiB, free_memory={made.free:.2f}GiB, "
                    f"total_memory={made.size:.2f}GiB, cuda_memory=0.57GiB"
                ),
                f"worker requested memory: {made.requested:.2f}GiB",
            ],
        ),
        ("loading", ["Starting to load model /models/plain-8b..."]),
        (
            "profiling",
            [
                f"Model loading took {made.weights:.2f} GiB memory and 48.120000 seconds",
                "Profiling CUDA graph memory: PIECEWISE=35 (largest=256), FULL=19 (largest=128)",
                f"Estimated CUDA graph memory: {made.estimate:.2f} GiB total",
                (
                    f"Memory profiling takes 12.40 seconds. Total non KV cache memory: {used:.2f}GiB; torch peak "
                    f"memory increase: {made.activation:.2f}GiB; non-torch forward increase memory: "
                    f"{made.non_torch:.2f}GiB; weights memory: {made.weights:.2f}GiB."
                ),
            ],
        ),
        (
            "allocating_kv",
            [
                f"Available KV cache memory: {made.pool:.2f} GiB",
                (
                    "In v0.19, CUDA graph memory profiling will be enabled by default "
                    "(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). To try it now, set it and increase "
                    f"--gpu-memory-utilization from {made.utilization:.4f} to {wider:.4f}."
                ),
            ],
        ),
        ("warming_up", [f"Graph capturing finished in 6 secs, took {made.capture:.2f} GiB"]),
    ]


def _writer(name: str, at: float, place: str, level: str) -> Callable[[str], str]:
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    return lambda text: f"{name} {level} {stamp} [{place}] {text}"
