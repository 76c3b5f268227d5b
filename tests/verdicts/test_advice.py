"""What to change: the numbers of each lever, and what is never advised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, Limit, RankLedger, Term
from budget_exporter.facts.verdict import Advice, Floors, Policy, RankVerdict, Verdict
from budget_exporter.units import GIB, MIB
from budget_exporter.verdicts.advice import UNREACHED, advise
from budget_exporter.verdicts.advice_case import Case

SIZE = 32 * GIB
POLICY = Policy(Floors(critical=256 * MIB, warning=768 * MIB))


def rank(name: str = "0", *, pool: str = "kv_pool", pool_bytes: int = 4 * GIB, **changes: Any) -> RankLedger:
    term = Term(pool, pool_bytes, "flag")
    return RankLedger(
        name,
        SIZE,
        changes.pop("requested", 30 * GIB),
        charges=changes.pop("charges", ()),
        pool=term,
        kv_pool=changes.pop("kv_pool", term),
        **changes,
    )


def case(
    holds: Mapping[str, bool],
    *ranks: RankLedger,
    margins: Mapping[str, int] | None = None,
    report: BootReport | None = None,
    shape: Shape | None = None,
    contract: int | None = None,
    promised: int | None = None,
    law: str = "vllm",
    **ledger: Any,
) -> Case:
    verdict = Verdict(
        ranks={name: RankVerdict(name, margin_high_water=left) for name, left in (margins or {}).items()},
        knife_edge=holds,  # type: ignore[arg-type]  # reasons and findings are asked alike
        contract_tokens=promised if promised is not None else contract,
    )
    policy = Policy(POLICY.floors, contract_tokens=promised)
    made = Ledger(law, "0.19.0", assumed=False, ranks={r.rank: r for r in ranks}, **ledger) if ranks else None
    return Case(verdict, policy, made, report, shape)


def only(asked: Case) -> tuple[str, str]:
    (found,) = advise(asked)
    return found.lever, found.value


def test_nothing_is_advised_where_nothing_holds() -> None:
    assert advise(case({"measured_margin": False}, rank())) == ()


def test_utilization_above_the_limit_is_set_to_what_certainly_passes() -> None:
    limited = rank(limit=Limit(0.982, 0.981, 0.983, "log"))
    assert only(case({"utilization_limit": True}, limited)) == ("--gpu-memory-utilization", "0.981")
    assert only(case({"utilization_limit": True}, rank())) == ("", "")


@pytest.mark.parametrize("low", [0.0, 0.005, 0.25])
def test_no_utilization_is_advised_that_has_no_room_for_the_engine_s_own_charges(low: float) -> None:
    """0.41 GiB of 79 are free because an earlier life holds the rest: no share of that starts an engine."""
    held = rank(limit=Limit(low, low, low, "log"), charges=(Term("weights", 8 * GIB, "log"),))
    assert only(case({"utilization_limit": True}, held)) == ("", "")


def test_a_margin_comes_out_of_the_pool_where_the_contract_allows_it() -> None:
    report = BootReport(kv_tokens=100_000)
    asked = case({"measured_margin": True}, rank(), margins={"0": 512 * MIB}, report=report, contract=90_000)
    (advice,) = advise(asked)
    assert (advice.lever, advice.value) == ("--gpu-memory-utilization", "0.929")
    freed = 30 * GIB - math.ceil(SIZE * 0.929)
    assert freed >= 256 * MIB
    assert f"{100_000 * (4 * GIB - freed) // (4 * GIB):,} tokens" in advice.sentence


def test_a_pool_that_would_break_its_contract_is_not_taken_from() -> None:
    report = BootReport(kv_tokens=100_000)
    asked = case({"measured_margin": True}, rank(), margins={"0": 0}, report=report, promised=99_000)
    assert advise(asked) == (Advice("measured_margin", "", "", UNREACHED),)
    lever, value = only(case({"measured_margin": True}, rank(), margins={"0": 0}, report=report, contract=99_000))
    assert lever == "--gpu-memory-utilization, --max-model-len"
    ratio, length = value.split(", ")
    assert float(ratio) == 0.914
    left = 100_000 * (4 * GIB - (30 * GIB - math.ceil(SIZE * 0.914))) // (4 * GIB)
    assert int(length) == left // 16 * 16


def test_an_explicit_pool_is_made_smaller_itself() -> None:
    shape = Shape(kv_cache_memory_bytes=4 * GIB)
    held = {"measured_margin": True}
    asked = case(held, rank(), margins={"0": 512 * MIB}, shape=shape)
    assert only(asked) == ("--kv-cache-memory-bytes", str(4 * GIB - 256 * MIB))
    small = case(held, rank(), margins={"0": 0}, shape=Shape(kv_cache_memory_bytes=512 * MIB))
    assert only(small) == ("", "")
    contract = case(
        held, rank(), margins={"0": 0}, shape=shape, report=BootReport(kv_tokens=16), contract=16, promised=None
    )
    assert only(contract) == ("", "")


def test_an_arena_gives_without_asking_the_contract() -> None:
    ranks = [rank("0", pool="arena", pool_bytes=17 * GIB), rank("1", pool="arena", pool_bytes=17 * GIB)]
    asked = case({"predicted_margin": True}, *ranks, report=BootReport(kv_tokens=5), promised=5, law="expert_offload")
    assert advise(asked) == ()  # neither measured nor predicted: nothing to reckon with
    asked = case({"measured_margin": True}, *ranks, margins={"0": 700 * MIB, "1": 110 * MIB})
    (advice,) = advise(asked)
    assert (advice.lever, advice.value) == ("--gpu-memory-utilization", "0.917")
    assert "arena" in advice.sentence


def test_a_predicted_margin_is_asked_only_where_none_was_measured() -> None:
    held = {"predicted_margin": True, "measured_margin": False}
    assert advise(case(held, rank(margin=0), margins={"0": 2 * GIB})) == ()
    assert only(case({"predicted_margin": True}, rank(margin=0))) == ("--gpu-memory-utilization", "0.914")


@pytest.mark.parametrize(
    "ranks",
    [
        (rank(pool_bytes=512 * MIB),),
        (rank(requested=100 * MIB),),
        (RankLedger("0", SIZE, 30 * GIB, (), None),),
    ],
)
def test_what_the_pool_does_not_have_it_can_not_give(ranks: tuple[RankLedger, ...]) -> None:
    assert only(case({"measured_margin": True}, *ranks, margins={"0": 0})) == ("", "")


def test_a_contract_is_met_by_a_larger_pool_only_where_the_device_has_the_memory() -> None:
    report = BootReport(kv_tokens=80_000)
    limit = Limit(0.98, 0.98, 0.98, "log")
    held = {"kv_below_contract": True}
    room = {"0": 2 * GIB}
    found = case(held, rank(limit=limit), margins=room, report=report, promised=100_000)
    assert only(found) == ("--gpu-memory-utilization", "0.969")
    explicit = case(
        held, rank(), margins=room, report=report, promised=100_000, shape=Shape(kv_cache_memory_bytes=4 * GIB)
    )
    assert only(explicit) == ("--kv-cache-memory-bytes", str(5 * GIB))
    assert only(case(held, rank(limit=limit), margins={"0": GIB}, report=report, promised=100_000)) == ("", "")
    assert only(
        case(held, rank(limit=Limit(0.95, 0.95, 0.95, "log")), margins=room, report=report, promised=100_000)
    ) == ("", "")
    assert only(case(held, rank(), margins=room, report=report, promised=100_000)) == ("", "")
    assert only(case(held, rank(limit=limit), report=report, promised=100_000)) == ("", "")


def test_a_contract_of_one_request_can_be_made_shorter_but_not_where_the_fork_caps_kv() -> None:
    held, report = {"kv_below_contract": True}, BootReport(kv_tokens=80_007)
    assert only(case(held, rank(), report=report, contract=100_000)) == ("--max-model-len", "80000")
    arena = rank(pool="arena")
    assert only(case(held, arena, margins={"0": 9 * GIB}, report=report, contract=100_000)) == ("", "")
    assert only(case(held, rank(), report=BootReport(kv_tokens=15), contract=100_000)) == ("", "")
    assert only(case(held, rank(), contract=100_000)) == ("", "")


def test_a_worker_that_refuses_its_pool_is_given_what_it_asks_for() -> None:
    limit = Limit(0.98, 0.98, 0.98, "log")
    held = {"kv_minimum": True}
    assert only(case(held, rank(limit=limit), kv_min_bytes=5 * GIB)) == ("--gpu-memory-utilization", "0.969")
    assert advise(case(held, rank(kv_pool=None), kv_min_bytes=5 * GIB)) == ()
    assert advise(case(held, rank())) == ()


def test_a_pool_above_the_compile_cap_is_set_to_it() -> None:
    held = {"compile_cap": True}
    assert only(case(held, rank(kv_cap=3 * GIB))) == ("--kv-cache-memory-bytes", str(3 * GIB))
    assert advise(case(held, rank())) == ()


def captured(mib: int, *, estimate: int | None = None, applied: bool | None = None) -> BootReport:
    graphs = None if estimate is None else Printed(estimate * MIB, 0)
    facts = RankFacts(graph_capture=Printed(mib * MIB, 0), graph_estimate=graphs)
    return BootReport(ranks={0: facts}, graph_charge_applied=applied)


def test_the_fork_is_told_a_charge_that_covers_the_capture() -> None:
    held = {"graph_charge_under": True, "capture_over_charge": True}
    shape = Shape(graph_base_mib=0, graph_per_graph_mib=12)
    asked = case(held, rank(pool="arena"), report=captured(900), shape=shape, law="expert_offload", graphs=51)
    assert only(asked) == ("VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB", "18")
    asked = case(held, rank(pool="arena"), report=captured(900), law="expert_offload")
    assert only(asked) == ("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB", "900")
    over = case({"graph_charge_over": True}, rank(pool="arena"), report=captured(100), law="expert_offload")
    assert only(over) == ("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB", "100")


def test_vllm_is_told_to_charge_its_estimate_or_to_ask_for_less() -> None:
    held = {"capture_over_charge": True}
    asked = case(held, rank(), report=captured(900, estimate=600, applied=False))
    assert only(asked) == ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1")
    charged = rank(charges=(Term("cuda_graphs", 388 * MIB, "log"),))
    asked = case(held, charged, report=captured(900, estimate=388, applied=True))
    assert only(asked) == ("--gpu-memory-utilization", "0.921")
    assert advise(case(held, charged, report=captured(900), shape=Shape(kv_cache_memory_bytes=GIB))) == ()
    assert advise(case(held, rank())) == ()
    assert advise(case(held, report=captured(900))) == ()


def test_graphs_are_not_charged_to_a_pool_that_would_break_its_contract() -> None:
    held = {"capture_over_charge": True}
    charged = rank(charges=(Term("cuda_graphs", 388 * MIB, "log"),))
    uncharged = replace(captured(900, estimate=600, applied=False), kv_tokens=100_000)
    lacking = replace(captured(900, estimate=388, applied=True), kv_tokens=100_000)
    for own, report, lever in (
        (rank(), uncharged, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        (charged, lacking, "--gpu-memory-utilization"),
    ):
        assert only(case(held, own, report=report, promised=80_000))[0] == lever
        assert advise(case(held, own, report=report, promised=95_000)) == ()
    assert advise(case(held, rank(pool_bytes=600 * MIB), report=uncharged)) == ()
    assert advise(case(held, RankLedger("0", SIZE, 30 * GIB, (), None), report=uncharged)) == ()
    small = rank(requested=100 * MIB)
    assert advise(case(held, small, report=captured(900))) == ()


def test_a_charge_that_nothing_needs_goes_to_the_pool_where_the_device_can_spare_it() -> None:
    held = {"graph_charge_over": True}
    charged = rank(charges=(Term("cuda_graphs", 3 * GIB, "log"),))
    report = captured(1024)
    asked = case(held, charged, report=report, margins={"0": 3 * GIB})
    assert only(asked) == ("--kv-cache-memory-bytes", str(6 * GIB))
    assert advise(case(held, charged, report=report, margins={"0": 2 * GIB})) == ()
    assert advise(case(held, charged, report=report)) == ()
    assert advise(case(held, rank(), report=report, margins={"0": 3 * GIB})) == ()
    assert advise(case(held, charged, rank("1"), report=report, margins={"0": 3 * GIB})) == ()
    assert advise(case(held, charged)) == ()


def test_what_is_advertised_above_the_pool_is_cut_to_it() -> None:
    held = {"advertised_above_servable": True}
    report = BootReport(kv_concurrency=0.5, max_model_len=1000)
    assert only(case(held, report=report)) == ("--max-model-len", "496")
    assert only(case(held, report=BootReport(kv_tokens=33))) == ("--max-model-len", "32")
    assert advise(case(held, report=BootReport(kv_tokens=15))) == ()
    assert advise(case(held)) == ()


def test_memory_that_could_not_be_locked_and_leaks() -> None:
    assert only(case({"mlock_failed": True})) == ("LimitMEMLOCK", "infinity")
    leaking = Verdict({"0": RankVerdict("0", floor_reached=7200.0)}, {}, {"leak": True})
    (advice,) = advise(Case(leaking, POLICY))
    assert advice == Advice("leak", "", "", "no flag stops a leak: restart within 2.0 h, when the floor is reached")
    assert advise(Case(Verdict({}, {}, {"leak": True}), POLICY)) == ()


def test_a_rank_of_a_replica_has_what_all_of_them_said() -> None:
    report = BootReport(common=RankFacts(graph_capture=Printed(900 * MIB, 0)))
    held = {"capture_over_charge": True}
    assert only(case(held, rank("d0.0"), report=report)) == ("--gpu-memory-utilization", "0.910")


@given(
    margin=st.integers(-2 * GIB, 768 * MIB - 1),
    pool=st.integers(1, 20 * GIB),
    requested=st.integers(21 * GIB, SIZE),
    contract=st.integers(1, 200_000),
)
def test_a_margin_that_is_advised_is_reached_and_its_contract_kept(
    margin: int, pool: int, requested: int, contract: int
) -> None:
    own = rank(pool_bytes=pool, requested=requested)
    asked = case(
        {"measured_margin": True}, own, margins={"0": margin}, report=BootReport(kv_tokens=100_000), promised=contract
    )
    (advice,) = advise(asked)
    if advice.lever:
        freed = requested - math.ceil(SIZE * float(advice.value))
        assert margin + freed >= POLICY.floors.warning
        assert 100_000 * (pool - freed) / pool >= contract
