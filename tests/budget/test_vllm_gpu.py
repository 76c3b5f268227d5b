from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter import budget
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, Limit, RankInput, RankLedger
from budget_exporter.units import GIB, printed_bytes
from tests.budget.offload import gib, said

SIZE = 85_028_896_768
"""What an 80 GB card has: 79.19 GiB."""
FREE = RankInput("0", SIZE, printed_bytes("78.50"), 5_368_709, "log")
SHAPE = Shape(model="org/model", utilization=0.9, max_model_len=8192)
PARTS = RankFacts(weights=gib("14.99"), activation=gib("1.20"), non_torch=gib("0.35"))
CONSUMED = RankFacts(weights=gib("14.99"), consumed=gib("15.40"), activation=gib("1.20"))


def report(version: str, facts: RankFacts, *, charged: bool | None = None) -> BootReport:
    return BootReport(version=version, common=facts, graph_charge_applied=charged)


def ledger(shape: Shape, said_: BootReport | None) -> Ledger:
    return budget.compute(shape, [FREE], said_, None)


def only(shape: Shape, said_: BootReport | None) -> RankLedger:
    return ledger(shape, said_).ranks["0"]


def names(rank: RankLedger) -> list[str]:
    return [term.name for term in rank.charges]


def total(rank: RankLedger) -> int:
    assert rank.pool is not None
    return sum(term.bytes for term in rank.charges) + rank.pool.bytes


# Requested


@pytest.mark.parametrize(
    ("version", "up"), [("0.8.5", False), ("0.9.2", False), ("0.13.0", False), ("0.14.0", True), ("0.33.0", True)]
)
def test_the_request_is_cut_before_0_14_and_rounded_up_from_it(version: str, up: bool) -> None:
    exact = SIZE * 0.9
    assert exact != int(exact)
    requested = only(SHAPE, report(version, RankFacts())).requested
    assert requested == (math.ceil(exact) if up else int(exact))


@pytest.mark.parametrize(("version", "share"), [("0.19.1", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_the_default_utilization_changed_in_0_20(version: str, share: float) -> None:
    found = ledger(replace(SHAPE, utilization=None), report(version, RankFacts()))
    assert found.utilization is not None
    assert (found.utilization_ratio, found.utilization.source) == (share, "default")
    assert found.ranks["0"].requested == found.utilization.bytes
    given = ledger(SHAPE, report(version, RankFacts()))
    assert given.utilization is not None
    assert (given.utilization_ratio, given.utilization.source) == (0.9, "flag")


def test_the_oldest_versions_have_no_check_so_that_only_the_flag_s_range_limits() -> None:
    full = replace(SHAPE, utilization=1.0)
    old = only(full, report("0.9.0.1", RankFacts()))
    assert (old.bootable, old.limit) == (None, Limit(1.0, 1.0, 1.0, "flag"))
    new = ledger(full, report("0.9.2", RankFacts()))
    assert new.ranks["0"].bootable is False
    assert new.ranks["0"].limit is not None
    assert any("free 78.50 < budget 79.19" in note for note in new.notes)


def test_a_law_that_had_to_be_assumed_says_so() -> None:
    assert ledger(SHAPE, None).assumed
    assert "law vllm_gpu is assumed for an unknown version" in ledger(SHAPE, None).notes
    newer = ledger(SHAPE, report("0.40.1", RankFacts()))
    assert (newer.version, newer.assumed) == ("0.40.1", True)
    assert "law vllm_gpu is assumed for version 0.40.1" in newer.notes
    known = ledger(SHAPE, report("0.33.0", RankFacts()))
    assert not known.assumed
    assert not any("assumed for" in note for note in known.notes)


# The partition


@pytest.mark.parametrize("version", ["0.9.2", "0.13.0", "0.17.1"])
def test_before_0_18_graphs_are_not_charged(version: str) -> None:
    facts = replace(PARTS, graph_estimate=gib("0.50"))
    rank = only(SHAPE, report(version, facts))
    assert names(rank) == ["weights", "activation", "non_torch"]
    assert total(rank) == rank.requested
    assert rank.kv_pool == rank.pool
    assert rank.pool is not None
    assert (rank.pool.name, rank.pool.source, rank.pool.lever) == ("kv_pool", "log", "--gpu-memory-utilization")


def test_known_pool_of_a_healthy_0_13_boot() -> None:
    """71.27 requested, 14.99 + 1.20 + 0.35 charged: 54.73 GiB of KV."""
    rank = only(SHAPE, report("0.13.0", PARTS))
    assert rank.pool is not None
    assert rank.pool.bytes / GIB == pytest.approx(71.271 - 16.54, abs=0.01)
    assert rank.pool.rounding == 3 * gib("0.35").rounding


@pytest.mark.parametrize(
    ("version", "said_", "env", "charged"),
    [
        ("0.19.1", None, None, False),
        ("0.19.1", True, None, True),
        ("0.19.1", None, True, True),
        ("0.20.0", None, None, True),
        ("0.20.0", False, None, False),
        ("0.20.0", None, False, False),
        ("0.26.0", False, True, False),
        ("0.26.0", True, False, True),
        ("0.18.0", False, None, False),
        ("0.18.0", True, None, True),
    ],
)
def test_an_estimate_is_charged_by_the_log_else_the_environment_else_the_version(
    version: str, said_: bool | None, env: bool | None, charged: bool
) -> None:
    facts = replace(PARTS, graph_estimate=gib("0.50"))
    rank = only(replace(SHAPE, estimate_graphs=env), report(version, facts, charged=said_))
    assert ("cuda_graphs" in names(rank)) is charged
    assert total(rank) == rank.requested


def test_a_default_that_decides_is_marked_as_assumed() -> None:
    facts = replace(PARTS, graph_estimate=gib("0.50"))
    found = ledger(SHAPE, report("0.20.0", facts))
    assert found.ranks["0"].charges[-1].note == "the graph estimate is assumed to be charged, the version's default"
    assert "rank 0: the graph estimate is assumed to be charged, the version's default" in found.notes
    silent = ledger(SHAPE, report("0.19.1", facts))
    assert "rank 0: the graph estimate is assumed to be not charged, the version's default" in silent.notes
    for known in (
        ledger(SHAPE, report("0.20.0", facts, charged=True)),
        ledger(replace(SHAPE, estimate_graphs=True), report("0.20.0", facts)),
    ):
        assert not any("assumed" in note for note in known.notes)
        assert known.ranks["0"].charges[-1].note == ""


@pytest.mark.parametrize("version", ["0.20.0", "0.27.0"])
def test_a_charge_of_unknown_size_leaves_the_partition_open(version: str) -> None:
    facts = replace(PARTS, consumed=gib("15.40"), graph_capture=gib("0.60"))
    found = ledger(SHAPE, report(version, facts, charged=True))
    rank = found.ranks["0"]
    assert "cuda_graphs" not in names(rank)
    assert (rank.pool, rank.kv_pool, rank.margin) == (None, None, None)
    assert "rank 0: the log does not tell cuda_graphs: the partition is open" in found.notes


@pytest.mark.parametrize("version", ["0.18.0", "0.27.0", "0.33.0"])
def test_where_the_printed_peak_may_hold_the_estimate_only_the_log_can_tell(version: str) -> None:
    facts = replace(PARTS, consumed=gib("15.40"), graph_estimate=gib("0.50"))
    open_ = only(replace(SHAPE, estimate_graphs=True), report(version, facts))
    assert open_.pool is None
    assert only(SHAPE, report(version, facts, charged=True)).pool is not None
    assert only(SHAPE, report(version, facts, charged=False)).pool is not None


def test_enforce_eager_has_no_graphs_to_charge() -> None:
    facts = replace(CONSUMED, graph_estimate=gib("0.50"))
    rank = only(replace(SHAPE, enforce_eager=True), report("0.28.0", facts))
    assert names(rank) == ["consumed", "headroom"]
    assert total(rank) == rank.requested


def test_from_0_27_the_charges_are_what_was_consumed_and_the_headroom() -> None:
    rank = only(SHAPE, report("0.28.0", replace(CONSUMED, graph_estimate=gib("0.50")), charged=True))
    assert names(rank) == ["consumed", "headroom", "cuda_graphs"]
    assert total(rank) == rank.requested
    assert [(term.name, term.bytes) for term in rank.within] == [("weights", gib("14.99").bytes)]
    assert only(SHAPE, report("0.28.0", replace(CONSUMED, weights=None), charged=False)).within == ()


@pytest.mark.parametrize(
    ("version", "facts", "missing"),
    [
        ("0.13.0", replace(PARTS, weights=None), "weights"),
        ("0.13.0", replace(PARTS, activation=None, non_torch=None), "activation, non_torch"),
        ("0.28.0", PARTS, "consumed"),
        ("0.28.0", replace(CONSUMED, activation=None), "headroom"),
    ],
)
def test_a_term_the_log_lacks_is_not_invented(version: str, facts: RankFacts, missing: str) -> None:
    found = ledger(SHAPE, report(version, facts, charged=False))
    rank = found.ranks["0"]
    assert (rank.pool, rank.kv_pool) == (None, None)
    assert f"rank 0: the log does not tell {missing}: the partition is open" in found.notes
    assert found.kv_pool_tokens is None


# An explicit KV size


def test_an_explicit_size_stands_in_place_of_the_utilization() -> None:
    shape = replace(SHAPE, kv_cache_memory_bytes=10 * GIB)
    rank = only(shape, report("0.28.0", CONSUMED, charged=True))
    assert names(rank) == ["consumed", "headroom"]
    assert rank.kv_pool == rank.pool
    assert rank.pool is not None
    assert (rank.pool.bytes, rank.pool.source) == (10 * GIB, "flag")
    assert rank.requested == total(rank) == gib("15.40").bytes + gib("1.20").bytes + 10 * GIB


def test_an_explicit_size_alone_leaves_the_partition_open() -> None:
    rank = only(replace(SHAPE, kv_cache_memory_bytes=10 * GIB), report("0.28.0", RankFacts(graph_capture=gib("0.60"))))
    assert rank.pool is None
    assert rank.kv_pool is not None
    assert rank.kv_pool.bytes == 10 * GIB
    assert (rank.requested, rank.margin) == (math.ceil(SIZE * 0.9), None)


def test_an_explicit_size_does_not_spare_the_check_at_init() -> None:
    found = only(replace(SHAPE, utilization=0.995, kv_cache_memory_bytes=GIB), report("0.28.0", CONSUMED))
    assert found.bootable is False


@pytest.mark.parametrize("explicit", [None, GIB])
def test_a_block_override_makes_the_pool_unknown(explicit: int | None) -> None:
    shape = replace(SHAPE, num_gpu_blocks_override=64, kv_cache_memory_bytes=explicit)
    facts = replace(CONSUMED, graph_capture=gib("0.60"))
    found = ledger(shape, replace(report("0.28.0", facts, charged=False), kv_tokens=1024))
    rank = found.ranks["0"]
    assert (rank.pool, rank.kv_pool, rank.margin) == (None, None, None)
    assert found.kv_bytes_per_token == {}
    assert any("--num-gpu-blocks-override" in note for note in found.notes)


def test_the_price_is_measured_where_the_pool_is_exactly_known() -> None:
    shape = replace(SHAPE, kv_cache_memory_bytes=10 * GIB)
    assert ledger(shape, replace(report("0.28.0", CONSUMED), kv_tokens=81_920)).kv_bytes_per_token == {
        "measured": 131_072
    }
    assert ledger(shape, report("0.28.0", CONSUMED)).kv_bytes_per_token == {}
    assert ledger(SHAPE, replace(report("0.28.0", CONSUMED), kv_tokens=81_920)).kv_bytes_per_token == {}


# Margin


@pytest.mark.parametrize("version", ["0.13.0", "0.20.0", "0.28.0"])
def test_the_margin_is_free_minus_request_plus_estimate_minus_capture(version: str) -> None:
    facts = RankFacts(graph_estimate=gib("0.50"), graph_capture=gib("0.75"))
    rank = only(SHAPE, report(version, facts, charged=True))
    charged = 0 if version == "0.13.0" else gib("0.50").bytes
    assert rank.margin == printed_bytes("78.50") - rank.requested + charged - gib("0.75").bytes


def test_a_negative_capture_raises_the_margin() -> None:
    def margin(capture: Printed) -> int:
        found = only(SHAPE, report("0.19.1", RankFacts(graph_capture=capture), charged=False)).margin
        assert found is not None
        return found

    assert margin(gib("-0.19")) - margin(gib("0.00")) == -gib("-0.19").bytes


def test_the_margin_of_an_explicit_size_needs_every_charge() -> None:
    shape = replace(SHAPE, kv_cache_memory_bytes=10 * GIB)
    facts = replace(CONSUMED, graph_capture=gib("0.60"))
    rank = only(shape, report("0.28.0", facts))
    assert rank.margin == printed_bytes("78.50") - rank.requested - gib("0.60").bytes


def test_the_margin_is_unknown_without_capture_or_free_memory() -> None:
    assert only(SHAPE, report("0.28.0", CONSUMED, charged=False)).margin is None
    eager = replace(SHAPE, enforce_eager=True)
    assert only(eager, report("0.28.0", CONSUMED)).margin == printed_bytes("78.50") - math.ceil(SIZE * 0.9)
    blind = budget.compute(eager, [RankInput("0", SIZE)], report("0.28.0", CONSUMED), None).ranks["0"]
    assert (blind.margin, blind.limit, blind.outside) == (None, None, ())


# Ranks


def test_facts_of_one_rank_are_not_another_s() -> None:
    ranks = {0: replace(CONSUMED), 1: replace(CONSUMED, consumed=gib("16.00"))}
    found = budget.compute(
        SHAPE,
        [RankInput("0", SIZE), RankInput("1", SIZE), RankInput("d1.0", SIZE)],
        BootReport(version="0.28.0", ranks=ranks, graph_charge_applied=False),
        None,
    )
    pools = {name: rank.pool.bytes for name, rank in found.ranks.items() if rank.pool is not None}
    assert set(pools) == {"0", "1"}
    assert pools["0"] - pools["1"] == gib("16.00").bytes - gib("15.40").bytes


def test_another_size_than_the_driver_s_is_noted() -> None:
    seen = ledger(SHAPE, said(size_at_init=gib("78.00")))
    assert "rank 0: the engine saw 78.00 GiB, the driver says 79.19 GiB" in seen.notes
    assert not any("the engine saw" in note for note in ledger(SHAPE, said(size_at_init=gib("79.19"))).notes)


# Properties

SIZES = st.integers(min_value=0, max_value=8000).map(lambda hundredths: gib(f"{hundredths / 100:.2f}"))
FACTS = st.builds(
    RankFacts,
    weights=SIZES,
    activation=SIZES,
    non_torch=SIZES,
    consumed=SIZES,
    graph_estimate=SIZES,
    graph_capture=SIZES,
)
VERSIONS = st.sampled_from(
    ["0.8.5", "0.9.2", "0.13.0", "0.17.1", "0.18.0", "0.19.1", "0.20.0", "0.26.0", "0.27.0", "0.33.0"]
)
UTILIZATIONS = st.floats(min_value=0.01, max_value=1.0)


@given(VERSIONS, FACTS, UTILIZATIONS, st.booleans(), st.none() | st.integers(min_value=0, max_value=SIZE))
def test_charges_and_pool_sum_to_the_request_to_the_byte(
    version: str, facts: RankFacts, utilization: float, charged: bool, explicit: int | None
) -> None:
    shape = replace(SHAPE, utilization=utilization, kv_cache_memory_bytes=explicit)
    rank = only(shape, report(version, facts, charged=charged))
    assert total(rank) == rank.requested
    assert rank.kv_pool == rank.pool
    assert all(term.source == "log" for term in rank.charges)


@given(VERSIONS, FACTS, UTILIZATIONS, UTILIZATIONS, st.booleans())
def test_more_utilization_never_leaves_more_margin(
    version: str, facts: RankFacts, one: float, other: float, charged: bool
) -> None:
    low, high = sorted((one, other))
    less = only(replace(SHAPE, utilization=low), report(version, facts, charged=charged)).margin
    more = only(replace(SHAPE, utilization=high), report(version, facts, charged=charged)).margin
    assert less is not None
    assert more is not None
    assert more <= less
