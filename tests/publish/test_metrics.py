"""Each Snapshot against its golden exposition, byte for byte; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.facts.boot import CAUSES, PHASES, BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Pending, Shape
from budget_exporter.facts.ledger import RankLedger, Term
from budget_exporter.facts.snapshot import EngineState, Snapshot
from budget_exporter.publish.catalogue import CATALOGUE
from budget_exporter.publish.exposition import Exposition
from budget_exporter.publish.metrics import families
from budget_exporter.publish.model_metrics import utilization_of
from tests.publish import snapshots
from tests.publish.snapshots import SIZE, gib

GOLDEN = Path(__file__).parent / "golden"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(snapshot: Snapshot) -> Series:
    return {(s.name, frozenset(s.labels.items())): s.value for f in families(snapshot) for s in f.samples}


def of(found: Series, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    wanted = set(labels.items())
    return {have: value for (metric, have), value in found.items() if metric == name and wanted <= have}


def value(found: Series, name: str, **labels: str) -> float:
    (one,) = of(found, name, **labels).values()
    return one


def with_engine(engine: EngineState) -> Snapshot:
    return replace(snapshots.healthy(), engines=(engine,))


@pytest.fixture
def engine() -> EngineState:
    return snapshots.healthy().engines[0]


@pytest.mark.parametrize("name", snapshots.ALL)
def test_exposition_equals_its_golden(name: str) -> None:
    text = Exposition(()).render(snapshots.ALL[name]()).text
    golden = GOLDEN / f"{name}.prom"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_bytes(text)
    assert text == golden.read_bytes()


def test_goldens_have_no_strangers() -> None:
    assert {path.stem for path in GOLDEN.glob("*.prom")} == set(snapshots.ALL)


def test_the_snapshots_exercise_all_of_the_catalogue_that_a_snapshot_can_hold() -> None:
    seen = {name for build in snapshots.ALL.values() for name, _ in series(build())}
    unseen = {name for name in CATALOGUE if name not in seen}
    # Facts no Snapshot has a field for yet: they must be absent, and a new field must come with its series.
    assert unseen == {
        "budget_device_memory_evicted_bytes",
        "budget_device_foreign_memory_bytes",
        "budget_device_foreign_processes",
        "budget_device_memory_reserved_bytes",
        "budget_device_memory_allocator_used_bytes",
        "budget_device_evicted_seconds_total",
        "budget_device_cross_check_difference_bytes",
        "budget_device_unattributed_memory_bytes",
        "budget_rank_memory_used_bytes",
        "budget_rank_memory_used_high_water_bytes",
        "budget_rank_gtt_used_bytes",
        "budget_engine_health",
        "budget_engine_pending_flag",
        "budget_engine_floor_reached_seconds",
        "budget_engine_pending_flags",
        "budget_neuron_vnc_memory_used_bytes",
        "budget_neuron_vnc_memory_limit_bytes",
    }


def test_the_parts_of_a_rank_sum_to_its_request() -> None:
    found = series(snapshots.healthy())
    charges = sum(of(found, "budget_model_charge_bytes", rank="0").values())
    arena = value(found, "budget_model_arena_bytes", rank="0")
    assert charges + arena == value(found, "budget_model_requested_bytes", rank="0")


def test_the_cap_on_kv_is_of_each_rank_and_the_minimum_of_the_engine() -> None:
    found = series(snapshots.neuron())
    cap = value(found, "budget_neuron_kv_cap_bytes", rank="0")
    charges = sum(of(found, "budget_model_charge_bytes", rank="0").values())
    assert cap == value(found, "budget_model_kv_pool_bytes", rank="0")
    assert charges + cap == value(found, "budget_model_requested_bytes", rank="0")
    assert list(of(found, "budget_neuron_kv_minimum_bytes").values()) == [1 << 30]
    other = series(snapshots.plain())
    assert not of(other, "budget_neuron_kv_cap_bytes")
    assert not of(other, "budget_neuron_kv_minimum_bytes")


def test_without_an_arena_the_kv_pool_is_the_rest_and_they_sum_too() -> None:
    found = series(snapshots.plain())
    charges = sum(of(found, "budget_model_charge_bytes", rank="0").values())
    pool = value(found, "budget_model_kv_pool_bytes", rank="0")
    assert charges + pool == value(found, "budget_model_requested_bytes", rank="0")
    assert not of(found, "budget_model_arena_bytes")


def test_a_pool_whose_blocks_the_flags_override_is_no_kv_pool(engine: EngineState) -> None:
    (plain,) = snapshots.plain().engines
    assert plain.ledger is not None
    ledger = replace(plain.ledger, ranks={"0": replace(plain.ledger.ranks["0"], kv_pool=None)})
    assert not of(series(with_engine(replace(plain, ledger=ledger))), "budget_model_kv_pool_bytes")


def test_two_terms_of_one_component_are_summed_and_keep_both_origins(engine: EngineState) -> None:
    assert engine.ledger is not None
    extra = Term("weights", 7, "measured")
    rank = replace(engine.ledger.ranks["0"], charges=(*engine.ledger.ranks["0"].charges, extra))
    found = series(with_engine(replace(engine, ledger=replace(engine.ledger, ranks={"0": rank}))))
    assert value(found, "budget_model_charge_bytes", rank="0", component="weights") == gib("6.34").bytes + 7
    sources = {dict(labels)["source"] for labels in of(found, "budget_model_charge_info", component="weights")}
    assert sources == {"log", "measured"}


def test_signed_figures_stay_signed() -> None:
    found = series(snapshots.healthy())
    assert value(found, "budget_reported_graph_capture_bytes", rank="1") == gib("-0.06").bytes < 0
    assert value(found, "budget_graph_drift_bytes", rank="1") < 0
    assert value(found, "budget_estimator_gap_bytes", rank="1") == -1_000_000
    assert value(series(snapshots.plain()), "budget_model_margin_bytes") == -5


def test_a_high_water_mark_above_the_size_gives_a_negative_margin() -> None:
    state = snapshots.device(snapshots.CARDS[0], 5, SIZE + 3)
    found = series(replace(snapshots.empty(), devices=(state,)))
    assert value(found, "budget_device_margin_bytes") == -3


def test_closed_lists_start_at_zero_with_the_engine() -> None:
    found = series(snapshots.healthy())
    assert {dict(k)["cause"]: v for k, v in of(found, "budget_engine_failures_total").items()} == dict.fromkeys(
        CAUSES, 0
    )
    phases = {dict(k)["phase"]: v for k, v in of(found, "budget_engine_phase").items()}
    assert phases == {phase: float(phase == "serving") for phase in PHASES}
    assert sum(of(found, "budget_engine_unit_state").values()) == 1


def test_what_could_not_be_evaluated_has_no_series() -> None:
    found = series(snapshots.healthy())
    reasons = {dict(k)["reason"]: v for k, v in of(found, "budget_engine_knife_edge").items()}
    assert "compile_cap" not in reasons
    assert reasons["measured_margin"] == 0
    assert not of(found, "budget_engine_finding", finding="leak")


def test_an_engine_nothing_is_known_of_has_only_its_counters_and_states() -> None:
    found = series(snapshots.crash_loop())
    engine_series = {name for name, labels in found if ("engine", "vllm-qwen") in labels}
    assert engine_series == {
        "budget_engine_info",
        "budget_engine_up",
        "budget_engine_restarts_total",
        "budget_engine_nrestarts",
        "budget_engine_unit_state",
        "budget_engine_phase",
        "budget_engine_phase_start_time_seconds",
        "budget_engine_failures_total",
        "budget_engine_last_failure_info",
        "budget_engine_last_failure_free_bytes",
        "budget_engine_last_failure_timestamp_seconds",
        "budget_engine_finding",
        "budget_law_margin_floor_bytes",
    }
    assert value(found, "budget_engine_up") == 0
    assert value(found, "budget_engine_last_failure_info", rank="", cause="budget_above_free") == 1


def test_up_exists_only_for_engines_expected_to_run() -> None:
    assert not of(series(snapshots.plain()), "budget_engine_up")


def test_a_rank_without_a_device_is_not_joined_to_one() -> None:
    assert not of(series(snapshots.plain()), "budget_rank_info")
    assert len(of(series(snapshots.healthy()), "budget_rank_info")) == 2


def test_flags_are_shown_as_typed_and_empty_where_not_given(engine: EngineState) -> None:
    (labels,) = of(series(with_engine(engine)), "budget_engine_flags_info")
    assert dict(labels)["gpu_memory_utilization"] == "0.982"
    assert dict(labels)["block_size"] == ""
    assert not of(series(with_engine(replace(engine, shape=None))), "budget_engine_flags_info")


def test_max_model_len_left_to_the_engine_is_what_the_engine_resolved(engine: EngineState) -> None:
    assert engine.shape is not None
    assert value(series(snapshots.plain()), "budget_engine_max_model_len_tokens") == 32_768
    both = replace(engine, shape=replace(engine.shape, max_model_len=1000))
    assert value(series(with_engine(both)), "budget_engine_max_model_len_tokens") == 1000


def test_a_plan_block_replaces_the_plain_lines() -> None:
    found = series(snapshots.healthy())
    # The report also holds "24.11 GiB of weights", which is with the arena.
    assert value(found, "budget_reported_charge_bytes", rank="0", component="weights") == gib("6.34").bytes
    components = {dict(k)["component"] for k in of(found, "budget_reported_charge_bytes", rank="0")}
    assert components == {"weights", "kv_reserve", "cuda_graphs", "runtime_overhead"}


def test_a_plan_row_that_was_not_printed_is_absent(engine: EngineState) -> None:
    report = BootReport(common=RankFacts(weights=gib("24.11"), plan=Plan(kv_reserve=gib("1.86"))))
    found = series(with_engine(replace(engine, report=report)))
    components = {dict(k)["component"] for k in of(found, "budget_reported_charge_bytes", rank="0")}
    assert components == {"kv_reserve"}
    assert not of(found, "budget_reported_arena_bytes")


@pytest.mark.parametrize("applied", [False, None])
def test_an_estimate_that_was_not_charged_is_no_charge(engine: EngineState, applied: bool | None) -> None:
    report = BootReport(common=RankFacts(graph_estimate=gib("0.52")), graph_charge_applied=applied)
    found = series(with_engine(replace(engine, report=report)))
    assert not of(found, "budget_reported_charge_bytes")
    assert value(found, "budget_engine_graph_estimate_bytes", rank="0") == gib("0.52").bytes
    assert len(of(found, "budget_engine_graph_charge_applied")) == (0 if applied is None else 2)


def test_flags_that_wait_for_a_restart_are_counted_and_named(engine: EngineState) -> None:
    made = series(with_engine(replace(engine, pending=Pending(("max-model-len", "tensor-parallel-size")))))
    assert value(made, "budget_engine_pending_flags", engine=engine.name) == 2
    named = of(made, "budget_engine_pending_flag", engine=engine.name)
    assert {dict(labels)["flag"]: one for labels, one in named.items()} == {
        "max-model-len": 1,
        "tensor-parallel-size": 1,
    }
    none = series(with_engine(replace(engine, pending=Pending(()))))
    assert value(none, "budget_engine_pending_flags") == 0
    assert not of(none, "budget_engine_pending_flag")
    assert series(with_engine(engine)) == series(with_engine(replace(engine, pending=Pending(None, "a script"))))


def test_an_engine_known_only_by_its_log_has_the_ranks_its_flags_ask_for() -> None:
    (engine,) = snapshots.crash_loop().engines
    logged = replace(
        engine, report=BootReport(common=RankFacts(weights=gib("3.00"))), shape=Shape(tensor_parallel_size=2)
    )
    ranks = {dict(k)["rank"] for k in of(series(with_engine(logged)), "budget_reported_charge_bytes")}
    assert ranks == {"0", "1"}


def test_a_line_with_a_plain_number_is_given_to_no_data_parallel_rank() -> None:
    (engine,) = snapshots.plain().engines
    assert engine.ledger is not None
    rank = engine.ledger.ranks["0"]
    ledger = replace(engine.ledger, ranks={"d0.0": replace(rank, rank="d0.0"), "d1.0": replace(rank, rank="d1.0")})
    report = BootReport(common=RankFacts(activation=gib("1.00")), ranks={0: RankFacts(weights=gib("3.00"))})
    found = series(with_engine(replace(engine, ledger=ledger, report=report, placements=())))
    components = {(dict(k)["rank"], dict(k)["component"]) for k in of(found, "budget_reported_charge_bytes")}
    assert components == {("d0.0", "activation"), ("d1.0", "activation")}
    assert len(of(found, "budget_model_requested_bytes")) == 2


def test_a_share_that_is_the_flag_to_the_byte_is_the_flag() -> None:
    rank = snapshots.offload_ledger("0", 0.982, 0)
    assert utilization_of(rank, 0.982) == 0.982
    assert rank.requested / SIZE != 0.982
    assert utilization_of(rank, 0.9) == utilization_of(rank, None) == rank.requested / SIZE
    assert utilization_of(RankLedger("0", 0, 0, (), None), 0.9) is None


def test_a_source_that_has_not_run_has_neither_failed_nor_succeeded() -> None:
    found = series(snapshots.empty())
    assert not of(found, "budget_source_success")
    assert not of(found, "budget_source_duration_seconds")
    assert not of(found, "budget_source_last_success_timestamp_seconds")
    assert value(found, "budget_source_runs_total", source="amdgpu") == 0


def test_a_source_that_timed_out_in_its_first_run_has_failed() -> None:
    before = snapshots.empty()
    hung = replace(before.sources[0], settled=True)
    found = series(replace(before, sources=(hung,)))
    assert value(found, "budget_source_success", source="amdgpu") == 0
