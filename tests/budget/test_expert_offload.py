from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as drawn, strategies as st

from budget_exporter import budget
from budget_exporter.budget import plan as plan_block
from budget_exporter.budget.laws._offload_charges import CHARGES, compile_headroom
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, Term
from budget_exporter.units import GIB, MIB, gib_text, printed_bytes
from tests.budget.offload import (
    PLAN_G,
    POOL,
    PUBLIC_PLAN,
    SHAPE,
    SIZE,
    WINDOW,
    arena,
    charge,
    constants,
    first,
    gib,
    ledger,
    rank,
    said,
)

FITTED = constants()
CAPPED = replace(SHAPE, kv_cache_memory_bytes=None)


def alone(shape: Shape, report: BootReport | None = None, known: Constants | None = FITTED) -> Ledger:
    return budget.compute(shape, [RankInput("0", SIZE, printed_bytes("31.29"))], report, known)


def without(constant: str) -> Constants:
    return replace(FITTED, **{constant: None})  # type: ignore[arg-type]  # a name of Constants that may be None


# The registry's path


def test_every_charge_says_where_it_comes_from_and_what_moves_it() -> None:
    told = {term.name: (term.source, term.lever) for term in first().charges}
    assert tuple(told) == CHARGES
    assert told["weights"] == ("registry", "")
    assert told["kv_reserve"] == ("registry", "--max-model-len")
    assert told["cuda_graphs"] == ("env", "VLLM_CUDAGRAPH_MEM_BASE_MB, VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB")
    assert told["runtime_overhead"] == ("registry", "--expert-precise-memory")
    assert first().registry == ()
    pool = first().pool
    assert pool is not None
    assert (pool.source, pool.lever) == ("registry", "--gpu-memory-utilization")


def test_an_explicit_pool_is_not_part_of_the_partition_and_its_excess_lowers_the_margin() -> None:
    explicit, capped = first(), first(CAPPED)
    assert arena(explicit) == arena(capped)
    assert explicit.kv_pool is not None
    assert capped.kv_pool is not None
    assert (explicit.kv_pool.bytes, explicit.kv_pool.source) == (POOL, "flag")
    assert (capped.kv_pool.bytes, capped.kv_pool.note) == (charge(capped, "kv_reserve"), "capped at kv_reserve")
    excess = POOL - charge(explicit, "kv_reserve")
    assert explicit.margin is not None
    assert capped.margin is not None
    assert capped.margin - explicit.margin == excess
    assert [(term.name, term.bytes) for term in explicit.outside][1:] == [("kv_beyond_reserve", excess)]
    assert [term.name for term in capped.outside] == ["driver_reserve"]
    assert any("explicit KV pool of 2.95 GiB exceeds its reserve by 1.09 GiB" in note for note in ledger().notes)
    assert not any("explicit KV pool" in note for note in ledger(CAPPED).notes)


def test_an_explicit_pool_below_the_reserve_is_no_excess() -> None:
    small = replace(SHAPE, kv_cache_memory_bytes=MIB)
    assert [term.name for term in first(small).outside] == ["driver_reserve"]
    assert not any("explicit KV pool" in note for note in ledger(small).notes)


def test_a_block_override_makes_the_pool_unknown() -> None:
    found = ledger(replace(SHAPE, num_gpu_blocks_override=100), replace(said(), kv_tokens=1000))
    assert found.ranks["0"].kv_pool is None
    assert found.ranks["0"].margin is None
    assert found.kv_pool_tokens is None
    assert found.kv_bytes_per_token == {"registry": 9190}


def test_pool_tokens_are_the_smallest_rank_s_at_the_registry_s_price() -> None:
    assert ledger().kv_pool_tokens == POOL // 9190
    assert ledger(CAPPED).kv_pool_tokens == round(9190 * WINDOW * 1.08) // 9190
    uneven = replace(said(), ranks={1: RankFacts(plan=Plan(kv_reserve=gib("1.50")))})
    assert ledger(CAPPED, uneven).kv_pool_tokens == printed_bytes("1.50") // 9190


def test_the_length_may_be_the_engine_s_own() -> None:
    auto = replace(CAPPED, max_model_len=None, given={"max-model-len": "auto"})
    assert ledger(auto).ranks["0"].pool is None
    found = ledger(auto, replace(said(), max_model_len=65_536))
    assert charge(found.ranks["0"], "kv_reserve") == round(9190 * 65_536 * 1.08)
    assert found.kv_min_tokens is None
    assert ledger(replace(auto, given={}), replace(said(), max_model_len=65_536)).kv_min_tokens == 65_536
    assert ledger().kv_min_tokens == WINDOW


def test_known_mamba_pages_belong_to_the_reserve() -> None:
    apart = replace(FITTED, mamba_pages=36 * MIB, non_expert=printed_bytes("6.34") - 36 * MIB, kv_reserve_requests=2)
    found = alone(CAPPED, known=apart).ranks["0"]
    reserve = next(term for term in found.charges if term.name == "kv_reserve")
    assert reserve.bytes == round(9190 * WINDOW * 2 * 1.08) + 2 * 36 * MIB
    assert "mamba" not in reserve.note
    assert "mamba" not in next(term.note for term in found.charges if term.name == "weights")
    assert "mamba" in next(term.note for term in first().charges if term.name == "weights")


def test_a_speculative_engine_s_price_says_what_it_lacks() -> None:
    notes = [term.note for term in first(replace(SHAPE, speculative=True)).charges if term.name == "kv_reserve"]
    assert "leaves a draft layer out" in notes[0]


def test_overhead_without_a_known_slope_says_so() -> None:
    unknown = replace(FITTED, overhead_slope_per_1024_tokens=None)
    found = alone(replace(SHAPE, max_num_batched_tokens=8192), known=unknown).ranks["0"]
    overhead = next(term for term in found.charges if term.name == "runtime_overhead")
    assert overhead.bytes == printed_bytes("5.25")
    assert "is not known" in overhead.note
    assert "taken to be at most 4096" in next(t.note for t in first().charges if t.name == "runtime_overhead")


def test_default_utilization() -> None:
    found = ledger(replace(SHAPE, utilization=None))
    assert found.utilization is not None
    assert (found.utilization.source, found.utilization_ratio) == ("default", 0.92)
    assert found.ranks["0"].requested == found.utilization.bytes == -(-SIZE * 92 // 100)
    given = ledger()
    assert given.utilization is not None
    assert (given.utilization.source, given.utilization_ratio, given.graphs) == ("flag", 0.982, 6)


# What lies inside a charge, and what stands against a shape


def within(shape: Shape, report: BootReport | None = None, known: Constants | None = FITTED) -> dict[str, Term]:
    return {term.name: term for term in alone(shape, report, known).ranks["0"].within}


def test_the_default_overhead_holds_headroom_for_what_allocates_last() -> None:
    default = replace(SHAPE, expert_precise_memory=False)
    headroom = within(default)["compile_headroom"]
    assert headroom.bytes == printed_bytes("7.60") - printed_bytes("5.25")
    assert headroom.lever == "--expert-precise-memory"
    assert "compile_headroom" not in within(SHAPE)
    # The block's own overhead is another figure: what it holds for the last phases is not known.
    assert "compile_headroom" not in within(default, said(PLAN_G))
    for constant in ("overhead_default", "overhead_precise"):
        assert compile_headroom(without(constant)) is None
    assert compile_headroom(None) is None


def test_the_precise_overhead_names_what_is_left_for_what_allocates_last() -> None:
    found = alone(SHAPE)
    left = found.ranks["0"].margin
    assert left is not None
    sentence = "gives the arena 2.35 GiB of the default for compilation and graph capture"
    assert any(sentence in note and gib_text(left) in note for note in found.notes)
    for quiet in (
        alone(replace(SHAPE, expert_precise_memory=False)),
        alone(SHAPE, known=without("overhead_default")),
        alone(SHAPE, known=without("non_torch")),
    ):
        assert not any(sentence in note for note in quiet.notes)


def test_resident_layers_are_indices_and_lie_in_the_arena() -> None:
    expert = FITTED.expert_bytes
    assert expert is not None
    assert within(SHAPE)["resident_experts"].bytes == 3 * 512 * expert
    assert within(SHAPE)["resident_experts"].note.endswith("layers [0, 1, 2], the default")
    two = within(replace(SHAPE, expert_resident_layers="7, 0,7"))["resident_experts"]
    assert (two.bytes, two.note) == (2 * 512 * expert, "of the arena: layers [0, 7]")
    assert within(SHAPE, said(PUBLIC_PLAN))["resident_experts"].bytes == gib("1.87").bytes
    for constant in ("experts_per_layer", "expert_bytes"):
        assert "resident_experts" not in within(SHAPE, known=without(constant))
    with pytest.raises(LawError, match=r"^--expert-resident-layers must be layer numbers .*, not all$"):
        alone(replace(SHAPE, expert_resident_layers="all"))


def test_an_overhead_planned_too_small_comes_out_of_the_pool() -> None:
    more = alone(CAPPED, said(overhead_planned=gib("6.25"), overhead_measured=gib("6.8")))
    sentence = "the runtime overhead took 6.80 GiB, 0.55 GiB more than planned, which comes out of the KV pool"
    assert f"rank 0: {sentence}" in more.notes
    less = alone(CAPPED, said(overhead_planned=gib("7.0"), overhead_measured=gib("6.76")))
    alone_measured = alone(CAPPED, said(overhead_measured=gib("6.76")))
    assert not any("runtime overhead took" in note for note in (*less.notes, *alone_measured.notes))


@pytest.mark.parametrize(
    ("shape", "price", "told"),
    [
        (CAPPED, 11_597, True),
        (CAPPED, 8_437, False),
        (CAPPED, None, False),
        (SHAPE, 11_597, False),
        (replace(CAPPED, max_model_len=65_536), 11_597, True),
        (replace(CAPPED, max_model_len=None), 11_597, False),
    ],
)
def test_tokens_that_cost_more_than_is_reserved_for_them(shape: Shape, price: int | None, told: bool) -> None:
    found = alone(shape, said(kv_bytes_per_token_measured=price))
    sentence = "a token took 11597 B and 9925 B are reserved for it"
    assert any(sentence in note for note in found.notes) is told
    plan = said(replace(PLAN_G), kv_bytes_per_token_measured=price)
    if shape.max_model_len is None:
        assert not any("a token took" in note for note in alone(shape, plan).notes)


# What is unknown stays out


@pytest.mark.parametrize(
    ("constant", "term"),
    [
        ("non_expert", "weights"),
        ("kv_bytes_per_token", "kv_reserve"),
        ("kv_reserve_factor", "kv_reserve"),
        ("kv_reserve_requests", "kv_reserve"),
        ("overhead_precise", "runtime_overhead"),
        ("graphs_piecewise", "cuda_graphs"),
    ],
)
def test_a_missing_constant_leaves_its_term_out_and_the_arena_unknown(constant: str, term: str) -> None:
    found = alone(SHAPE, known=without(constant))
    rank = found.ranks["0"]
    assert [each.name for each in rank.charges] == [name for name in CHARGES if name != term]
    assert (rank.pool, rank.arena_slots, rank.margin) == (None, None, None)
    assert f"rank 0: no source for {term}: the arena is unknown" in found.notes


def test_a_missing_price_leaves_the_excess_unknown() -> None:
    found = alone(SHAPE, known=replace(FITTED, kv_bytes_per_token=None))
    assert found.kv_bytes_per_token == {}
    assert found.kv_pool_tokens is None
    assert [term.name for term in found.ranks["0"].outside] == ["driver_reserve"]
    assert alone(CAPPED, known=replace(FITTED, kv_bytes_per_token=None)).ranks["0"].kv_pool is None


def test_an_unknown_expert_size_leaves_the_slots_unknown() -> None:
    rank = alone(SHAPE, known=replace(FITTED, expert_bytes=None)).ranks["0"]
    assert rank.arena_slots is None
    assert arena(rank) == arena(first())


def test_an_unknown_non_torch_leaves_the_margin_unknown() -> None:
    rank = alone(SHAPE, known=replace(FITTED, non_torch=None)).ranks["0"]
    assert rank.margin is None
    assert [term.name for term in rank.within] == ["resident_experts"]
    assert arena(rank) == arena(first())


def test_without_free_at_init_there_is_no_limit_and_no_margin() -> None:
    rank = first(free=None)
    assert (rank.limit, rank.bootable, rank.margin) == (None, None, None)
    assert [term.name for term in rank.outside] == ["kv_beyond_reserve"]


def test_without_constants_the_environment_still_charges_graphs() -> None:
    found = alone(replace(SHAPE, graph_estimate_mib=100), known=None)
    assert [(term.name, term.bytes) for term in found.ranks["0"].charges] == [("cuda_graphs", 100 * MIB)]
    assert found.notes[0] == "rank 0: no source for weights, kv_reserve, runtime_overhead: the arena is unknown"
    assert found.ranks["0"].requested == first().requested


def test_an_engine_without_ranks_has_an_empty_ledger() -> None:
    found = budget.compute(SHAPE, [], None, FITTED)
    assert found.ranks == {}
    assert found.kv_pool_tokens is None


# The plan block wins


def test_the_plan_s_terms_win_and_the_registry_s_are_kept() -> None:
    found = first(report=said(PLAN_G))
    assert {term.name: (term.bytes, term.source, term.rounding) for term in found.charges} == {
        "weights": (gib("6.34").bytes, "log", gib("6.34").rounding),
        "kv_reserve": (gib("1.86").bytes, "log", gib("1.86").rounding),
        "cuda_graphs": (gib("0.07").bytes, "log", gib("0.07").rounding),
        "runtime_overhead": (gib("5.25").bytes, "log", gib("5.25").rounding),
    }
    bare = first()
    assert [term.bytes for term in found.registry] == [*(term.bytes for term in bare.charges), arena(bare)]
    assert found.pool is not None
    assert (found.pool.source, found.pool.rounding) == ("log", 4 * gib("6.34").rounding)
    assert sum(term.bytes for term in found.charges) + arena(found) == found.requested == bare.requested
    assert abs(arena(found) - gib("17.77").bytes) <= found.pool.rounding + gib("17.77").rounding


def test_a_plan_cut_short_is_filled_up_from_the_registry() -> None:
    found = first(report=said(Plan(non_expert=gib("6.00"))))
    sources = {term.name: term.source for term in found.charges}
    assert sources == {
        "weights": "log",
        "kv_reserve": "registry",
        "cuda_graphs": "env",
        "runtime_overhead": "registry",
    }
    assert found.pool is not None
    assert (found.pool.source, found.pool.rounding) == ("log", gib("6.00").rounding)
    assert arena(found) == arena(first()) + gib("6.34").bytes - gib("6.00").bytes


def test_a_plan_without_constants_is_a_whole_ledger() -> None:
    report = said(PUBLIC_PLAN)
    shape = Shape(utilization=0.90, max_model_len=65_536, tensor_parallel_size=2)
    found = budget.compute(shape, [RankInput("0", SIZE), RankInput("1", SIZE)], report, None)
    rank = found.ranks["0"]
    assert found.law == "expert_offload"
    assert arena(rank) == rank.requested - sum(term.bytes for term in rank.charges)
    assert (rank.arena_slots, rank.margin, rank.registry) == (None, None, ())
    assert found.kv_bytes_per_token == {"registry": 9190}
    assert found.kv_pool_tokens == gib("0.64").bytes // 9190
    assert [(term.name, term.bytes) for term in rank.within] == [("resident_experts", gib("1.87").bytes)]
    assert [(term.name, term.bytes) for term in found.host] == [
        ("host_experts", 2 * gib("25.1").bytes),
        ("ple", gib("38.74").bytes),
    ]


def test_graphs_under_enforce_eager_are_known_from_the_plan_only() -> None:
    eager = replace(SHAPE, enforce_eager=True)
    assert first(eager).pool is None
    assert charge(first(eager, said(PLAN_G)), "cuda_graphs") == gib("0.07").bytes


def test_a_report_says_how_many_graphs_there_are() -> None:
    found = ledger(report=replace(said(), graphs=18))
    assert found.graphs == 18
    assert charge(found.ranks["0"], "cuda_graphs") == 18 * 12 * MIB


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (replace(PLAN_G, arena=gib("17.00")), "does not add up: its budget is 0.77 GiB more than its parts"),
        (replace(PLAN_G, budget=gib("28.67")), "the plan's budget is 28.67 GiB, the flags ask for 31.29 GiB"),
        (replace(PLAN_G, arena=gib("17.00")), "the plan's arena is 17.00 GiB, its charges leave 17.77 GiB"),
    ],
)
def test_a_plan_that_contradicts_itself_or_the_flags_is_noted(broken: Plan, sentence: str) -> None:
    assert any(sentence in note for note in ledger(report=said(broken)).notes)


def test_a_plan_that_is_right_or_incomplete_is_not() -> None:
    assert plan_block.residue(replace(PLAN_G, budget=None)) is None
    assert plan_block.residue(replace(PLAN_G, arena=None)) is None
    for plan in (PLAN_G, replace(PLAN_G, budget=None), replace(PLAN_G, arena=None)):
        assert plan_block.notes(plan, first().requested, first(report=said(plan)).pool) == []
    assert plan_block.notes(PLAN_G, first().requested, None) == []


def test_host_memory_of_ranks_that_said_nothing_is_not_invented() -> None:
    assert plan_block.host_terms(SHAPE, BootReport(), [Plan(), Plan()]) == ()
    only = plan_block.host_terms(SHAPE, BootReport(), [PUBLIC_PLAN, Plan()])
    assert [(term.name, term.bytes) for term in only] == [
        ("host_experts", gib("25.1").bytes),
        ("ple", gib("38.74").bytes),
    ]
    assert only[0].note == "1 of 2 ranks"


def test_the_table_that_was_locked_or_meant_to_be_is_host_memory() -> None:
    failed = BootReport(ple_locked=gib("0.0"), ple_not_locked=gib("47.7"))
    assert plan_block.host_terms(SHAPE, failed, [Plan()])[0].bytes == gib("47.7").bytes
    locked = BootReport(ple_locked=gib("38.8"))
    only = plan_block.host_terms(SHAPE, locked, [replace(PUBLIC_PLAN, host_experts=None)])
    assert [(term.name, term.bytes) for term in only] == [("ple", gib("38.8").bytes)]


def test_a_table_on_nvme_leaves_its_row_cache_in_host_memory() -> None:
    shape = replace(SHAPE, given={"ple-nvme-offload": "true", "ple-cache-gb": "8"})
    cached = plan_block.host_terms(shape, BootReport(), [replace(PUBLIC_PLAN, host_experts=None)])
    assert [(term.name, term.bytes, term.source, term.lever) for term in cached] == [
        ("ple", 8 * GIB, "flag", "--ple-cache-gb")
    ]
    said_so = BootReport(args={"ple_nvme_offload": "True", "ple_cache_gb": "4"})
    assert [term.bytes for term in plan_block.host_terms(SHAPE, said_so, [Plan()])] == [4 * GIB]


@pytest.mark.parametrize(
    ("given", "args", "on_host"),
    [
        ({}, {}, True),
        ({"ple-nvme-offload": "true"}, {}, False),
        ({"ple-nvme-offload": ""}, {}, False),
        ({"ple-nvme-offload": "false"}, {}, True),
        ({}, {"ple_nvme_offload": "True"}, False),
        ({}, {"ple_nvme_offload": "False"}, True),
    ],
)
def test_a_table_on_nvme_is_not_in_host_memory(given: dict[str, str], args: dict[str, str], on_host: bool) -> None:
    terms = plan_block.host_terms(replace(SHAPE, given=given), BootReport(args=args), [PUBLIC_PLAN])
    assert ("ple" in {term.name for term in terms}) is on_host


# Prices


def test_the_plan_s_price_beats_the_registry_s() -> None:
    found = ledger(CAPPED, said(replace(PLAN_G, kv_bytes_per_token=8937)))
    assert found.kv_bytes_per_token == {"registry": 8937}


def test_the_plan_check_s_measured_price_counts_where_the_pool_is_not_exactly_known() -> None:
    checked = replace(
        said(PLAN_G),
        kv_tokens=401_408,
        ranks={0: RankFacts(kv_bytes_per_token_measured=10_125), 1: RankFacts(kv_bytes_per_token_measured=10_126)},
    )
    assert ledger(CAPPED, checked).kv_bytes_per_token["measured"] == 10_126
    assert ledger(SHAPE, checked).kv_bytes_per_token["measured"] == 7888
    assert ledger(SHAPE, replace(checked, kv_tokens=None)).kv_bytes_per_token["measured"] == 10_126


# Bad input


@pytest.mark.parametrize(
    ("shape", "field"),
    [
        (replace(SHAPE, utilization=0.0), "utilization"),
        (replace(SHAPE, utilization=1.01), "utilization"),
        (replace(SHAPE, utilization=-0.5), "utilization"),
        (replace(SHAPE, utilization=float("nan")), "utilization"),
        (replace(SHAPE, utilization=float("inf")), "utilization"),
        (replace(SHAPE, max_model_len=0), "max_model_len"),
        (replace(SHAPE, max_num_batched_tokens=-1), "max_num_batched_tokens"),
        (replace(SHAPE, kv_cache_memory_bytes=-1), "kv_cache_memory_bytes"),
        (replace(SHAPE, graph_base_mib=-1), "graph_base_mib"),
        (replace(SHAPE, graph_per_graph_mib=-1), "graph_per_graph_mib"),
        (replace(SHAPE, graph_estimate_mib=-1), "graph_estimate_mib"),
    ],
)
def test_an_impossible_flag_is_named(shape: Shape, field: str) -> None:
    for offload in (True, False):
        with pytest.raises(LawError, match=f"^{field} must"):
            budget.compute(replace(shape, expert_offload=offload), [], None, FITTED)


@pytest.mark.parametrize("size", [0, -1])
def test_an_impossible_size_names_the_rank(size: int) -> None:
    with pytest.raises(LawError, match=f"^rank d0.1: size must be above 0, not {size}$"):
        budget.compute(SHAPE, [RankInput("d0.1", size)], None, FITTED)


# Properties

UTILIZATIONS = st.floats(min_value=0.01, max_value=1.0)
SHAPES = st.builds(
    replace,
    st.just(SHAPE),
    utilization=UTILIZATIONS,
    kv_cache_memory_bytes=st.none() | st.integers(min_value=0, max_value=SIZE),
    max_model_len=st.integers(min_value=1, max_value=1 << 20),
    max_num_batched_tokens=st.none() | st.integers(min_value=1, max_value=1 << 17),
    expert_precise_memory=st.booleans(),
    speculative=st.booleans(),
    graph_base_mib=st.none() | st.integers(min_value=0, max_value=4096),
    graph_per_graph_mib=st.none() | st.integers(min_value=0, max_value=512),
    graph_estimate_mib=st.none() | st.integers(min_value=0, max_value=4096),
)
ROWS = st.none() | st.integers(min_value=0, max_value=4000).map(lambda hundredths: gib(f"{hundredths / 100:.2f}"))
PLANS = st.builds(Plan, non_expert=ROWS, kv_reserve=ROWS, cuda_graphs=ROWS, runtime_overhead=ROWS, arena=ROWS)


@drawn(SHAPES, st.none() | PLANS)
def test_charges_and_arena_sum_to_the_request_to_the_byte(shape: Shape, plan: Plan | None) -> None:
    found = first(shape, said(plan))
    assert sum(term.bytes for term in found.charges) + arena(found) == found.requested
    assert found.arena_slots == arena(found) // 2_457_862


@drawn(SHAPES, UTILIZATIONS, st.none() | PLANS)
def test_more_utilization_never_leaves_more_margin(shape: Shape, other: float, plan: Plan | None) -> None:
    assert shape.utilization is not None
    low, high = sorted((shape.utilization, other))
    less = first(replace(shape, utilization=low), said(plan))
    more = first(replace(shape, utilization=high), said(plan))
    assert less.margin is not None
    assert more.margin is not None
    assert more.margin <= less.margin
    assert arena(more) - arena(less) == less.margin - more.margin


@drawn(SHAPES, st.sampled_from(["non_expert", "overhead_precise", "overhead_default", "kv_bytes_per_token"]))
def test_slots_never_rise_when_a_charge_rises(shape: Shape, constant: str) -> None:
    heavier = replace(FITTED, **{constant: getattr(FITTED, constant) + 4096})
    lighter_slots = alone(shape).ranks["0"].arena_slots
    heavier_slots = alone(shape, known=heavier).ranks["0"].arena_slots
    assert lighter_slots is not None
    assert heavier_slots is not None
    assert heavier_slots <= lighter_slots


def test_what_holds_for_several_ranks_is_said_once() -> None:
    excess = "the explicit KV pool of 2.95 GiB exceeds its reserve by 1.09 GiB, which comes out of free memory"
    assert ledger().notes[0] == f"every rank: {excess}"
    assert not any(note.startswith("rank") for note in ledger().notes)
    three = [rank("0"), rank("1", "29.00"), rank("2", "29.00")]
    found = budget.compute(replace(SHAPE, tensor_parallel_size=3), three, None, constants(SHAPE))
    fails = "free 29.00 < budget 31.29 GiB: the engine's check at init fails"
    assert f"every rank: {excess}" in found.notes
    assert f"ranks 1, 2: {fails}" in found.notes
