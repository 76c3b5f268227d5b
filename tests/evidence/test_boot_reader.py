from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import Cause, Phase, Printed
from budget_exporter.units import printed_bytes

NOW = 1770200000.0
BANNER = (
    "(APIServer pid={pid}) INFO 02-03 10:00:00 [api_utils.py:395] version 0.28.0  model /models/Tiny-A  "
    "Clav Version 28.04.9"
)
ENGINE = (
    "(EngineCore pid={pid}) INFO 02-03 10:00:05 [core.py:105] Initializing a V1 LLM engine (v0.28.0) "
    "with config: model='x'"
)
LOADING = "(Worker_TP0 pid=30) INFO 02-03 10:00:07 [r.py:1] Starting to load model /models/Tiny-A..."
LOADED = "(Worker_TP0 pid=30) INFO 02-03 10:00:20 [r.py:2] Model loading took 6.31 GiB memory and 9.1 seconds"
AVAILABLE = "(Worker_TP0 pid=30) INFO 02-03 10:00:22 [w.py:436] Available KV cache memory: 6.87 GiB"
POOL = (
    "(EngineCore pid=12) INFO 02-03 10:00:23 [k.py:1] GPU KV cache size: 401,408 tokens, "
    "Maximum concurrency for 200,704 tokens per request: 2.00x"
)
CAPTURING = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/6 [00:00<?, ?it/s]"
CAPTURED = "(Worker_TP0 pid=30) INFO 02-03 10:00:30 [r.py:3] Graph capturing finished in 3 secs, took -0.06 GiB"
READY = "(APIServer pid=11) INFO:     Application startup complete."
ANSWERED = '(APIServer pid=11) INFO:     10.0.0.7:51022 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
STATS = (
    "(APIServer pid=11) INFO 02-03 10:00:50 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 "
    "tokens/s, Avg generation throughput: 3.1 tokens/s, Running: 1 reqs"
)
OOM = (
    "(Worker_TP1 pid=31) ERROR 02-03 10:01:00 [m.py:949] torch.OutOfMemoryError: HIP out of memory. Tried to allocate "
    "50.00 MiB. GPU 1 has a total capacity of 31.86 GiB of which 0 bytes is free. Of the allocated memory 29.6 GiB"
)
FATAL = "(EngineCore pid=12) ERROR 02-03 10:01:01 [core.py:1233] EngineCore encountered a fatal error."
FAILED = (
    "(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
BOOT = (BANNER.format(pid=11), ENGINE.format(pid=12), LOADING, LOADED, AVAILABLE, POOL, CAPTURING, CAPTURED)
TO_PHASE: dict[Phase, Sequence[str]] = {
    "loading": BOOT[:3],
    "profiling": BOOT[:4],
    "allocating_kv": BOOT[:6],
    "capturing": BOOT[:7],
    "warming_up": BOOT,
    "serving": (*BOOT, READY),
}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def reader_of(*said: str, clock: Clock | None = None) -> BootReader:
    reader = BootReader(clock=clock or Clock())
    say(reader, *said)
    return reader


def say(reader: BootReader, *said: str, at: float | None = None) -> None:
    reader.feed([Record(line.encode(), at=at) for line in said])


def cause_of(*said: str) -> Cause | None:
    failure = reader_of(*said).report().failure
    return None if failure is None else failure.cause


@pytest.mark.parametrize("phase", list(TO_PHASE))
def test_the_phase_follows_the_lines(phase: Phase) -> None:
    assert reader_of(*TO_PHASE[phase]).report().phase == phase


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("loading", "weights_oom"),
        ("profiling", "profile_oom"),
        ("allocating_kv", "kv_alloc_oom"),
        ("capturing", "graph_capture_oom"),
        ("warming_up", "warmup_oom"),
        ("serving", "first_request_oom"),
    ],
)
def test_an_oom_is_named_after_the_phase_it_came_in(phase: Phase, cause: Cause) -> None:
    failure = reader_of(*TO_PHASE[phase], OOM).report().failure

    assert failure is not None
    assert (failure.phase, failure.cause, failure.rank) == (phase, cause, 1)
    assert failure.tried == Printed(50 << 20, 5243)
    assert failure.free == Printed(0, 0)


def test_an_oom_after_a_request_was_answered_is_one_of_running() -> None:
    assert cause_of(*BOOT, READY, ANSWERED, OOM) == "runtime_oom"


def test_a_whole_request_seen_in_the_statistics_counts_as_answered() -> None:
    stats = STATS.replace("Running: 1", "Running: 0")

    assert cause_of(*BOOT, READY, stats, OOM) == "runtime_oom"
    assert cause_of(*BOOT, READY, STATS, OOM) == "first_request_oom"


def test_an_oom_of_unknown_phase_has_an_unknown_cause() -> None:
    assert cause_of(OOM) == "unknown"


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("load_model", "weights_oom"),
        ("determine_available_memory", "profile_oom"),
        ("profile_cudagraph_memory", "graph_capture_oom"),
        ("initialize_kv_cache_tensors", "kv_alloc_oom"),
        ("capture_model", "graph_capture_oom"),
        ("_dummy_sampler_run", "warmup_oom"),
        ("wake_up", "wakeup_oom"),
        ("execute_model", "runtime_oom"),
    ],
)
def test_the_frames_of_a_traceback_tell_where_an_oom_came(frame: str, cause: Cause) -> None:
    prefix = "(Worker_TP1 pid=31) ERROR 02-03 10:01:00 [m.py:949] "

    assert (
        cause_of(
            prefix + "Traceback (most recent call last):",
            prefix + f'  File "/opt/vllm/worker.py", line 3, in {frame}',
            prefix + '  File "/opt/torch/nn.py", line 9, in forward',
            OOM,
        )
        == cause
    )


def test_the_frames_of_another_process_tell_nothing() -> None:
    assert (
        cause_of('(Worker_TP0 pid=30) ERROR 02-03 10:01:00 [m.py:949]   File "/x.py", line 3, in load_model', OOM)
        == "unknown"
    )


def test_v0_names_the_method_after_the_oom() -> None:
    method = (
        "(VllmWorkerProcess pid=9) ERROR 02-03 10:01:00 [m.py:242] Exception in worker VllmWorkerProcess "
        "while processing method load_model."
    )

    assert cause_of(OOM, method) == "weights_oom"
    assert cause_of(method, OOM.replace("Worker_TP1 pid=31", "VllmWorkerProcess pid=9")) == "weights_oom"


def test_the_warm_up_sentence_is_better_than_the_phase() -> None:
    warm = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."

    assert cause_of(*TO_PHASE["capturing"], OOM, warm) == "warmup_oom"
    failure = reader_of(warm, OOM).report().failure
    assert failure is not None
    assert (failure.cause, failure.tried) == ("warmup_oom", Printed(50 << 20, 5243))


def test_waking_up_without_memory() -> None:
    asleep = (
        "(Worker_TP0 pid=30) INFO 02-03 11:00:00 [w.py:144] Sleep mode freed 35.43 GiB memory, 1.19 GiB "
        "memory is still in use."
    )
    reader = reader_of(*BOOT, READY, asleep)
    assert reader.report().phase == "sleeping"

    say(reader, "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:163")

    failure = reader.report().failure
    assert failure is not None
    assert failure.cause == "wakeup_oom"
    say(reader_of(), "It took 1.2 seconds to wake up.")


def test_a_cascade_is_one_death_and_its_first_sentence_the_cause() -> None:
    clock = Clock()
    other = OOM.replace("TP1 pid=31", "TP0 pid=30").replace("GPU 1", "GPU 0").replace("50.00 MiB", "60.00 MiB")
    quoted = (
        "(EngineCore pid=12) ERROR 02-03 10:01:01 [core.py:1] RuntimeError: Worker failed with error 'HIP "
        "out of memory. Tried to allocate 60.00 MiB.', please check"
    )
    reader = reader_of(*TO_PHASE["loading"], OOM, OOM, other, quoted, FATAL, clock=clock)
    assert reader.take_failures() == ()

    say(reader, FAILED)

    (failure,) = reader.take_failures()
    assert (failure.cause, failure.rank, failure.tried) == ("weights_oom", 1, Printed(50 << 20, 5243))
    assert reader.take_failures() == ()
    assert reader.report().failure == failure
    assert reader.report().phase == "failing"


def test_a_death_without_a_last_word_is_told_when_nothing_more_is_said() -> None:
    clock = Clock()
    reader = reader_of(*TO_PHASE["loading"], OOM, clock=clock)
    assert reader.take_failures() == ()
    clock.now += 10

    assert [failure.cause for failure in reader.take_failures()] == ["weights_oom"]


def test_the_next_boot_ends_the_last_ones_death() -> None:
    reader = reader_of(*TO_PHASE["loading"], OOM, BANNER.format(pid=11))

    assert [failure.cause for failure in reader.take_failures()] == ["weights_oom"]
    assert reader.boots == 2
    assert reader.report().failure is None
    assert reader.report().phase == "starting"


def test_an_oom_the_engine_lives_through_is_no_death() -> None:
    clock = Clock()
    reader = reader_of(*BOOT, READY, OOM, clock=clock)
    assert reader.report().phase == "failing"
    serving_since = NOW - 100
    say(reader, STATS, at=serving_since)
    clock.now += 60

    assert reader.report().failure is None
    assert reader.report().phase == "serving"
    assert reader.take_failures() == ()


def test_an_oom_while_serving_whose_end_follows_is_a_death() -> None:
    reader = reader_of(*BOOT, READY, OOM, STATS, FATAL, "INFO:     Application shutdown complete.")

    assert [failure.cause for failure in reader.take_failures()] == ["first_request_oom"]


def test_an_exception_before_serving_is_a_death_unless_its_process_goes_on() -> None:
    missing = "(APIServer pid=11) OSError: We couldn't connect to 'https://models.example.org'"
    reader = reader_of(BANNER.format(pid=11), missing)
    failure = reader.report().failure
    assert failure is not None
    assert failure.cause == "not_memory"

    say(reader, "(APIServer pid=11) INFO 02-03 10:00:01 [model.py:549] Resolved architecture: TinyForCausalLM")

    assert reader.report().failure is None
    assert reader.report().phase == "starting"


def test_an_exception_of_one_request_is_none() -> None:
    reader = reader_of(*BOOT, READY, "(APIServer pid=11) ERROR 02-03 10:02:00 [s.py:1] ValueError: bad request")

    assert reader.report().failure is None
    assert reader.report().phase == "serving"


def test_an_end_whose_cause_was_not_told_is_unknown() -> None:
    died = (
        "(EngineCore pid=12) ERROR 02-03 10:01:01 [m.py:1] Worker proc VllmWorker-0 died unexpectedly, "
        "shutting down executor."
    )

    assert (
        cause_of(
            *BOOT,
            READY,
            died,
            FATAL,
            "(EngineCore pid=12) ERROR 02-03 10:01:01 [c.py:1] RuntimeError: Executor failed.",
        )
        == "unknown"
    )


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.", 1),
        ("Engine core proc EngineCore_0 died unexpectedly, shutting down client.", None),
        ("Worker VllmWorkerProcess pid 123 died, exit code: -15", None),
    ],
)
def test_an_end_names_the_rank_of_the_worker_that_is_gone(said: str, rank: int | None) -> None:
    failure = reader_of(*BOOT, READY, f"(EngineCore pid=12) ERROR 02-03 10:01:01 [m.py:1] {said}").report().failure

    assert failure is not None
    assert (failure.cause, failure.phase, failure.rank) == ("unknown", "serving", rank)


def test_a_stop_on_request_is_no_death() -> None:
    stop = "(APIServer pid=11) INFO 02-03 12:00:00 [launcher.py:254] [shutdown] API server: shutdown triggered"
    dead = (
        "(APIServer pid=11) ERROR 02-03 12:00:00 [async_llm.py:906] "
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    )
    reader = reader_of(*BOOT, READY, stop, dead, "INFO:     Application shutdown complete.")

    assert reader.report().phase == "stopped"
    assert reader.report().failure is None
    assert reader.take_failures() == ()


def test_two_boots_in_one_stream_share_nothing() -> None:
    reader = reader_of(*BOOT, READY, BANNER.format(pid=21))
    report = reader.report()

    assert (reader.boots, reader.main_pid) == (2, 21)
    assert (report.kv_tokens, report.ranks, report.architecture) == (None, {}, None)
    assert report.phase == "starting"


def test_another_api_server_is_another_boot_even_without_a_banner() -> None:
    reader = reader_of(*BOOT, READY, "(APIServer pid=99) INFO 02-03 10:00:01 [model.py:549] Resolved architecture: B")

    assert (reader.boots, reader.main_pid, reader.report().kv_tokens) == (2, 99, None)


def test_an_old_engine_without_banner_is_told_apart_by_its_first_line() -> None:
    first = "INFO 02-03 10:00:05 llm_engine.py:164] Initializing an LLM engine (v0.5.0.post1) with config: model='a'"
    reader = reader_of(first, "INFO 02-03 10:00:07 model_runner.py:1115] Loading model weights took 5.2032 GB", first)

    assert reader.boots == 2
    assert reader.report().common.weights is None


def test_an_engine_core_started_anew_within_a_boot_begins_its_facts_again() -> None:
    reader = reader_of(*BOOT, ENGINE.format(pid=55))

    assert reader.boots == 1
    assert reader.report().ranks == {}
    assert reader.report().kv_tokens is None
    assert reader.report().release == "28.04.9"


def test_several_api_servers_of_one_engine_are_one_boot() -> None:
    reader = reader_of(
        BANNER.format(pid=11).replace("APIServer", "MainProcess"),
        "(ApiServer_0 pid=13) INFO 02-03 10:00:01 [model.py:549] Resolved architecture: A",
        "(ApiServer_1 pid=14) INFO 02-03 10:00:01 [model.py:549] Resolved architecture: A",
    )

    assert (reader.boots, reader.main_pid) == (1, 11)


def test_a_rank_is_known_by_its_pid_though_its_name_changes() -> None:
    reader = reader_of(
        (
            "(Worker pid=31) INFO 02-03 10:00:06 [p.py:1] world_size=2 rank=1 local_rank=1 "
            "distributed_init_method=x backend=nccl"
        ),
        "(Worker pid=31) DEBUG 02-03 10:00:07 [w.py:1] worker requested memory: 21.6GiB",
        "(Worker pid=30) DEBUG 02-03 10:00:07 [w.py:1] worker requested memory: 20.6GiB",
        "(Worker_TP0 pid=30) INFO 02-03 10:00:20 [r.py:2] Model loading took 6.31 GiB memory and 9.1 seconds",
    )

    requested = {rank: facts.requested for rank, facts in reader.report().ranks.items()}
    assert requested == {1: Printed(printed_bytes("21.6"), 5368709), 0: Printed(printed_bytes("20.6"), 5368709)}


def test_of_a_model_named_by_an_address_nothing_secret_is_kept() -> None:
    # What is kept is written to the state file.
    args = (
        "(APIServer pid=11) INFO 02-03 10:00:00 [u.py:1] non-default args: {'model': 's3://k:word@b/x?sig=word#word', "
        "'served_model_name': ['s3://k:word@b/x', 'plain@1'], 'port': 8000}"
    )
    reports = [
        reader_of(args).report(),
        reader_of(BANNER.replace("/models/Tiny-A", "s3://k:word@b/x").format(pid=11)).report(),
    ]

    assert [report.model for report in reports] == ["s3://b/x", "s3://b/x"]
    assert reports[0].args == {"model": "s3://b/x", "served_model_name": "['s3://b/x', 'plain@1']", "port": "8000"}
    assert "word" not in repr(reports)


def test_the_rank_of_a_pipeline_needs_the_size_of_the_tensor_groups() -> None:
    fact = "(Worker_PP1_TP1 pid=9) INFO 02-03 10:00:20 [r.py:2] Model loading took 6.31 GiB memory and 9.1 seconds"
    args = (
        "(APIServer pid=11) INFO 02-03 10:00:00 [u.py:1] non-default args: {'tensor_parallel_size': 2, "
        "'pipeline_parallel_size': 2}"
    )

    assert reader_of(args, fact).report().ranks.keys() == {3}
    alone = reader_of(fact).report()
    assert alone.ranks == {}
    assert alone.common.weights is not None


def test_processes_without_a_rank_that_disagree_give_no_figure() -> None:
    line = "(VllmWorkerProcess pid={}) INFO 02-03 10:00:20 model_runner.py:1115] Loading model weights took {} GB"

    assert reader_of(line.format(1, "5.2032"), line.format(2, "5.2032")).report().common.weights is not None
    assert reader_of(line.format(1, "5.2032"), line.format(2, "6.1")).report().common.weights is None


def test_the_smallest_pool_counts_where_every_worker_prints_its_own() -> None:
    line = "(EngineCore pid=12) INFO 02-03 10:00:23 [k.py:1] GPU KV cache size: {} tokens"

    assert reader_of(line.format("9,000"), line.format("8,992"), line.format("9,008")).report().kv_tokens == 8992


def test_the_last_capture_counts_and_the_profilers_does_not() -> None:
    profiled = CAPTURED.replace("-0.06", "0.11")
    reader = reader_of(*BOOT[:4], profiled)
    assert reader.report().phase == "profiling"
    say(reader, AVAILABLE)
    assert reader.report().ranks[0].graph_capture is None

    say(reader, POOL, CAPTURED)

    assert reader.report().ranks[0].graph_capture == Printed(printed_bytes("-0.06"), 5368709)


def test_the_finer_of_two_roundings_is_kept_and_the_newer_of_two_sizes() -> None:
    fine = "(Worker_TP0 pid=30) INFO 02-03 10:00:20 [r.py:2] Model loading took 14.9889 GiB and 9.1 seconds"
    coarse = (
        "(Worker_TP0 pid=30) DEBUG 02-03 10:00:22 [w.py:1] Total non KV cache memory: 20GiB; weights memory: {}GiB."
    )

    kept = reader_of(fine, coarse.format("14.99")).report().ranks[0].weights
    newer = reader_of(fine, coarse.format("16.5")).report().ranks[0].weights
    assert kept is not None
    assert newer is not None
    assert (kept.bytes, newer.bytes) == (printed_bytes("14.9889"), printed_bytes("16.5"))


def test_the_peak_of_newer_releases_is_printed_with_the_charged_estimate_in_it() -> None:
    prefix = "(Worker_TP0 pid=30) INFO 02-03 10:00:30 [w.py:1] "
    usage = (
        prefix
        + "Free memory on device (22.93/23.56 GiB) on startup. Desired GPU memory utilization is (0.935, 22.03 GiB). "
        "Actual usage is 19.47 GiB for consumed memory (weights + non-torch), 0.60 GiB for peak activation, "
        "and 0.1 GiB for CUDAGraph memory."
    )
    charged = prefix + "CUDA graph memory profiling is enabled (default since v0.21.0). The current"
    estimate = prefix + "Estimated CUDA graph memory: 0.36 GiB total"

    with_estimate = reader_of(estimate, charged, usage).report().ranks[0].activation
    assert with_estimate is not None
    assert with_estimate.bytes == printed_bytes("0.60") - printed_bytes("0.36")
    assert reader_of(charged, usage).report().ranks[0].activation is None
    assert reader_of(charged.replace("enabled", "disabled"), estimate, usage).report().ranks[0].activation == Printed(
        printed_bytes("0.60"), 5368709
    )


def test_a_plan_with_a_graph_row_is_the_charge() -> None:
    assert reader_of("CUDA graphs                                     0.40").report().graph_charge_applied is True
    assert (
        reader_of("(Worker_TP0 pid=30) INFO 02-03 10:00:22 [w.py:1] Estimated CUDA graph memory: 0.36 GiB total")
        .report()
        .graph_charge_applied
        is None
    )


@pytest.mark.parametrize(
    "pieces",
    [
        (
            (
                "(EngineCore pid=12) ValueError: To serve at least one request with the model's max seq len "
                "(100000), (4.26 GiB KV cach"
            ),
            "e is needed, which is larger than the available KV cache memory (4.25 GiB). Based on the avai",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (100000),",
            "(4.26 GiB KV cache is needed, which is larger than the available KV cache memory (4.25 GiB).",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache",
            "is needed, which is larger than",
            "the available KV cache memory (",
            "4.25 GiB). Based",
        ),
    ],
)
def test_a_sentence_over_several_lines_is_read_as_one(pieces: Sequence[str]) -> None:
    report = reader_of(*pieces).report()

    assert report.failure is not None
    assert report.failure.cause == "kv_below_max_len"
    assert report.common.kv_available == Printed(printed_bytes("4.25"), 5368709)
    assert report.unparsed == 0


def test_an_oom_over_several_lines_gives_what_was_tried_and_free() -> None:
    report = reader_of(
        "torch.OutOfMemoryError: CUDA out of memory.",
        "Tried to allocate 252.00 MiB. GPU 0 has a total capacity of 10.57 GiB of whi",
        "ch 163.12 MiB is free.",
    ).report()

    assert report.failure is not None
    assert report.failure.tried == Printed(252 << 20, 5243)
    assert report.failure.free == Printed(printed_bytes("163.12", "MiB"), 5243)


@pytest.mark.parametrize("tail", ["5 GiB", ".5 GiB", ",333 GiB"])
def test_a_number_torn_by_a_break_is_no_figure(tail: str) -> None:
    reader = reader_of("(Worker_TP0 pid=30) INFO 02-03 10:00:22 [w.py:1] Available KV cache memory: 4", tail)
    say(reader, *["(X pid=1) INFO 02-03 10:00:22 [x.py:1] something else"] * 8)

    assert reader.report().ranks == {}
    assert reader.report().unparsed == 1


def test_what_is_known_of_a_boot_is_kept_under_what_the_log_adds() -> None:
    known = reader_of(*BOOT).report()

    reader = BootReader(known, clock=Clock())
    say(reader, READY)

    report = reader.report()
    assert reader.boots == 0
    assert report.phase == "serving"
    assert (report.ranks, report.kv_tokens, report.release) == (known.ranks, 401408, "28.04.9")
    say(reader, BANNER.format(pid=77))
    assert reader.report().ranks == {}


def test_a_failure_that_is_known_already_is_not_taken_again() -> None:
    known = reader_of(*TO_PHASE["loading"], OOM, FAILED).report()

    reader = BootReader(known, clock=Clock())
    say(reader, BANNER.format(pid=77))

    assert reader.take_failures() == ()


def test_the_time_of_a_phase_is_the_records_else_the_stamps_else_ours() -> None:
    with_record = BootReader(clock=Clock())
    say(with_record, LOADING, at=1770110000.25)
    assert with_record.report().phase_at == 1770110000.25
    stamped = reader_of(LOADING).report().phase_at
    assert stamped is not None
    assert time.strftime("%m-%d %H:%M:%S", time.localtime(stamped)) == "02-03 10:00:07"
    assert NOW - 366 * 86400 < stamped < NOW
    assert reader_of(READY).report().phase_at == NOW
    assert reader_of("2026-02-03T10:00:29.5Z " + LOADING).report().phase_at == 1770112829.5
    assert reader_of(LOADING.replace("02-03", "02-31")).report().phase_at == NOW


RESERVED = (
    "(Worker_TP0 pid=30) INFO 02-03 10:00:22 [w.py:201] Reserving 0.5 GiB of GPU memory for frontend multimodal "
    "decoding (0.5 GiB raw-frame semaphore budget, 0.0 GiB decoder+CUDA-context across 1 API server(s) @ 2.05 "
    "GiB/server); KV cache memory reduced to 6.37 GiB."
)
IN_USE = (
    "(Worker_TP0 pid=30) INFO 02-03 10:00:31 [w.py:855] Free memory on device (31.29/31.86 GiB) on startup. "
    "Current kv cache memory in use is 6.87 GiB."
)


def test_the_pool_is_what_multimodal_decoding_leaves_of_what_was_available() -> None:
    facts = reader_of(AVAILABLE, RESERVED).report().ranks[0]
    assert (facts.kv_available, facts.multimodal) == (
        Printed(printed_bytes("6.37"), 5368709),
        Printed(printed_bytes("0.5"), 5368709),
    )
    assert reader_of(AVAILABLE, RESERVED, IN_USE).report().ranks[0].kv_available == facts.kv_available
    cut = RESERVED.partition(";")[0]
    assert reader_of(cut, IN_USE).report().ranks[0].kv_available == Printed(
        printed_bytes("6.87") - printed_bytes("0.5"), 2 * 5368709
    )


def test_a_reservation_known_before_still_holds_for_what_is_said_later() -> None:
    resumed = BootReader(reader_of(AVAILABLE, RESERVED).report(), clock=Clock())
    say(resumed, IN_USE)
    available = resumed.report().ranks[0].kv_available
    assert available is not None
    assert available.bytes == printed_bytes("6.87") - printed_bytes("0.5")
