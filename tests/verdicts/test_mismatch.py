"""Only figures of different origin are compared, and only beyond what rounding and fit explain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import budget
from budget_exporter.facts.boot import BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput, RankLedger
from budget_exporter.units import MIB, printed_bytes
from budget_exporter.verdicts.mismatch import comparisons, mismatch
from tests.budget.offload import PLAN_G, PUBLIC_PLAN, SHAPE, SIZE, first, gib, said

PLAIN = Shape(utilization=0.9, tensor_parallel_size=2)
PARTS = RankFacts(weights=gib("14.99"), activation=gib("1.20"), non_torch=gib("0.35"))


def apart(rank: RankLedger, facts: RankFacts) -> list[str]:
    return [comparison.name for comparison in comparisons(rank, facts) if comparison.apart]


def with_plan(plan: Plan) -> tuple[RankLedger, RankFacts]:
    return first(report=said(plan)), RankFacts(plan=plan)


def test_the_plan_of_shape_g_agrees_with_registry_and_flags() -> None:
    rank, facts = with_plan(PLAN_G)
    assert [comparison.name for comparison in comparisons(rank, facts)] == [
        "weights and kv_reserve",
        "cuda_graphs",
        "runtime_overhead",
        "arena",
        "arena",
        "requested",
    ]
    assert mismatch(rank, facts) is False


def test_a_plan_is_no_test_of_terms_that_were_taken_from_it() -> None:
    """The law took every charge from the plan: without a registry only its rest and the request can be compared."""
    shape = replace(SHAPE, utilization=0.90, max_model_len=65_536)
    rank = budget.compute(shape, [RankInput("0", SIZE)], said(PUBLIC_PLAN), None).ranks["0"]
    names = [comparison.name for comparison in comparisons(rank, RankFacts(plan=PUBLIC_PLAN))]
    assert names == ["arena", "requested"]


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        (replace(PLAN_G, non_expert=gib("4.47"), arena=gib("19.64")), ["weights and kv_reserve", "arena"]),
        (replace(PLAN_G, cuda_graphs=gib("0.40"), arena=gib("17.44")), ["cuda_graphs", "arena"]),
        (replace(PLAN_G, runtime_overhead=gib("8.48"), arena=gib("14.54")), ["runtime_overhead", "arena"]),
        (replace(PLAN_G, arena=gib("17.00")), ["arena", "arena"]),
        (replace(PLAN_G, budget=gib("28.67")), ["requested"]),
    ],
)
def test_what_differs_is_named(broken: Plan, names: list[str]) -> None:
    rank, facts = with_plan(broken)
    assert apart(rank, facts) == names
    assert mismatch(rank, facts) is True


def test_mamba_pages_may_sit_with_the_weights_or_in_the_reserve() -> None:
    moved = replace(PLAN_G, non_expert=gib("6.31"), kv_reserve=gib("1.89"))
    assert mismatch(*with_plan(moved)) is False


def test_a_hundredth_of_a_gib_and_the_rounding_are_no_difference() -> None:
    rank, facts = with_plan(replace(PLAN_G, runtime_overhead=gib("5.26"), arena=gib("17.76")))
    assert mismatch(rank, facts) is False
    rank, facts = with_plan(replace(PLAN_G, runtime_overhead=gib("5.27"), arena=gib("17.75")))
    assert apart(rank, facts) == ["runtime_overhead", "arena"]


def test_a_plan_cut_short_is_compared_where_it_goes() -> None:
    rank, facts = with_plan(Plan(cuda_graphs=gib("0.40")))
    assert [comparison.name for comparison in comparisons(rank, facts)] == ["cuda_graphs"]
    assert mismatch(rank, facts) is True


def test_nothing_to_compare_is_neither() -> None:
    assert mismatch(first(), RankFacts()) is None


def plain(shape: Shape, facts: RankFacts) -> RankLedger:
    report = BootReport(version="0.13.0", common=facts)
    return budget.compute(shape, [RankInput("0", SIZE)], report, None).ranks["0"]


@pytest.mark.parametrize(("printed", "differs"), [("12.13", False), ("12.15", False), ("12.16", True), ("11.00", True)])
def test_a_computed_pool_is_held_against_the_printed_one(printed: str, differs: bool) -> None:
    """28.67 GiB less 16.54 of charges, each printed to a hundredth: 12.13 GiB, give or take 0.02."""
    assert mismatch(plain(PLAIN, PARTS), replace(PARTS, kv_available=gib(printed))) is differs


def test_an_open_partition_has_no_pool_to_compare() -> None:
    facts = RankFacts(weights=gib("14.99"), kv_available=gib("12.13"))
    assert mismatch(plain(PLAIN, facts), facts) is None


def test_a_printed_request_is_held_against_the_flags() -> None:
    for text, differs in (("28.67", False), ("29.00", True)):
        facts = replace(PARTS, requested=gib(text))
        assert mismatch(plain(PLAIN, PARTS), facts) is differs


def test_a_request_of_a_printed_share_may_be_as_far_off_as_the_share() -> None:
    facts = replace(PARTS, requested=gib("28.68"))
    rank = plain(PLAIN, PARTS)
    assert mismatch(rank, facts) is True
    assert mismatch(replace(rank, requested_rounding=printed_bytes("0.01")), facts) is False


def test_a_printed_cap_on_kv_is_held_against_the_law_s() -> None:
    for text, differs in (("6.48", False), ("6.50", True)):
        rank = replace(plain(PLAIN, RankFacts()), kv_cap=printed_bytes("6.483"))
        assert mismatch(rank, RankFacts(kv_cap=gib(text))) is differs
    assert mismatch(plain(PLAIN, RankFacts()), RankFacts(kv_cap=gib("6.48"))) is None


def test_an_explicit_pool_is_held_against_the_printed_reservation_and_not_against_the_request() -> None:
    shape = replace(PLAIN, kv_cache_memory_bytes=printed_bytes("2.95"))
    closed = plain(shape, PARTS)
    for text, differs in (("2.95", False), ("3.95", True)):
        facts = replace(PARTS, kv_reserved=gib(text), requested=gib("28.67"), kv_available=gib("9.99"))
        assert mismatch(closed, facts) is differs
    assert mismatch(plain(shape, RankFacts()), RankFacts(requested=gib("1.00"))) is None


def test_a_pool_capped_at_its_reserve_is_not_explicit() -> None:
    capped = first(replace(SHAPE, kv_cache_memory_bytes=None))
    assert mismatch(capped, RankFacts(kv_reserved=gib("9.00"))) is None
    overridden = first(replace(SHAPE, num_gpu_blocks_override=5, kv_cache_memory_bytes=5 * MIB))
    assert mismatch(overridden, RankFacts(kv_reserved=gib("9.00"))) is None


def test_what_multimodal_decoding_takes_of_an_explicit_pool_is_no_difference() -> None:
    shape = replace(PLAIN, kv_cache_memory_bytes=printed_bytes("2.95"))
    facts = RankFacts(multimodal=gib("0.50"), kv_available=gib("2.45"), kv_reserved=gib("2.95"))
    rank = plain(shape, facts)
    assert rank.kv_pool is not None
    assert rank.kv_pool.bytes == printed_bytes("2.95") - gib("0.50").bytes
    assert mismatch(rank, facts) is False
    assert mismatch(rank, replace(facts, kv_reserved=gib("2.45"))) is True


def test_what_multimodal_decoding_takes_of_a_computed_pool_is_no_difference() -> None:
    facts = replace(PARTS, multimodal=gib("0.50"), kv_available=gib("11.63"))
    assert mismatch(plain(PLAIN, facts), facts) is False
    assert mismatch(plain(PLAIN, facts), replace(facts, kv_available=gib("12.13"))) is True


def test_a_remembered_pool_is_not_held_against_the_request() -> None:
    facts = replace(PARTS, kv_reserved=gib("2.95"), requested=gib("28.67"))
    rank = plain(PLAIN, facts)
    assert rank.requested != gib("28.67").bytes
    assert mismatch(rank, facts) is None
