"""A real vLLM on the CPU: what the exporter finds, reads and counts of it, against the engine's own words."""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path

import pytest

from budget_exporter import budget
from budget_exporter.engines.arguments import ENVIRON_ALLOWED, shape
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.ledger import RankInput
from budget_exporter.sidecar.names import Running, automatic_name
from budget_exporter.units import GIB, MIB
from tests.integration.processes import until
from tests.integration.real_engines import PLANS, Scene, Seen
from tests.integration.rig_vllm import VERSION

pytestmark = pytest.mark.real_part("vllm")
SERVING = [name for name, plan in PLANS.items() if plan.end != "fail"]
serving = pytest.mark.parametrize("seen", SERVING, indirect=True)


def only(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seen", [name], indirect=True)


def arguments_told(seen: Seen) -> dict[str, object]:
    """Return what the engine says it was given: ``non-default args`` of its log."""
    match = re.search(r"non-default args: (\{.*\})", seen.engine.log)
    assert match is not None
    return dict(ast.literal_eval(match[1]))


@serving
def test_it_is_found_once_and_named_by_what_it_serves(seen: Seen) -> None:
    (found,) = seen.found
    assert found.main.pid == seen.engine.pid
    assert found.argv[-len(seen.engine.flags) :] == seen.engine.flags
    allowed = {name: text for name, text in seen.engine.environ.items() if name in ENVIRON_ALLOWED}
    assert "VLLM_CACHE_ROOT" in allowed
    assert found.environ == allowed
    assert {worker.pid for worker in found.workers} == set(seen.members) - {seen.engine.pid}
    assert automatic_name(Running(found, shape(found.argv, found.environ))) == f"served-{seen.name}"
    assert (seen.view["sighting"]["main"]["pid"], seen.view["name"]) == (seen.engine.pid, seen.name)


@serving
def test_its_flags_are_what_the_engine_says_it_was_given(seen: Seen) -> None:
    told, read = arguments_told(seen), seen.view["shape"]
    names = (read.keys() & told.keys()) - {"served_model_name"}
    assert names >= {"model", "port", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "enforce_eager"}
    assert {name: read[name] for name in names} == {name: told[name] for name in names}
    assert [read["served_model_name"]] == told["served_model_name"]
    assert read["faults"] == []
    parallel = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
    assert [read[name] for name in parallel] == [told.get(name, 1) for name in parallel]


@serving
def test_it_serves_and_says_so(seen: Seen) -> None:
    assert seen.value("budget_engine_phase", engine=seen.name, phase="serving") == 1
    assert seen.value("budget_engine_up", engine=seen.name) == 1
    assert seen.value("budget_engine_info", engine=seen.name, version=VERSION, model=f"served-{seen.name}") == 1
    assert sum(seen.view["failures"].values()) == 0
    started = seen.value("budget_engine_start_time_seconds", engine=seen.name)
    assert started is not None
    # procfs counts from a boot time in whole seconds.
    assert abs(started - seen.engine.started) < 5


@serving
def test_tokens_and_concurrency_are_the_engine_s_own(seen: Seen) -> None:
    rows = seen.own("vllm:cache_config_info")
    assert len(rows) == seen.view["shape"]["data_parallel_size"]
    for row in rows:
        assert seen.value("budget_reported_kv_pool_tokens", engine=seen.name) == int(row["kv_cache_size_tokens"])
        # Its log has two decimals.
        assert seen.value("budget_reported_kv_max_concurrency_ratio", engine=seen.name) == pytest.approx(
            float(row["kv_cache_max_concurrency"]), abs=0.00501
        )


@serving
def test_blocks_tokens_and_concurrency_by_the_model_s_geometry_are_the_engine_s_own(seen: Seen) -> None:
    """From flags and config.json alone: nothing the engine says of its KV cache goes in but its version."""
    (found,) = seen.found
    flags = shape(found.argv, found.environ)
    ranks = [RankInput(placement["rank"], 64 * GIB, platform="host") for placement in seen.view["placements"]]
    ledger = budget.compute(flags, ranks, BootReport(version=VERSION, device_type="cpu"), None, found.model_files)
    for row in seen.own("vllm:cache_config_info"):
        # The label counts the blocks of all replicas.
        assert (ledger.kv_blocks or 0) * flags.data_parallel_size == int(row["num_gpu_blocks"])
        assert ledger.kv_pool_tokens == int(row["kv_cache_size_tokens"])
        assert ledger.kv_concurrency == pytest.approx(float(row["kv_cache_max_concurrency"]))
    assert (ledger.kv_pool_tokens_source, ledger.kv_pool_tokens_rounding) == ("geometry", 0)


@serving
def test_its_budget_on_the_host_s_memory_is_made_of_the_engine_s_own_figures(seen: Seen) -> None:
    """Only what is set in bytes: the node's size moves where memory is plugged in, and with it every share of it."""
    law = {"law": "vllm_cpu", "version": VERSION, "assumed": "false"}
    assert seen.value("budget_law_info", engine=seen.name, **law) == 1
    words = re.findall(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache on node (\d+)", seen.engine.log)
    assert words
    for row in seen.own("vllm:cache_config_info"):
        for placement in seen.view["placements"]:
            rank = placement["rank"]
            pool = seen.value("budget_model_kv_pool_bytes", engine=seen.name, rank=rank)
            assert pool == int(row["kv_cache_memory_bytes"])
            assert {f"{pool / GIB:.2f}"} == {f"{float(said):.2f}" for said, _ in words}
            # Beside an explicit pool the engine does not say what the rest takes: no margin can be foretold.
            assert seen.value("budget_model_margin_bytes", engine=seen.name, rank=rank) is None
            assert placement["device"] in {f"cpu/node{node}" for _, node in words}


@serving
def test_what_its_workers_hold_of_the_host_is_told_by_rank(seen: Seen) -> None:
    several = len(list(Path("/sys/devices/system/node").glob("node[0-9]*/meminfo"))) > 1
    for placement in seen.view["placements"]:
        used = seen.value("budget_rank_memory_used_bytes", engine=seen.name, rank=placement["rank"])
        # Of replicas it is not known whose a process is, and a process is not divided by nodes.
        assert (used is None) == (several or seen.view["shape"]["data_parallel_size"] > 1)
        # It may be ten seconds old, when the worker had hardly begun.
        assert used is None or 10 * MIB < used < 10 * GIB


@serving
def test_nothing_it_wrote_was_left_unread(seen: Seen) -> None:
    assert seen.value("budget_exporter_unparsed_lines_total", source="file") == 0


@only("tp2")
def test_two_tensor_parallel_ranks_are_told_by_their_titles(seen: Seen) -> None:
    (found,) = seen.found
    assert {w.title: w.rank for w in found.workers if "Worker" in w.title} == {
        "VLLM::Worker_TP0": 0,
        "VLLM::Worker_TP1": 1,
    }
    assert [placement["rank"] for placement in seen.view["placements"]] == ["0", "1"]
    assert set(seen.view["report"]["ranks"]) == {"0", "1"}


@only("dp2")
def test_two_replicas_are_one_engine(seen: Seen) -> None:
    (found,) = seen.found
    titles = [worker.title for worker in found.workers]
    assert {"VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1", "VLLM::DPCoordinator", "VLLM::APIServer_0"} <= set(titles)
    assert [placement["rank"] for placement in seen.view["placements"]] == ["d0.0", "d1.0"]


@pytest.mark.parametrize(
    ("seen", "cause", "phase"),
    [
        ("too_much", "budget_above_free", "starting"),
        ("too_long", "kv_below_max_len", "allocating_kv"),
        ("too_large", "kv_alloc_oom", "allocating_kv"),
    ],
    indirect=["seen"],
)
def test_a_boot_that_fails_is_counted_with_its_cause(seen: Seen, servers: Scene, cause: str, phase: str) -> None:
    assert seen.status == 1
    until(
        lambda: servers.exporter.value("budget_engine_failures_total", engine=seen.name, cause=cause) == 1,
        "it is counted",
    )
    view = servers.view(seen.name)
    assert sum(view["failures"].values()) == 1
    assert (view["last_failure"]["cause"], view["last_failure"]["phase"]) == (cause, phase)
    assert seen.engine.started - 1 < view["last_failure"]["at"] < seen.engine.started + 300
    tried = view["last_failure"]["tried"]
    assert (tried and tried["bytes"]) == (100 * GIB if cause == "kv_alloc_oom" else None)


@only("tp2")
def test_a_killed_worker_is_seen_in_the_next_scan(
    seen: Seen, servers: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = seen.killed
    assert killed is not None
    assert killed.scan is None or killed.worker not in {worker.pid for worker in killed.scan.workers}
    assert "died unexpectedly" in seen.engine.log
    # The server ends with 0, as after a stop: only its log tells a death from that.
    assert seen.status == 0
    view = servers.view("tp2")
    assert view["failures"]["unknown"] == sum(view["failures"].values()) == 1
    assert (view["last_failure"]["cause"], view["last_failure"]["phase"]) == ("unknown", "serving")
    assert view["last_failure"]["rank"] == 1
    with capsys.disabled():
        sys.stdout.write(
            f"\na worker killed: off the exporter's list after {killed.listed:.2f} s, the death counted after "
            f"{killed.told:.2f} s, its server ended after {killed.ended:.2f} s and was down after {killed.down:.2f} s\n"
        )


@pytest.mark.parametrize("seen", [name for name, plan in PLANS.items() if plan.end == "stop"], indirect=True)
def test_a_stop_by_hand_is_no_death(seen: Seen, servers: Scene) -> None:
    # A death may count as told up to 15 s after its last line.
    until(lambda: time.time() > seen.ended_at + 20, "the log had its time", 30, pause=1)
    view = servers.view(seen.name)
    assert (view["phase"], view["up"]) == ("stopped", False)
    assert sum(view["failures"].values()) == 0
    assert view["last_failure"] is None
