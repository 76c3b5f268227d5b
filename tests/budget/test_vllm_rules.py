"""What changed in vLLM's budget from release to release, each change on both of its sides."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from budget_exporter import budget
from budget_exporter.budget.choose import choose
from budget_exporter.budget.laws._vllm_graphs import captures_none
from budget_exporter.budget.laws._vllm_rules import RULES, Rule, model_runner
from budget_exporter.budget.laws.vllm_gpu import oldest_pool
from budget_exporter.budget.suggestion import BUFFER, suggest
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput, RankLedger, Term
from budget_exporter.units import GIB, MIB, printed_bytes
from tests.budget.offload import gib

SIZE = 85_028_896_768
SHAPE = Shape(model="org/model", utilization=0.9, max_model_len=8192)
PARTS = RankFacts(weights=gib("14.99"), activation=gib("1.20"), non_torch=gib("0.35"))
CONSUMED = RankFacts(weights=gib("14.99"), consumed=gib("15.40"), activation=gib("1.20"))
BOTH = replace(PARTS, consumed=gib("15.40"))
V2 = "VLLM_USE_V2_MODEL_RUNNER"


def ledger(shape: Shape, report: BootReport, platform: str = "", *, integrated: bool = False) -> Ledger:
    rank = RankInput("0", SIZE, printed_bytes("78.50"), 5_368_709, "log", platform, integrated)
    return budget.compute(shape, [rank], report, None)


def only(shape: Shape, report: BootReport, platform: str = "") -> RankLedger:
    return ledger(shape, report, platform).ranks["0"]


def said(version: str, facts: RankFacts = BOTH, *, charged: bool | None = None) -> BootReport:
    return BootReport(version=version, common=facts, graph_charge_applied=charged)


def terms(rank: RankLedger) -> dict[str, Term]:
    return {term.name: term for term in rank.charges}


def total(rank: RankLedger) -> int:
    assert rank.pool is not None
    return sum(term.bytes for term in rank.charges) + rank.pool.bytes


def rule_of(version: str) -> Rule:
    law = choose(SHAPE, BootReport(version=version)).law
    assert isinstance(law, Rule)
    return law


def test_each_row_begins_where_the_one_before_it_ends_and_says_what_is_new() -> None:
    assert [one.until for one, _ in pairwise(RULES)] == [other.since for _, other in pairwise(RULES)]
    assert len({rule.changed for rule in RULES}) == len(RULES)


# V0, and the first V1


def test_the_first_v1_charges_whatever_the_device_carries() -> None:
    """Of 80 GiB at 0.9, 30 are torch's peak and 12 belong to others: they come out of the request."""
    size, free = 80 * GIB, 40 * GIB
    assert oldest_pool(size, 0.9, 30 * GIB, free, 28 * GIB) == 30 * GIB
    assert oldest_pool(size, 0.9, 30 * GIB, 60 * GIB, 28 * GIB) == 42 * GIB
    assert oldest_pool(SIZE, 0.9, 0, SIZE, 0) == int(SIZE * 0.9)


def test_what_others_hold_is_inside_the_request_of_the_first_v1_and_beside_it_later() -> None:
    facts = RankFacts(weights=gib("14.99"), graph_capture=gib("0.75"))
    first, later = only(SHAPE, said("0.9.0.1", facts)), only(SHAPE, said("0.9.1", facts))
    assert ([term.name for term in first.within], first.outside) == (["driver_reserve"], ())
    assert (later.within, [term.name for term in later.outside]) == ((), ["driver_reserve"])
    assert (first.pool, later.pool) == (None, None)
    assert first.margin == SIZE - first.requested - gib("0.75").bytes
    assert later.margin == printed_bytes("78.50") - later.requested - gib("0.75").bytes


@pytest.mark.parametrize(
    "report",
    [
        said("0.9.0.1", PARTS),
        replace(said("0.9.0.1", PARTS), core="V0"),
        replace(said("0.10.2", PARTS), core="V0"),
    ],
)
def test_v0_charges_its_own_growth_and_checks_nothing(report: BootReport) -> None:
    rank = only(replace(SHAPE, utilization=1.0), report)
    assert (rank.bootable, rank.limit is not None and rank.limit.ratio) == (None, 1.0)
    assert total(rank) == rank.requested
    assert [term.name for term in rank.outside] == ["driver_reserve"]
    checked = only(replace(SHAPE, utilization=1.0), replace(report, version="0.11.0"))
    assert checked.bootable is False


@pytest.mark.parametrize(
    ("report", "environ", "swap"),
    [
        (BootReport(version="0.9.2", core="V0"), {}, True),
        (BootReport(version="0.9.2", core="V1"), {"VLLM_USE_V1": "0"}, False),
        (BootReport(version="0.9.2"), {"VLLM_USE_V1": "0"}, True),
        (BootReport(version="0.9.2"), {"VLLM_USE_V1": "1"}, False),
        (BootReport(version="0.9.2"), {}, False),
        (BootReport(version="0.8.5", common=PARTS), {}, True),
        (BootReport(version="0.8.5", ranks={3: PARTS}), {}, True),
        (BootReport(version="0.9.2", common=PARTS), {}, False),
        (BootReport(version="0.17.1", core="V0"), {"VLLM_USE_V1": "0"}, False),
    ],
)
def test_only_the_v0_engine_pins_a_swap_space(report: BootReport, environ: dict[str, str], swap: bool) -> None:
    found = ledger(replace(SHAPE, environ=environ), report)
    assert [(term.name, term.bytes, term.source) for term in found.host] == (
        [("swap", 4 * GIB, "default")] if swap else []
    )
    unknown = report.version == "0.9.2" and report.core is None and not environ
    assert any("V0 from V1" in note for note in found.notes) is unknown


# What the snapshot leaves inside


@pytest.mark.parametrize(("version", "note"), [("0.10.2", "with NCCL's buffers"), ("0.11.0", "")])
def test_nccl_is_charged_until_0_11(version: str, note: str) -> None:
    assert terms(only(SHAPE, said(version, PARTS)))["non_torch"].note == note


# Graphs: platform and model runner


@pytest.mark.parametrize(
    ("version", "platform", "closed"),
    [
        ("0.20.0", "nvidia", False),
        ("0.20.0", "amd", True),
        ("0.25.1", "amd", True),
        ("0.26.0", "amd", False),
        ("0.20.0", "", False),
    ],
)
def test_rocm_estimates_graphs_from_0_26(version: str, platform: str, closed: bool) -> None:
    without = only(SHAPE, said(version, PARTS), platform)
    assert (without.pool is not None) is closed
    estimated = only(SHAPE, said(version, replace(PARTS, graph_estimate=gib("0.50"))), platform)
    # A printed estimate proves that there is one, whatever the platform is thought to be.
    assert "cuda_graphs" in terms(estimated)
    assert total(estimated) == estimated.requested


def test_a_platform_that_estimates_nothing_is_said_where_a_charge_was_to_be_expected() -> None:
    sentence = "rank 0: graphs are not estimated on this platform: their capture is not charged"
    assert sentence in ledger(SHAPE, said("0.25.1", PARTS), "amd").notes
    assert sentence not in ledger(SHAPE, said("0.19.1", PARTS), "amd").notes
    assert sentence in ledger(replace(SHAPE, estimate_graphs=True), said("0.19.1", PARTS), "amd").notes
    assert sentence not in ledger(replace(SHAPE, estimate_graphs=False), said("0.25.1", PARTS), "amd").notes
    assert sentence not in ledger(replace(SHAPE, enforce_eager=True), said("0.25.1", PARTS), "amd").notes
    assert sentence not in ledger(SHAPE, said("0.13.0", PARTS), "amd").notes


@pytest.mark.parametrize(
    ("version", "env"), [("0.18.1", True), ("0.22.1", None), ("0.27.1", None), ("0.28.0", None), ("0.29.0", None)]
)
def test_the_v2_runner_estimates_nothing_through_0_28(version: str, env: bool | None) -> None:
    report = replace(said(version, replace(BOTH, graph_capture=gib("0.60"))), model_runner="V2")
    found = ledger(replace(SHAPE, estimate_graphs=env), report, "nvidia")
    rank, estimates = found.ranks["0"], version == "0.29.0"
    sentence = "rank 0: the V2 model runner estimates no graphs: their capture is not charged"
    assert "cuda_graphs" not in terms(rank)
    assert (sentence in found.notes) is not estimates
    assert (rank.pool is None) is estimates


def test_the_v1_runner_leaves_the_charge_open_until_the_log_tells_it() -> None:
    report = replace(said("0.28.0"), model_runner="V1")
    assert only(SHAPE, report, "nvidia").pool is None
    told = replace(report, common=replace(BOTH, graph_estimate=gib("0.50")), graph_charge_applied=True)
    assert terms(only(SHAPE, told, "nvidia"))["cuda_graphs"].bytes == gib("0.50").bytes


def test_what_the_log_says_of_the_charge_counts_before_runner_and_platform() -> None:
    report = replace(said("0.25.1", replace(BOTH, graph_estimate=gib("0.50")), charged=True), model_runner="V2")
    assert "cuda_graphs" in terms(only(SHAPE, report, "amd"))


@pytest.mark.parametrize(
    ("version", "architecture", "given", "environ", "logged", "runner"),
    [
        ("0.21.0", None, {}, {}, None, "V1"),
        ("0.21.0", "Qwen3ForCausalLM", {}, {V2: "1"}, None, "V2"),
        ("0.22.0", "Qwen3ForCausalLM", {}, {V2: "0"}, None, "V1"),
        ("0.22.0", "Qwen3ForCausalLM", {}, {V2: "0"}, "V2", "V2"),
        ("0.22.0", "Qwen3ForCausalLM", {}, {V2: " "}, None, None),
        ("0.22.0", "Qwen3ForCausalLM", {"quantization": "fp8"}, {}, None, "V1"),
        ("0.22.0", "LlamaForCausalLM", {}, {}, None, "V1"),
        ("0.23.0", "LlamaForCausalLM", {}, {}, None, None),
        ("0.23.0", "GemmaForCausalLM", {}, {}, None, "V1"),
        ("0.23.0", None, {}, {}, None, None),
        ("0.24.0", "LlamaForCausalLM", {}, {}, None, None),
        ("0.33.0", "LlamaForCausalLM", {}, {}, "V1", "V1"),
    ],
)
def test_which_model_runner(
    version: str,
    architecture: str | None,
    given: dict[str, str],
    environ: dict[str, str],
    logged: str | None,
    runner: str | None,
) -> None:
    report = BootReport(version=version, architecture=architecture, model_runner=logged)
    assert model_runner(rule_of(version), replace(SHAPE, given=given, environ=environ), report) == runner


def test_a_setting_that_is_no_number_is_named() -> None:
    with pytest.raises(LawError, match=f"^{V2} must be a whole number, not yes$"):
        ledger(replace(SHAPE, environ={V2: "yes"}), said("0.26.0"), "nvidia")


@pytest.mark.parametrize("facts", [BOTH, replace(BOTH, graph_estimate=gib("0.50"))])
def test_without_graphs_nothing_is_charged(facts: RankFacts) -> None:
    o0 = replace(SHAPE, optimization_level=0)
    rank = only(o0, said("0.26.0", facts))
    assert ("cuda_graphs" in terms(rank)) is (facts.graph_estimate is not None)
    assert rank.margin is not None
    captured = only(o0, said("0.26.0", replace(facts, graph_capture=gib("0.25"))))
    assert captured.margin == rank.margin - gib("0.25").bytes


@pytest.mark.parametrize(
    ("shape", "none"),
    [
        (SHAPE, False),
        (replace(SHAPE, enforce_eager=True), True),
        (replace(SHAPE, optimization_level=0), True),
        (replace(SHAPE, optimization_level=1), False),
        (replace(SHAPE, cudagraph_mode="NONE"), True),
        (replace(SHAPE, cudagraph_mode="NONE", optimization_level=3), True),
        (replace(SHAPE, cudagraph_mode="FULL", optimization_level=0), False),
        (replace(SHAPE, cudagraph_capture_sizes=()), True),
        (replace(SHAPE, cudagraph_capture_sizes=(1, 2)), False),
    ],
)
def test_which_flags_forbid_graphs(shape: Shape, none: bool) -> None:
    assert captures_none(shape) is none


# Multimodal decoding


def test_the_reservation_for_multimodal_decoding_is_a_charge_of_its_own() -> None:
    facts = replace(CONSUMED, multimodal=gib("2.55"))
    rank = only(SHAPE, said("0.28.0", facts, charged=False))
    bare = only(SHAPE, said("0.28.0", CONSUMED, charged=False))
    assert [*terms(rank)] == ["consumed", "headroom", "multimodal"]
    assert terms(rank)["multimodal"].lever == "--mm-ipc-gpu-memory-gb"
    assert total(rank) == rank.requested == bare.requested
    assert bare.pool is not None
    assert rank.pool is not None
    assert bare.pool.bytes - rank.pool.bytes == gib("2.55").bytes


def test_a_rank_that_did_not_print_it_has_the_same_reservation() -> None:
    ranks = {0: replace(CONSUMED, multimodal=gib("2.55")), 1: CONSUMED}
    report = BootReport(version="0.28.0", ranks=ranks, graph_charge_applied=False)
    found = budget.compute(SHAPE, [RankInput("0", SIZE), RankInput("1", SIZE)], report, None)
    assert [terms(rank)["multimodal"].bytes for rank in found.ranks.values()] == [gib("2.55").bytes] * 2


@pytest.mark.parametrize(
    ("version", "available", "bytes_"),
    [("0.25.0", None, 3 * GIB // 2), ("0.24.0", None, None), ("0.25.0", "50.00", None)],
)
def test_the_flag_stands_for_it_until_the_log_has_told_the_pool(
    version: str, available: str | None, bytes_: int | None
) -> None:
    shape = replace(SHAPE, given={"mm-ipc-gpu-memory-gb": "1.5"})
    facts = PARTS if available is None else replace(PARTS, kv_available=gib(available))
    found = terms(only(shape, said(version, facts, charged=False))).get("multimodal")
    assert (None if found is None else (found.bytes, found.source)) == (None if bytes_ is None else (bytes_, "flag"))
    if found is not None:
        assert "is not known" in found.note


def test_an_explicit_size_loses_the_reservation_too() -> None:
    shape = replace(SHAPE, kv_cache_memory_bytes=10 * GIB)
    facts = replace(CONSUMED, multimodal=gib("2.55"))
    report = replace(said("0.28.0", facts), kv_tokens=81_920)
    rank = only(shape, report)
    assert rank.kv_pool is not None
    assert (rank.kv_pool.bytes, rank.kv_pool.rounding) == (10 * GIB - gib("2.55").bytes, gib("2.55").rounding)
    assert total(rank) == rank.requested
    assert ledger(shape, report).kv_bytes_per_token == {}
    alone = only(shape, said("0.28.0", RankFacts(multimodal=gib("2.55"))))
    assert (alone.pool, alone.kv_pool) == (None, rank.kv_pool)


# A remembered size


def test_a_remembered_size_stands_in_place_of_the_profile() -> None:
    facts = RankFacts(kv_reserved=gib("60.12"), graph_capture=gib("0.60"))
    rank = only(replace(SHAPE, environ={"VLLM_ENABLE_STARTUP_PLAN": "1"}), said("0.28.0", facts))
    assert rank.kv_pool is not None
    assert (rank.kv_pool.bytes, rank.kv_pool.source) == (gib("60.12").bytes, "log")
    assert rank.kv_pool.lever == "VLLM_ENABLE_STARTUP_PLAN"
    assert (rank.pool, rank.margin) == (None, None)
    assert "cuda_graphs" not in terms(rank)


@pytest.mark.parametrize(
    ("version", "on", "facts", "said_"),
    [
        ("0.26.0", "1", RankFacts(), True),
        ("0.25.0", "1", RankFacts(), False),
        ("0.26.0", "0", RankFacts(), False),
        ("0.26.0", "1", RankFacts(kv_available=gib("60.12")), False),
        ("0.26.0", "1", RankFacts(kv_reserved=gib("60.12")), False),
    ],
)
def test_until_the_log_tells_a_startup_plan_is_announced(version: str, on: str, facts: RankFacts, said_: bool) -> None:
    shape = replace(SHAPE, environ={"VLLM_ENABLE_STARTUP_PLAN": on})
    sentence = "rank 0: VLLM_ENABLE_STARTUP_PLAN may put a remembered KV size in place of the profile"
    assert (sentence in ledger(shape, said(version, facts)).notes) is said_
    explicit = replace(shape, kv_cache_memory_bytes=GIB)
    assert sentence not in ledger(explicit, said(version, facts)).notes


# What a boot suggests


def test_the_suggested_sizes() -> None:
    """A 6 GiB card at 0.79: 4.74 GiB asked, 2.1 consumed, 0.22 peak, 0.07 of graphs; 2358995846 and 2590736384 B."""
    sizes = suggest(
        requested=printed_bytes("4.74"),
        free=printed_bytes("4.95"),
        used=printed_bytes("2.1") + printed_bytes("0.22"),
        estimate=0,
        capture=printed_bytes("0.07"),
        peak_holds_estimate=True,
    )
    within = 4 * gib("0.01").rounding
    assert abs(sizes.fit - 2_358_995_846) <= within
    assert abs(sizes.full - 2_590_736_384) <= within
    assert sizes.double_count == 0


@pytest.mark.parametrize(("holds", "double"), [(True, 512 * MIB), (False, 0)])
def test_a_peak_that_holds_the_estimate_counts_it_twice(holds: bool, double: int) -> None:
    sizes = suggest(
        requested=GIB, free=2 * GIB, used=0, estimate=512 * MIB, capture=64 * MIB, peak_holds_estimate=holds
    )
    assert sizes.double_count == double
    assert sizes.fit == GIB - 64 * MIB - BUFFER - double
    assert sizes.full - sizes.fit == GIB


@pytest.mark.parametrize(
    ("version", "told"), [("0.18.1", True), ("0.19.1", False), ("0.26.0", False), ("0.27.0", True), ("0.33.0", True)]
)
def test_a_ledger_warns_of_sizes_that_count_graphs_twice(version: str, told: bool) -> None:
    facts = replace(BOTH, graph_estimate=gib("0.50"), graph_capture=gib("0.60"), multimodal=gib("1.00"))
    found = ledger(SHAPE, said(version, facts, charged=True))
    notes = [note for note in found.notes if "graphs twice" in note]
    assert bool(notes) is told
    if told:
        used = 16.54 if version == "0.18.1" else 16.60
        fit = found.ranks["0"].requested / GIB - used - 0.60 - 150 / 1024
        assert f"0.50 GiB of graphs twice: {fit:.2f} GiB fit the request" in notes[0]


@pytest.mark.parametrize(
    ("version", "facts", "shape"),
    [
        ("0.28.0", replace(CONSUMED, graph_estimate=gib("0.50")), SHAPE),
        ("0.28.0", RankFacts(graph_estimate=gib("0.50"), graph_capture=gib("0.60")), SHAPE),
        (
            "0.28.0",
            replace(CONSUMED, graph_estimate=gib("0.50"), graph_capture=gib("0.60")),
            replace(SHAPE, kv_cache_memory_bytes=GIB),
        ),
        ("0.9.2", replace(PARTS, graph_estimate=gib("0.50"), graph_capture=gib("0.60")), SHAPE),
    ],
)
def test_where_nothing_is_suggested_or_known_nothing_is_said(version: str, facts: RankFacts, shape: Shape) -> None:
    assert not any("graphs twice" in note for note in ledger(shape, said(version, facts, charged=True)).notes)


# A device whose memory is the host's


def test_a_device_that_shares_the_host_s_memory_is_noted() -> None:
    shared = ledger(SHAPE, said("0.28.0"), integrated=True)
    assert any("the device's memory is the host's" in note for note in shared.notes)
    assert not any("the device's memory is the host's" in note for note in ledger(SHAPE, said("0.28.0")).notes)


# Properties

SIZES = st.integers(min_value=0, max_value=8000).map(lambda hundredths: gib(f"{hundredths / 100:.2f}"))
MAYBE = st.none() | SIZES
FACTS = st.builds(
    RankFacts,
    weights=MAYBE,
    activation=MAYBE,
    non_torch=MAYBE,
    consumed=MAYBE,
    graph_estimate=MAYBE,
    graph_capture=MAYBE,
    kv_available=MAYBE,
    kv_reserved=MAYBE,
    multimodal=MAYBE,
)
VERSIONS = st.sampled_from([".".join(map(str, rule.since)) for rule in RULES])
SHAPES = st.builds(
    replace,
    st.just(SHAPE),
    utilization=st.none() | st.floats(min_value=0.01, max_value=1.0),
    kv_cache_memory_bytes=st.none() | st.integers(min_value=0, max_value=SIZE),
    num_gpu_blocks_override=st.none() | st.just(64),
    enforce_eager=st.booleans(),
    estimate_graphs=st.none() | st.booleans(),
    environ=st.fixed_dictionaries({}, optional={V2: st.sampled_from("01"), "VLLM_USE_V1": st.sampled_from("01")}),
)


@given(
    VERSIONS,
    FACTS,
    SHAPES,
    st.none() | st.booleans(),
    st.sampled_from(["", "amd", "nvidia"]),
    st.sampled_from([None, "V1", "V2"]),
)
def test_every_release_sums_to_the_byte_or_says_what_is_missing(
    version: str, facts: RankFacts, shape: Shape, charged: bool | None, platform: str, runner: str | None
) -> None:
    report = replace(said(version, facts, charged=charged), model_runner=runner)
    found = ledger(shape, report, platform)
    rank = found.ranks["0"]
    if rank.pool is None:
        assert any("the log does not tell" in note for note in found.notes)
    else:
        assert total(rank) == rank.requested
        assert rank.pool == rank.kv_pool
