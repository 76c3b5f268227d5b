"""Boots on other devices than GPUs: from the lines to the ledger, the engine's own words against the law's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.budget import compute
from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.publish.reported_metrics import charges_of
from budget_exporter.units import GIB, MIB, printed_bytes
from budget_exporter.verdicts.mismatch import comparisons, mismatch

GAUDI = """\
INFO 02-03 10:00:00 api_server.py:219] vLLM API server version 0.5.3.post1+Gaudi-1.18.0
INFO 02-03 10:00:05 llm_engine.py:176] Initializing an LLM engine (v0.5.3.post1+Gaudi-1.18.0) with: device_config=hpu, y
INFO 02-03 10:00:20 habana_model_runner.py:590] Pre-loading model weights on hpu:0 took 15.05 GiB of device memory \
(15.05 GiB/94.62 GiB used) and 1.067 GiB of host memory (8.199 GiB/108.2 GiB used)
INFO 02-03 10:00:20 habana_model_runner.py:640] Loading model weights took in total 15.05 GiB of device memory \
(15.05 GiB/94.62 GiB used) and 1.056 GiB of host memory (8.188 GiB/108.2 GiB used)
INFO 02-03 10:00:21 habana_worker.py:153] Model profiling run took 355 MiB of device memory \
(15.4 GiB/94.62 GiB used) and 131.4 MiB of host memory (8.316 GiB/108.2 GiB used)
INFO 02-03 10:00:21 habana_worker.py:177] Free device memory: 79.22 GiB, 71.3 GiB usable (gpu_memory_utilization=0.9), \
28.52 GiB reserved for HPUGraphs (VLLM_GRAPH_RESERVED_MEM=0.4), 42.78 GiB reserved for KV cache
INFO 02-03 10:00:21 habana_executor.py:85] # HPU blocks: 2737, # CPU blocks: 256
INFO 02-03 10:00:22 habana_model_runner.py:1523] Generated 24 prompt buckets [bs, seq]: [(1, 128)]
INFO 02-03 10:00:22 habana_model_runner.py:1541] Generated 1 decode buckets [bs, total_blocks]: [(4, 128)]
INFO 02-03 10:00:23 habana_model_runner.py:1428] [Warmup][Prompt][1/24] batch_size:4 seq_len:1024 free_mem:36.07 GiB
"""
GAUDI_CAPTURES = """\
INFO 02-03 10:00:32 habana_model_runner.py:1477] Graph/Prompt captured:24 (100.0%) used_mem:67.72 MiB buckets:[(1, 1)]
INFO 02-03 10:00:33 habana_model_runner.py:1477] Graph/Decode captured:1 (100.0%) used_mem:64 KiB buckets:[(4, 128)]
INFO 02-03 10:00:33 habana_model_runner.py:1620] Warmup finished in 32 secs, allocated 92.77 MiB of device memory
"""
NEURON = """\
(EngineCore pid=12) INFO 02-03 10:00:05 [x.py:1] Initializing a V1 LLM engine (v0.24.0) with: device_config=cpu, y
(Worker_TP0 pid=40) INFO 02-03 10:00:20 [neuron_worker.py:1] Loading model on NeuronWorker
(Worker_TP0 pid=40) INFO 02-03 10:00:21 [neuron_worker.py:1] Neuron HBM: 13.61 GiB used, 10.39 GiB free
(Worker_TP1 pid=41) INFO 02-03 10:00:21 [neuron_worker.py:1] Neuron HBM: 13.62 GiB used, 10.38 GiB free
(Worker_TP0 pid=40) DEBUG 02-03 10:00:21 [neuron_worker.py:1] KV cache heuristic: user_budget=8.09 GiB, cap=6.48 GiB \
(total_budget=21.60 GiB, total_hbm=24.00 GiB, bytes_used=13.51 GiB, cap_fraction=0.30), effective=6.48 GiB
(Worker_TP1 pid=41) DEBUG 02-03 10:00:21 [neuron_worker.py:1] KV cache heuristic: user_budget=3.48 GiB, cap=6.48 GiB \
(total_budget=21.60 GiB, total_hbm=24.00 GiB, bytes_used=18.12 GiB, cap_fraction=0.30), effective=3.48 GiB
"""
TPU = """\
(EngineCore_DP0 pid=12) INFO 02-03 10:00:05 [x.py:1] Initializing a V1 LLM engine (v0.19.0) with: device_config=tpu, y
(EngineCore_DP0 pid=12) INFO 02-03 10:00:20 [tpu_runner.py:1264] Init model | hbm=[(3.74, 31.25), (4.02, 31.25)]GiB
(EngineCore_DP0 pid=12) INFO 02-03 10:00:22 [tpu_worker.py:557] Memory statistics | total_hbm_limit_gb=62.5GiB | \
total_hbm_limit_cap_gb=56.25GiB | total_hbm_used_gb=7.76GiB | total_hbm_avail_gb=48.49GiB
"""
CPU = """\
(EngineCore pid=12) INFO 02-03 10:00:05 [x.py:1] Initializing a V1 LLM engine (v0.32.0) with: device_config=cpu, y
(Worker_TP0 pid=40) INFO 02-03 10:00:30 [cpu_worker.py:260] Auto set (3.7/16) GiB for KV cache on node 0, \
with 4.8 GiB requested memory for the worker. 1.1 GiB memory was consumed by non-kv usages.
(Worker_TP1 pid=41) INFO 02-03 10:00:30 [cpu_worker.py:260] Auto set (3.6/16) GiB for KV cache on node 1, \
with 4.8 GiB requested memory for the worker. 1.2 GiB memory was consumed by non-kv usages.
"""


def report_of(log: str) -> BootReport:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(line.encode()) for line in log.splitlines()])
    return reader.report()


def ledger(report: BootReport, size: float, platform: str, ranks: int = 1, utilization: float = 0.9) -> Ledger:
    shape = Shape(utilization=utilization, tensor_parallel_size=ranks)
    given = [RankInput(str(rank), round(size * GIB), platform=platform) for rank in range(ranks)]
    return compute(shape, given, report, None)


def agrees(found: Ledger, report: BootReport) -> None:
    """Assert that something was compared on each rank, and that nothing is apart."""
    for rank, made in found.ranks.items():
        facts = report.of(int(rank))
        assert mismatch(made, facts) is False, [each for each in comparisons(made, facts) if each.apart]
        reported = charges_of(facts, charged=report.graph_charge_applied)
        for term in made.charges:
            if term.name in reported:
                assert abs(term.bytes - reported[term.name].bytes) <= term.rounding + reported[term.name].rounding


def test_gaudi_s_split_is_what_it_printed() -> None:
    report = report_of(GAUDI)
    found = ledger(report, 96, "gaudi")
    agrees(found, report)

    assert found.law == "gaudi"
    assert {each.name for each in comparisons(found.ranks["0"], report.common)} == {"kv_pool", "requested"}
    assert set(charges_of(report.common, charged=None)) == {"graph_reserve"}
    assert found.graphs == 25
    assert "24 prompt and 1 decode buckets are warmed up" in found.notes
    assert {term.name for term in found.ranks["0"].outside} == {"weights", "activation", "driver_reserve"}


def test_gaudi_s_captures_are_known_when_both_kinds_are() -> None:
    first, _, rest = GAUDI_CAPTURES.partition("\n")
    part, whole = report_of(GAUDI + first), report_of(GAUDI + GAUDI_CAPTURES)
    embeds = report_of(GAUDI + first + "\n" + rest.partition("\n")[2])

    assert part.common.graph_capture is None
    assert whole.common.graph_capture is not None
    assert whole.common.graph_capture.bytes == printed_bytes("67.72", "MiB") + 64 * 1024
    assert embeds.common.graph_capture is not None
    assert embeds.common.graph_capture.bytes == printed_bytes("67.72", "MiB")
    assert part.common.free_after_load is not None
    margin = ledger(whole, 96, "gaudi").ranks["0"].margin
    assert margin is not None
    assert margin > 35 * GIB, "all of the reserve but the captures is left"


@pytest.mark.parametrize(
    ("last", "cause", "phase"),
    [
        ("[Warmup][Decode][2/9] batch_size:4 num_blocks:1 free_mem:2 GiB", "warmup_oom", "warming_up"),
        ("[Warmup][Graph/Decode][2/9] batch_size:4 num_blocks:1 free_mem:2 GiB", "graph_capture_oom", "capturing"),
    ],
)
def test_the_bucket_tells_what_gaudi_died_of(last: str, cause: str, phase: str) -> None:
    death = "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB"
    failure = report_of(f"{GAUDI}{last}\n{death}\n").failure

    assert failure is not None
    assert (failure.cause, failure.phase, failure.rank) == (cause, phase, 0)
    assert failure.tried is not None
    assert failure.tried.bytes == 256 * MIB


def test_neuron_s_cap_and_share_are_what_it_printed() -> None:
    report = report_of(NEURON)
    found = ledger(replace(report, device_type="neuron"), 24, "neuron", ranks=2)
    agrees(found, report)

    for rank, made in found.ranks.items():
        names = {each.name for each in comparisons(made, report.ranks[int(rank)])}
        assert names == {"kv_pool", "requested", "kv_cap"}
        assert made.charges[0].name == "weights"
        assert made.charges[0].source == "log"
    assert report.phase == "allocating_kv"


def test_tpu_chips_are_told_apart_and_together() -> None:
    report = report_of(TPU)
    found = ledger(report, 31.25, "tpu", ranks=2)

    consumed = {rank: made.charges[0].bytes for rank, made in found.ranks.items()}
    assert consumed == {"0": printed_bytes("3.74"), "1": printed_bytes("4.02")}
    assert found.notes == ("the engine adds up all local chips: 48.49 GiB of KV pool",)
    assert report.chips is not None
    assert report.chips.available is not None
    assert report.chips.available.bytes == printed_bytes("48.49")


def test_the_chips_of_one_of_several_processes_are_nobody_s() -> None:
    line = "INFO 02-03 10:00:20 [tpu_runner.py:1264] Init model | hbm=[(3.74, 31.25), (4.02, 31.25)]GiB"
    alone = line.replace("(3.74, 31.25), ", "")

    assert report_of(f"(Worker_TP1 pid=41) {line}").ranks == {}
    assert set(report_of(f"(Worker_TP0 pid=40) {line}").ranks) == {0, 1}
    assert set(report_of(f"(Worker_TP1 pid=41) {alone}").ranks) == {1}
    assert report_of(line.replace("]GiB", "]GB")).ranks == {}
    assert report_of(line.replace("hbm=[", "hbm=[x")).ranks == {}


def test_cpu_ranks_are_told_by_node() -> None:
    report = report_of(CPU)
    found = ledger(report, 16, "host", ranks=2, utilization=0.3)
    agrees(found, report)

    assert {rank: facts.node for rank, facts in report.ranks.items()} == {0: 0, 1: 1}
    assert [made.charges[0].name for made in found.ranks.values()] == ["consumed", "consumed"]


def test_libnrt_s_bytes_are_the_death_and_its_own_exception_adds_nothing() -> None:
    stamp = "2026-Feb-03 10:00:40.123456  40:77  ERROR  "
    lines = (
        stamp + "TDRV:dmem_alloc_internal      Failed to alloc DEVICE memory: 180355072",
        stamp + "TDRV:log_dev_mem              Failed to allocate 172.000MB (usage: tensors) on ND 0:NC 1, current",
        "\t* total: 15.855GB",
        "\t* tensors: 15.855GB",
        stamp + "TDRV:tensor_allocate          Failed to allocate 180355072 bytes on DEVICE for tensor UNKNOWN.",
        'RuntimeError: nrt_tensor_allocate status=4 message="Allocation Failure"',
    )
    failure = report_of(NEURON.partition("(Worker_TP0 pid=40) INFO 02-03 10:00:21")[0] + "\n".join(lines)).failure

    assert failure is not None
    assert (failure.cause, failure.phase) == ("weights_oom", "loading")
    assert failure.rank == 0, "the runtime's own prefix names its process"
    assert failure.tried is not None
    assert failure.tried.bytes == 180355072
    assert failure.free is None


def test_a_program_that_did_not_load_is_no_proof_of_full_memory() -> None:
    failure = report_of(NEURON + 'RuntimeError: nrt_load status=4 message="Allocation Failure"\n').failure

    assert failure is not None
    assert failure.cause == "unknown"


def test_xla_s_compiler_dies_where_the_boot_is() -> None:
    text = "Ran out of memory in memory space hbm. Used 20.44G of 15.75G hbm. Exceeded hbm capacity by 4.70G."
    failure = report_of(
        f"{TPU}RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile error. {text}\n"
    ).failure

    assert failure is not None
    assert (failure.cause, failure.phase) == ("kv_alloc_oom", "allocating_kv")
    assert failure.free is None, "what a program may have is not what is free"


def test_a_full_chip_tells_what_was_free() -> None:
    text = "Attempting to allocate 50.00M. That was not possible. There are 27.86M free.; (0x0x0_HBM0)"
    failure = report_of(f"{TPU}ValueError: RESOURCE_EXHAUSTED: {text}\n").failure

    assert failure is not None
    assert failure.free is not None
    assert failure.free.bytes == printed_bytes("27.86", "MiB")


def test_an_rpc_that_is_too_large_is_not_out_of_memory() -> None:
    failure = report_of(f"{TPU}ValueError: RESOURCE_EXHAUSTED: Received message larger than max (1 vs. 2)\n").failure

    assert failure is None or failure.cause == "not_memory"
