"""Allocators of every device, and the lines of code and methods that tell where they failed."""

from __future__ import annotations

import pytest

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import Cause, Failure
from budget_exporter.units import MIB

WORKER = "(Worker_TP1 pid=31) ERROR 02-03 10:01:00 [m.py:949] "
LOADING = "(Worker_TP1 pid=31) INFO 02-03 10:00:10 [g.py:4000] Starting to load model /models/Tiny-A..."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 1 has a total capacity of 31.86 GiB "
    "of which 0 bytes is free."
)


def died(*lines: str) -> Failure | None:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(line.encode()) for line in lines])
    return reader.report().failure


@pytest.mark.parametrize(
    ("line", "tried"),
    [
        ("RuntimeError: CUDA error: out of memory", None),
        ("torch.AcceleratorError: HIP error: out of memory", None),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", None),
        ("hip error: hipErrorOutOfMemory", None),
        ("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY", None),
        ("HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.", None),
        ("node1:12:34 [0] NCCL WARN Cuda failure 2 'out of memory'", None),
        ("node1:12:34 [0] enqueue.cc:99 NCCL WARN Cuda failure 'out of memory'", None),
        ("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", None),
        ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 50.00 MiB. GPU 0 has", 50 * MIB),
        ("jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: something of which we know no size", None),
        ("RuntimeError: synOutOfDeviceMemory", None),
        ("RuntimeError: alloc device memory failed, runtime result = 207001", None),
        ("RuntimeError: SYS_EBUSY: Lack of device memory. (code: -16)", None),
        ("Out of Memory: Not enough space to allocate 1073741824 B DRAM buffer across 12 banks, each", 1024 * MIB),
        ("allocating 3584.00 MiB on device 0: cudaMalloc failed: out of memory", 3584 * MIB),
    ],
)  # fmt: skip
def test_every_allocator_is_understood_and_the_phase_names_the_cause(line: str, tried: int | None) -> None:
    unknown, loading = died(line), died(LOADING, WORKER + line)

    assert unknown is not None
    assert unknown.cause == "unknown"
    assert (unknown.tried and unknown.tried.bytes) == tried
    assert loading is not None
    assert loading.cause == "weights_oom"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["SYS_EBUSY: Lack of device memory. (code: -16)", "Not enough memory for 24 blocks of KV cache."],
         "kv_alloc_oom"),
        (["cudaMalloc failed: out of memory", "error: unable to allocate CUDA0 buffer"], "weights_oom"),
        (["cudaMalloc failed: out of memory", "failed to allocate buffer for kv cache"], "kv_alloc_oom"),
        (["cudaMalloc failed: out of memory", "graph_reserve: failed to allocate compute buffers"], "profile_oom"),
        ([OOM, "Exception: Capture cuda graph failed: out of memory"], "graph_capture_oom"),
        ([OOM, "RuntimeError: CUDA out of memory occurred when warming up pooler with 8 requests."], "warmup_oom"),
        (["RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."], "no_kv_room"),
    ],
)  # fmt: skip
def test_what_stands_beside_an_allocators_word_names_the_cause(lines: list[str], cause: Cause) -> None:
    failure = died(*lines)

    assert failure is not None
    assert failure.cause == cause


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("    self.model_runner.profile_run()", "profile_oom"),
        ("    available = self.model_executor.determine_available_memory()", "profile_oom"),
        ("    cuda_graph_memory_bytes = self.model_runner.capture_model()", "graph_capture_oom"),
        ("    graph_runner.capture(**capture_inputs)", "graph_capture_oom"),
        ("    with torch.cuda.graph(cudagraph, pool=self.graph_pool):", "graph_capture_oom"),
        ("    tensor = torch.zeros(kv_cache_tensor.size,", "kv_alloc_oom"),
        ("    return self.worker.compile_or_warm_up_model()", "warmup_oom"),
    ],
)
def test_a_line_of_code_tells_where_an_allocation_failed(code: str, cause: Cause) -> None:
    failure = died(WORKER + code, WORKER + OOM)

    assert failure is not None
    assert failure.cause == cause


def test_a_sentence_that_names_a_function_is_no_line_of_code() -> None:
    failure = died(WORKER + "While profile_run() was tried, profile_run(x) was not", WORKER + OOM)

    assert failure is not None
    assert failure.cause == "unknown"


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        (
            "Exception in worker VllmWorkerProcess while processing method determine_num_available_blocks.",
            "profile_oom",
        ),
        ("Error executing method load_model. This might cause deadlock in distributed execution.", "weights_oom"),
        ("Error executing method 'initialize_cache'. This might cause deadlock", "kv_alloc_oom"),
        ("Error executing method start_worker_execution_loop. This might cause deadlock", "unknown"),
    ],
)
def test_v0_names_the_method_of_the_worker(method: str, cause: Cause) -> None:
    failure = died(WORKER + method, WORKER + OOM)

    assert failure is not None
    assert failure.cause == cause


def test_an_engine_that_is_up_and_has_no_front_end_yet_dies_of_a_request() -> None:
    init = "(EngineCore pid=12) INFO 02-03 10:00:42 [c.py:9] init engine (profile, create kv cache, warmup model)"
    failure = died(LOADING, init, WORKER + OOM)

    assert failure is not None
    assert (failure.cause, failure.phase) == ("first_request_oom", "serving")


@pytest.mark.parametrize(
    "line",
    [
        "(Worker_TP0 pid=30) INFO 02-03 10:00:40 [w.py:7] CUDA graph pool memory: 0.4 GiB (actual), 0.3 GiB",
        "(Worker_TP0 pid=30) INFO 02-03 10:00:40 [w.py:8] ... Current kv cache memory in use is 59.32 GiB.",
    ],
)
def test_what_is_told_of_the_capture_comes_after_it(line: str) -> None:
    failure = died(line, WORKER + OOM)

    assert failure is not None
    assert failure.cause == "warmup_oom"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 02-03 10:01:10 metrics.py:455] Avg prompt throughput: 1.0 tokens/s, Running: 2 reqs, Swapped: 0 reqs",
        "INFO 02-03 10:01:10 [logger.py:43] Received request chatcmpl-1: prompt: 'x'",
        "INFO 02-03 10:01:10 [async_llm.py:270] Added request chatcmpl-1.",
        'INFO:     10.0.0.7:33822 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    ],
)
def test_an_engine_that_takes_requests_serves(line: str) -> None:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(line.encode())])
    assert reader.report().phase == "serving"

    failure = died(line, WORKER + OOM)
    assert failure is not None
    assert failure.cause == "runtime_oom"
