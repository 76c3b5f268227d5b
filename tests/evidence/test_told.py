"""Whole logs: every figure as printed, every boot, and what may be presumed of a death whose log breaks off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.presumed import phase_of
from budget_exporter.evidence.statements import Allocation
from budget_exporter.evidence.told import PrintedFigure, Told, read_log
from budget_exporter.facts.boot import Cause, Failure, Phase
from budget_exporter.units import GIB, MIB

LINES = Path(__file__).parents[1] / "lines"
FIGURES: list[dict[str, Any]] = [json.loads(line) for line in (LINES / "figures.jsonl").read_text("utf-8").splitlines()]
FALSE_FRIENDS = (LINES / "false_friends.txt").read_text("utf-8").splitlines()
WORKER = "(Worker_TP1 pid=31) ERROR 02-03 10:01:00 [m.py:949] "
CORE = "(EngineCore pid=12) ERROR 02-03 10:01:00 [core.py:9] "
STARTED = "(APIServer pid=11) INFO 02-03 10:00:00 [utils.py:299] version 0.28.0  model /models/Tiny-A  "
BROKEN = WORKER + "WorkerProc hit an exception."
FATAL = CORE + "EngineCore encountered a fatal error."


def oom(
    tried: str = "50.00 MiB", total: str = "24.00 GiB", allocated: str = "23.50 GiB", slack: str = "20.00 MiB"
) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} "
        f"of which 1.00 MiB is free. Of the allocated memory {allocated} is allocated by PyTorch, and {slack} is "
        "reserved by PyTorch but unallocated."
    )


LOADED = "INFO 02-03 10:00:10 gpu_executor.py:103] # GPU blocks: 7877, # CPU blocks: 512"
POOLS = oom().replace("by PyTorch, and", "by PyTorch, with 46.00 MiB allocated in private pools, and")


def told(*lines: str) -> tuple[Told, ...]:
    return read_log([Record(line.encode()) for line in lines], clock=lambda: 1770200000.0)


def failure_of(*lines: str) -> Failure | None:
    (boot,) = told(*lines)
    return boot.report.failure


@pytest.mark.parametrize("golden", FIGURES, ids=[golden["line"][:60] for golden in FIGURES])
def test_every_figure_is_told_as_it_is_printed(golden: dict[str, Any]) -> None:
    (boot,) = told(golden["line"])

    assert [[each.name, each.value, each.unit] for each in boot.figures] == golden["figures"]


@pytest.mark.parametrize("golden", FIGURES, ids=[golden["line"][:60] for golden in FIGURES])
def test_a_figure_is_in_the_line_and_torn_nowhere(golden: dict[str, Any]) -> None:
    data, whole = golden["line"].encode(), {tuple(each) for each in golden["figures"]}
    values = {value for _, value, _ in golden["figures"]}
    assert all(value in golden["line"].replace(",", "") for value in values)
    for end in range(len(data)):
        for boot in read_log([Record(data[:end], cut=True)], clock=lambda: 0.0):
            assert {(each.name, each.value, each.unit) for each in boot.figures} <= whole | {
                (name, value, None) for name, value, _ in whole
            }, data[:end]


@pytest.mark.parametrize("line", FALSE_FRIENDS)
def test_no_false_friend_kills_an_engine(line: str) -> None:
    assert all(boot.report.failure is None for boot in told(line))


def test_figures_know_their_rank_and_line() -> None:
    (boot,) = told(
        "",
        "(Worker_TP1 pid=31) INFO 02-03 10:00:22 [w.py:436] Available KV cache memory: 59.32 GiB",
        "nothing of interest",
        oom().replace("23.50 GiB", "23.5"),
        " GiB",
    )

    assert boot.figures[0] == PrintedFigure("kv_available", "59.32", "GiB", 1, 2)
    assert {each.line for each in boot.figures} == {2, 4}


def test_lines_are_counted_where_a_record_holds_several() -> None:
    line = b"(Worker_TP1 pid=31) INFO 02-03 10:00:22 [w.py:436] Available KV cache memory: 59.32 GiB"
    first, second = read_log([Record(b"x\n" + line + b"\ny"), Record(line.replace(b"59", b"60"))])[0].figures

    assert (first.line, second.line) == (2, 4)


def test_each_boot_is_told_apart_and_a_log_without_an_engine_has_none() -> None:
    boots = told(STARTED, CORE + "ValueError: No available memory for the cache blocks.", STARTED, "something else")

    assert [boot.report.failure and boot.report.failure.cause for boot in boots] == ["no_kv_room", None]
    assert told("something else", "and more") == ()


def test_of_two_deaths_in_one_excerpt_the_one_of_the_earlier_phase_counts() -> None:
    no_room = "ValueError: No available memory for the cache blocks."
    above = (
        "ValueError: Free memory on device (6.44/11.63 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 10.47 GiB)."
    )
    for lines in ((no_room, above), (above, no_room)):
        failure = failure_of(*lines)
        assert failure is not None
        assert (failure.cause, failure.presumed) == ("budget_above_free", False)


@pytest.mark.parametrize(
    ("said", "booting", "phase"),
    [
        (Allocation(75 * GIB, 44 * GIB, 13 * GIB, 700 * MIB), False, "profiling"),
        (Allocation(20 * MIB, 79 * GIB, 77 * GIB, 350 * MIB, pools=True), False, "serving"),
        (Allocation(20 * MIB, 79 * GIB, 77 * GIB, 350 * MIB, pools=True), True, "warming_up"),
        (Allocation(270 * MIB, 22 * GIB, 21 * GIB, 24 * MIB), False, "loading"),
        (Allocation(3 * GIB, 24 * GIB, 20 * GIB, 1 * MIB), False, "allocating_kv"),
        (Allocation(2 * GIB, 22 * GIB, 19 * GIB, 245 * MIB), False, "serving"),
        (Allocation(2 * GIB, 22 * GIB, 19 * GIB, 245 * MIB), True, "warming_up"),
        (Allocation(2 * GIB, 22 * GIB, 9 * GIB, 245 * MIB), False, "profiling"),
        (Allocation(22 * MIB, 61 * GIB, 10 * GIB, 420 * MIB), False, "loading"),
        (Allocation(22 * MIB, 61 * GIB, 10 * GIB), False, None),
        (Allocation(), False, None),
    ],
)
def test_what_an_allocator_says_depends_on_what_the_engine_did(
    said: Allocation, booting: bool, phase: Phase | None
) -> None:
    assert phase_of(said, booting=booting) == phase


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([oom()], "weights_oom"),
        ([oom(tried="3.50 GiB", allocated="20.13 GiB")], "kv_alloc_oom"),
        # A pool is planned to fit beside the weights: this is none.
        ([oom(tried="3.50 GiB", allocated="22.00 GiB")], "weights_oom"),
        ([oom(tried="75.00 GiB", slack="700.00 MiB")], "profile_oom"),
        ([oom(slack="300.00 MiB")], "runtime_oom"),
        ([POOLS], "runtime_oom"),
        ([POOLS, CORE + "EngineCore failed to start."], "warmup_oom"),
        ([CORE + POOLS, CORE + "    engine_core = EngineCoreProc(*args, **kwargs)"], "warmup_oom"),
        # Broken off where memory is asked for, or in what does nothing else.
        ([BROKEN, WORKER + '  File "/opt/vllm/model_executor/models/tiny.py", line 9, in __init__'], "weights_oom"),
        ([BROKEN, WORKER + '  File "/opt/u.py", line 9, in make_layers'], "weights_oom"),
        ([BROKEN, *(WORKER + f'  File "/opt/g.py", line 9, in {name}' for name in ("load_model", "process_weights")),
          WORKER + "    out = torch.empty((size_k, n), dtype=w.dtype)"], "weights_oom"),
        ([FATAL, CORE + "    q = torch.zeros(shape, device=device)"], "runtime_oom"),
        ([CORE + "logits_sort, logits_idx = logits.sort(dim=-1, descending=False)", CORE + POOLS], "warmup_oom"),
        ([BROKEN, WORKER + "    cuda_graph_memory_bytes = self.model_runner.capture_model()"], "graph_capture_oom"),
        ([CORE + '  File "/opt/vllm/v1/worker/utils.py", line 4, in request_memory'], "budget_above_free"),
        ([CORE + '  File "/opt/vllm/vit.py", line 268, in vit_torch_sdpa_wrapper'], "profile_oom"),
        ([CORE + "Dumping: SchedulerStats(num_running_reqs=1, num_waiting_reqs=0, x=1)", FATAL, CORE + "Traceback ("],
         "runtime_oom"),
    ],
)  # fmt: skip
def test_an_excerpt_gets_a_cause_that_is_marked_as_a_guess(lines: list[str], cause: Cause) -> None:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(line.encode()) for line in lines])
    failure = failure_of(*lines)

    live = reader.report().failure
    assert live is None or live.cause == "unknown", "one who still listens waits for what tells the cause"
    assert failure is not None
    assert failure.presumed
    if lines[0].startswith(CORE + "Dumping"):
        cause = "first_request_oom"
    assert failure.cause == cause


@pytest.mark.parametrize(
    "lines",
    [
        # Nothing tells what the process was doing, or that it was memory.
        [CORE + "EngineCore hit an exception: Traceback (most recent call last):"],
        # The check of the pool and its allocation lie in one function.
        [CORE + "Error executing method initialize_cache. This might cause deadlock in distributed execution."],
        [FATAL, CORE + '  File "/opt/vllm/x.py", line 4, in execute_model', CORE + "SomeError: it is something else"],
        [WORKER + '  File "/x.py", line 3, in _check_enough_kv_cache_memory', CORE + "EngineCore failed to start."],
        # What does all of a phase, and what runs requests, may fail of anything.
        *(
            [BROKEN, WORKER + f'  File "/x.py", line 3, in {stage}']
            for stage in ("load_model", "profile_run", "compile_or_warm_up_model", "execute_model", "capture_end")
        ),
        [BROKEN, WORKER + "    with torch.cuda.graph(graph, pool=pool):", WORKER + "    super().capture_end()"],
        [FATAL, CORE + "Traceback (most recent call last):", CORE + '  File "/x.py", line 3, in run_busy_loop'],
        [BROKEN, WORKER + '  File "/opt/vllm/v1/worker/gpu_worker.py", line 9, in __init__'],
        [CORE + "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.", FATAL],
        # A worker with graphs says the same when it is warmed up and when it serves.
        [BROKEN, WORKER + POOLS],
        [WORKER + oom(slack="600.00 MiB")],
    ],
)
def test_a_cause_is_not_presumed_where_nothing_tells_one(lines: list[str]) -> None:
    failure = failure_of(*lines)

    assert failure is not None
    assert not failure.presumed
    assert failure.cause in ("unknown", "not_memory")


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["AssertionError: Error in memory profiling. This happens when the GPU memory was not properly cleaned up"],
         "profile_assert"),
        # The method a worker names stands before the traceback, which has no frame of it any more.
        ([WORKER + "Exception in worker VllmWorkerProcess while processing method determine_num_available_blocks.",
          WORKER + "Traceback (most recent call last):", WORKER + oom()], "profile_oom"),
        # A runtime tells of itself before the engine shows where it was.
        (["2026-Feb-03 10:00:00.100000   77:77   ERROR  TDRV:dmem_alloc_internal    Failed to alloc DEVICE memory: 64",
          'ERROR 02-03 10:00:00 engine.py:389]   File "/opt/ops.py", line 49, in parallel_to_nc',
          'ERROR 02-03 10:00:00 engine.py:389] RuntimeError: nrt_tensor_allocate status=4 message="Allocation Failure"',
          "Process SpawnProcess-1:", "Traceback (most recent call last):"], "weights_oom"),
        (["Allocating TT kv caches for each layer (submesh 1):  28%|## | 9/32 [00:02<00:06,  3.31it/s]",
          "Out of Memory: Not enough space to allocate 4096 B DRAM buffer across 12 banks"], "kv_alloc_oom"),
        # A script that has its prompts processed serves.
        ([LOADED, "Processed prompts:   0%|          | 0/8 [00:00<?, ?it/s]", oom()], "first_request_oom"),
        ([LOADED, "Processed prompts:  12%|#         | 1/8 [00:09<?, ?it/s]", oom()], "runtime_oom"),
        ([CORE + "    engine_core = EngineCoreProc(*args, **kwargs)", CORE + "KeyError: 'layers.3.mlp.gate'"],
         "not_memory"),
        (["ERROR 02-03 10:00:00 engine.py:165] NoFreeBlocksError()",
          "CRITICAL 02-03 10:00:01 launcher.py:101] MQLLMEngine is already dead, terminating"], "not_memory"),
        (["ERROR 02-03 10:00:00 engine.py:158] RuntimeError('CUDA error: an illegal memory access was encountered')"],
         "not_memory"),
        ([WORKER + "Exception in worker VllmWorkerProcess while processing method init_device: NCCL error: unhandled "
          "cuda error, Traceback (most recent call last):"], "not_memory"),
        ([LOADED, CORE + "RuntimeError: Triton Error [CUDA]: out of memory"], "kv_alloc_oom"),
        (["(EngineCore pid=12) INFO 02-03 10:00:00 [w.py:270] Available memory: 0, total memory: 65452113920",
          CORE + "EngineCore failed to start."], "no_kv_room"),
        ([CORE + "RuntimeError: Unable to load model, a likely reason is the model is too large. See the detailed: "
          "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 896.00M. That was not possible. "
          "There are 295.08M free.; (0x0x0_HBM0)"], "weights_oom"),
        (["CRITICAL 02-03 10:00:00 [core_client.py:359] Got fatal signal from worker processes, shutting down."],
         "unknown"),
    ],
)  # fmt: skip
def test_a_death_told_in_few_lines_has_its_cause_without_a_guess(lines: list[str], cause: Cause) -> None:
    failure = failure_of(*lines)

    assert failure is not None
    assert (failure.cause, failure.presumed) == (cause, False)


@pytest.mark.parametrize("line", ["error: failed to load model '/models/none.gguf'", "Capture cuda graph failed: bad"])
def test_a_place_is_no_death_of_memory(line: str) -> None:
    assert all(boot.report.failure is None for boot in told(LOADED, line))


def test_the_code_of_an_assertion_is_no_assertion() -> None:
    quoted = '    "Error in memory profiling. This happens when the GPU memory was "'

    assert all(boot.report.failure is None for boot in told(LOADED, quoted))


def test_a_trouble_that_the_engine_outlived_is_no_death() -> None:
    alive = (
        "INFO 02-03 10:01:10 [l.py:127] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: "
        "447.0 tokens/s, Running: 2 reqs"
    )

    assert failure_of(BROKEN, WORKER + '  File "/x.py", line 3, in execute_model', alive) is None


def test_one_request_under_way_makes_a_first_request_and_two_make_load() -> None:
    quoted = (
        "OutOfMemoryError('CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 79.33 GiB"
    )
    end = f"Engine loop is not running. Inspect the stacktrace: {quoted} of which 16 MiB is free.'"
    handler = f"ERROR 02-03 10:01:00 [serving_chat.py:677] vllm.engine.multiprocessing.MQEngineDeadError: {end}"
    one, two, none = failure_of(handler), failure_of(handler, handler), failure_of(end)

    assert one is not None
    assert two is not None
    assert none is not None
    assert (one.cause, one.presumed) == ("first_request_oom", True)
    assert (two.cause, none.cause) == ("runtime_oom", "runtime_oom")
