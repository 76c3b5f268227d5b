"""Whole engines judged: the ones that lived, the ones that died, and those of which little is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter import verdicts
from budget_exporter.facts.boot import PHASES, BootReport, Phase, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankLedger
from budget_exporter.facts.verdict import Floors, Measured, Policy, Verdict
from budget_exporter.units import GIB, MIB, printed_bytes
from tests.budget.offload import PLAN_G, SHAPE, SIZE, WINDOW, gib, ledger, said

POLICY = Policy(Floors(critical=256 * MIB, warning=768 * MIB), graph_drift_tolerance=128 * MIB)
BOOTED = replace(
    said(PLAN_G, free_at_init=gib("31.29"), graph_estimate=gib("0.07")),
    ranks={0: RankFacts(graph_capture=gib("0.05")), 1: RankFacts(graph_capture=gib("-0.06"))},
    kv_tokens=401_408,
    max_model_len=WINDOW,
    graph_charge_applied=True,
)


def left(now: str, worst: str | None = None) -> dict[str, Measured]:
    """Return both cards with so many GiB left now and at their worst."""
    used = SIZE - printed_bytes(now)
    return {name: Measured(SIZE, used, SIZE - printed_bytes(worst or now)) for name in ("0", "1")}


def judge(
    shape: Shape = SHAPE,
    report: BootReport | None = BOOTED,
    phase: Phase = "serving",
    measured: Mapping[str, Measured] | None = None,
    policy: Policy = POLICY,
    known: Ledger | None = None,
) -> Verdict:
    return verdicts.judge(
        ledger=ledger(shape, report) if known is None else known,
        report=report,
        shape=shape,
        phase=phase,
        measured=left("0.93", "0.89") if measured is None else measured,
        policy=policy,
    )


def test_shape_g_is_on_no_knife_edge() -> None:
    verdict = judge()
    assert verdict.knife_edge == {
        "predicted_margin": False,
        "measured_margin": False,
        "utilization_limit": False,
        "capture_over_charge": False,
        "kv_below_contract": False,
        "kv_minimum": False,
    }
    assert verdict.sentences == ()
    assert verdict.contract_tokens == WINDOW
    assert verdict.findings == {
        "graph_charge_over": False,
        "graph_charge_under": False,
        "graph_charge_negative": True,
        "graph_estimate_not_charged": False,
        "kv_price_drift": True,
        "model_mismatch": False,
        "law_assumed": False,
        "knife_edge": False,
        "util_misread": False,
        "advertised_above_servable": False,
    }
    zero, one = verdict.ranks["0"], verdict.ranks["1"]
    assert (zero.margin_now, zero.margin_high_water) == (printed_bytes("0.93"), printed_bytes("0.89"))
    assert zero.drift == gib("0.05").bytes - gib("0.07").bytes
    assert one.drift == gib("-0.06").bytes - gib("0.07").bytes
    assert zero.why == one.why == {}
    assert verdict.graph_charge_suggested == gib("0.05").bytes


def test_shape_g_holds_two_of_its_three_windows_on_purpose() -> None:
    assert judge().knife_edge["kv_below_contract"] is False
    all_three = judge(policy=replace(POLICY, contract_tokens=3 * WINDOW))
    assert all_three.knife_edge["kv_below_contract"] is True
    assert all_three.contract_tokens == 3 * WINDOW
    assert all_three.sentences == ("the KV pool holds 401,408 tokens, 602,112 are promised",)
    assert judge(policy=replace(POLICY, contract_tokens=401_408)).knife_edge["kv_below_contract"] is False


def test_five_windows_with_nothing_left_are_on_a_knife_edge() -> None:
    """5 x 262144 in fp8: it booted with 0 bytes free, and a 995-token prompt killed it."""
    shape = replace(
        SHAPE, max_model_len=262_144, max_num_seqs=5, kv_cache_memory_bytes=5 * 262_144 * 7701, utilization=0.98
    )
    report = replace(said(free_at_init=gib("31.29")), kv_tokens=1_350_182, max_model_len=262_144)
    verdict = judge(shape, report, measured=left("0.00"))
    assert verdict.knife_edge["measured_margin"] is True
    assert verdict.knife_edge["predicted_margin"] is True
    assert verdict.knife_edge["kv_below_contract"] is False
    assert verdict.findings["knife_edge"] is True
    assert set(verdict.ranks["0"].why) == {"measured_margin", "predicted_margin"}
    assert any(sentence.startswith("rank 0: the law predicts -") for sentence in verdict.sentences)
    assert verdict.ranks["0"].why["predicted_margin"].endswith("left, below the critical floor of 0.25 GiB")
    booting = judge(shape, report, "capturing", measured={})
    assert [(a.reason, a.lever, a.value) for a in booting.advice] == [
        ("predicted_margin", "--gpu-memory-utilization", "0.858")
    ]
    measured = verdict.ranks["1"].why["measured_margin"]
    assert measured.startswith("0.00 GiB left at the high-water mark, below the critical floor of 0.25 GiB")


@pytest.mark.parametrize("phase", ["starting", "failing", "stopped", "unknown"])
def test_utilization_1_exceeds_the_limit(phase: Phase) -> None:
    shape = replace(SHAPE, utilization=1.0)
    dead = replace(said(free_at_init=gib("31.29")), max_model_len=WINDOW)
    verdict = judge(shape, dead, phase, measured={})
    assert verdict.knife_edge["utilization_limit"] is True
    assert "measured_margin" not in verdict.knife_edge
    assert verdict.ranks["1"].why["utilization_limit"] == (
        "utilization 1.0 asks for 31.86 GiB, 31.29 GiB were free at init: enough for 0.982 at most (0.981 for certain)"
    )


def test_an_engine_past_its_check_does_not_exceed_the_limit_whatever_was_measured() -> None:
    shape = replace(SHAPE, utilization=1.0)
    for phase in ("profiling", "capturing", "serving", "sleeping"):
        assert judge(shape, phase=phase).knife_edge["utilization_limit"] is False


def test_the_bf16_boot_with_0_13_gib_left_is_on_a_knife_edge_and_the_survivors_are_not() -> None:
    for free, held in (("0.13", True), ("0.74", True), ("0.75", False), ("0.89", False), ("3.60", False)):
        verdict = judge(measured=left("4.00", free))
        assert verdict.knife_edge["measured_margin"] is held
        assert (verdict.sentences == ()) is not held


def test_the_tightest_rank_speaks_for_the_engine() -> None:
    uneven = left("0.50") | {"1": Measured(SIZE, SIZE, SIZE - printed_bytes("0.20"))}
    verdict = judge(measured=uneven)
    assert len(verdict.sentences) == 1
    assert verdict.sentences[0].startswith("rank 1: 0.20 GiB left")
    assert set(verdict.ranks["0"].why) == {"measured_margin"}


def test_lowering_the_utilization_as_advised_restores_the_floor() -> None:
    (advice,) = judge(measured=left("0.20")).advice
    advised = float(advice.value)
    assert advised < 0.982
    given_back = ledger(SHAPE).ranks["0"].requested - ledger(replace(SHAPE, utilization=advised)).ranks["0"].requested
    assert printed_bytes("0.20") + given_back >= POLICY.floors.warning
    one_more = ledger(replace(SHAPE, utilization=advised + 0.001)).ranks["0"].requested
    assert printed_bytes("0.20") + ledger(SHAPE).ranks["0"].requested - one_more < POLICY.floors.warning


def test_no_utilization_is_advised_where_the_arena_cannot_give_the_bytes() -> None:
    starved = replace(POLICY, floors=Floors(critical=0, warning=25 * GIB))
    assert [a.lever for a in judge(measured=left("0.20"), policy=starved).advice] == [""]
    tight = replace(SHAPE, utilization=0.45)
    arena = ledger(tight, BOOTED).ranks["0"].pool
    assert arena is not None
    just = replace(POLICY, floors=Floors(critical=0, warning=arena.bytes))
    verdict = judge(tight, measured=left("0.00"), policy=just)
    assert [a.lever for a in verdict.advice if a.reason == "measured_margin"] == [""]


def test_a_plain_engine_is_not_told_to_shrink_its_kv_pool() -> None:
    plain = Shape(model="org/model", utilization=0.95, max_model_len=4096, tensor_parallel_size=2)
    report = BootReport(version="0.28.0", common=RankFacts(free_at_init=gib("31.29"), kv_available=gib("20.00")))
    verdict = judge(plain, report, measured=left("0.20"))
    assert verdict.knife_edge["measured_margin"] is True
    assert [a.lever for a in verdict.advice if a.reason == "measured_margin"] == [""]


# Phases


@pytest.mark.parametrize("phase", PHASES)
def test_a_boot_is_not_judged_by_what_its_device_holds(phase: Phase) -> None:
    verdict = judge(phase=phase, measured=left("0.00"))
    judged = phase in {"serving", "sleeping", "unknown"}
    assert verdict.knife_edge.get("measured_margin") is (True if judged else None)
    assert (verdict.ranks["0"].estimator_gap is not None) is (phase == "serving")


def test_the_estimator_gap_is_what_was_free_beyond_the_plan() -> None:
    gap = judge(measured=left("0.93")).ranks["0"].estimator_gap
    assert gap == printed_bytes("0.93") - (SIZE - ledger().ranks["0"].requested)
    assert gap is not None
    assert gap / GIB == pytest.approx(0.93 - 0.573, abs=0.001)


def test_a_plain_engine_with_an_explicit_pool_and_unknown_charges_has_no_gap() -> None:
    plain = Shape(utilization=0.9, kv_cache_memory_bytes=GIB, tensor_parallel_size=2)
    open_ = replace(BootReport(version="0.28.0"), common=RankFacts(consumed=gib("4.00")))
    assert judge(plain, open_).ranks["0"].estimator_gap is None
    closed = replace(open_, common=RankFacts(consumed=gib("4.00"), activation=gib("1.00")))
    assert judge(plain, closed).ranks["0"].estimator_gap == printed_bytes("0.93") - (SIZE - 6 * GIB)
    shrunk = replace(plain, kv_cache_memory_bytes=None)
    assert judge(shrunk, open_).ranks["0"].estimator_gap is not None
    overridden = replace(plain, num_gpu_blocks_override=5)
    assert judge(overridden, closed).ranks["0"].estimator_gap is not None


# Graph drift


def drifting(*captures: str, charge: tuple[int, int] = (0, 12)) -> Verdict:
    shape = replace(SHAPE, graph_base_mib=charge[0], graph_per_graph_mib=charge[1])
    ranks = {i: RankFacts(graph_capture=gib(text)) for i, text in enumerate(captures)}
    return judge(shape, replace(BOOTED, common=RankFacts(), ranks=ranks, graph_charge_applied=None))


def test_the_heavier_rank_s_capture_binds() -> None:
    verdict = drifting("0.31", "0.17")
    assert verdict.ranks["0"].drift == gib("0.31").bytes - 72 * MIB
    assert verdict.ranks["1"].drift == gib("0.17").bytes - 72 * MIB
    assert verdict.graph_charge_suggested == gib("0.31").bytes
    assert verdict.knife_edge["capture_over_charge"] is True
    assert verdict.findings["graph_charge_under"] is True
    assert verdict.findings["graph_charge_over"] is False
    assert verdict.sentences == ("rank 0: graph capture took 0.31 GiB, charged were 0.07 GiB",)
    assert [(a.reason, a.lever, a.value) for a in verdict.advice] == [
        ("graph_charge_under", "VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB", "54")
    ]
    assert 54 * 6 * MIB >= gib("0.31").bytes + gib("0.31").rounding > 53 * 6 * MIB


def test_the_default_charge_is_pure_over_charge() -> None:
    verdict = drifting("0.31", "0.17", charge=(256, 52))
    assert verdict.findings["graph_charge_over"] is True
    assert verdict.findings["graph_charge_under"] is False
    assert verdict.knife_edge["capture_over_charge"] is False
    assert drifting("0.54", "0.17", charge=(256, 52)).findings["graph_charge_over"] is False


def test_a_negative_capture_is_reported_and_suggests_no_charge() -> None:
    verdict = drifting("-0.06", "-0.06")
    assert verdict.ranks["0"].drift == gib("-0.06").bytes - 72 * MIB
    assert verdict.graph_charge_suggested == 0
    assert verdict.findings["graph_charge_negative"] is True
    assert drifting("0.00", "0.00").findings["graph_charge_negative"] is False


def test_what_rounding_or_tolerance_explains_is_no_under_charge() -> None:
    edge = 72 * MIB + POLICY.graph_drift_tolerance
    strict = replace(POLICY, graph_drift_tolerance=0)
    for capture, tolerated, holds in (("0.19", POLICY, False), ("0.21", POLICY, True), ("0.07", strict, False)):
        report = replace(BOOTED, common=RankFacts(graph_capture=gib(capture)), ranks={}, graph_charge_applied=None)
        assert judge(report=report, policy=tolerated).knife_edge["capture_over_charge"] is holds
    assert gib("0.19").bytes < edge < gib("0.21").bytes


def test_without_a_charge_there_is_no_drift() -> None:
    verdict = drifting("0.31", "0.17", charge=(0, 0))
    assert verdict.ranks["0"].drift is None
    assert "capture_over_charge" not in verdict.knife_edge
    assert {"graph_charge_over", "graph_charge_under"}.isdisjoint(verdict.findings)
    assert verdict.graph_charge_suggested == gib("0.31").bytes


def test_one_silent_rank_leaves_no_all_clear() -> None:
    fine = drifting("0.05")
    assert fine.ranks["1"].drift is None
    assert "capture_over_charge" not in fine.knife_edge
    assert "graph_charge_under" not in fine.findings
    assert drifting("0.31").knife_edge["capture_over_charge"] is True


@pytest.mark.parametrize(
    ("shape", "setting"),
    [
        (replace(SHAPE, graph_estimate_mib=72), ("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB", "323")),
        (replace(SHAPE, graph_base_mib=10), ("VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB", "53")),
    ],
)
def test_the_advice_is_the_setting_that_covers_the_capture(shape: Shape, setting: tuple[str, str]) -> None:
    policy = replace(POLICY, graph_drift_tolerance=0)
    report = replace(BOOTED, common=RankFacts(graph_capture=gib("0.31")), ranks={}, graph_charge_applied=None)
    (advice,) = judge(shape, report, policy=policy).advice
    assert (advice.lever, advice.value) == setting


def test_where_base_or_number_of_graphs_is_not_known_the_whole_charge_is_advised() -> None:
    report = replace(BOOTED, common=RankFacts(graph_capture=gib("0.60")), ranks={})
    known = ledger(SHAPE, report)
    for shape, model in (
        (None, known),
        (SHAPE, replace(known, graphs=None)),
        (replace(SHAPE, graph_base_mib=None), known),
    ):
        verdict = verdicts.judge(ledger=model, report=report, shape=shape, phase="serving", measured={}, policy=POLICY)
        assert ("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB", "620") in [(a.lever, a.value) for a in verdict.advice]


# Findings


@pytest.mark.parametrize(
    ("estimate", "applied", "finding"),
    [
        ("0.50", False, True),
        ("0.50", True, False),
        ("0.00", False, False),
        ("0.50", None, None),
        (None, False, None),
    ],
)
def test_an_estimate_that_was_printed_but_not_charged(
    estimate: str | None, applied: bool | None, finding: bool | None
) -> None:
    common = RankFacts(graph_estimate=None if estimate is None else gib(estimate))
    report = BootReport(version="0.19.1", common=common, graph_charge_applied=applied)
    plain = Shape(utilization=0.9, tensor_parallel_size=2)
    assert judge(plain, report).findings.get("graph_estimate_not_charged") is finding


@pytest.mark.parametrize(
    ("prices", "drifts"),
    [
        ({"registry": 9190, "measured": 7888}, True),
        ({"registry": 8937, "measured": 10_125}, True),
        ({"registry": 10_000, "measured": 9500}, False),
        ({"registry": 10_000, "measured": 10_501}, True),
        ({"registry": 9190}, None),
        ({"measured": 7888}, None),
        ({}, None),
    ],
)
def test_price_drift(prices: dict[str, int], drifts: bool | None) -> None:
    known = replace(ledger(), kv_bytes_per_token=prices)
    assert judge(known=known).findings.get("kv_price_drift") is drifts


@pytest.mark.parametrize(
    ("locked", "not_locked", "failed"),
    [(None, None, None), ("38.8", None, False), ("0.0", "47.7", True), (None, "47.7", True), ("38.8", "0.0", False)],
)
def test_host_memory_that_could_not_be_locked(locked: str | None, not_locked: str | None, failed: bool | None) -> None:
    report = replace(
        BOOTED,
        ple_locked=None if locked is None else gib(locked),
        ple_not_locked=None if not_locked is None else gib(not_locked),
    )
    assert judge(report=report).findings.get("mlock_failed") is failed


def test_an_assumed_law_is_a_finding() -> None:
    assert judge(report=None).findings["law_assumed"] is True
    assert judge().findings["law_assumed"] is False


# What is unknown


def test_nothing_known_gives_an_empty_verdict() -> None:
    verdict = verdicts.judge(ledger=None, report=None, shape=None, phase="unknown", measured={}, policy=POLICY)
    assert verdict == Verdict()


def test_a_device_alone_has_margins_and_no_more() -> None:
    verdict = verdicts.judge(
        ledger=None, report=None, shape=None, phase="unknown", measured=left("0.93", "0.10"), policy=POLICY
    )
    assert verdict.ranks["0"].margin_high_water == printed_bytes("0.10")
    assert verdict.knife_edge == {"measured_margin": True}
    assert verdict.findings == {"knife_edge": True}
    assert verdict.sentences == ("rank 0: 0.10 GiB left at the high-water mark, below the critical floor of 0.25 GiB",)
    assert verdict.contract_tokens is None


def test_a_rank_whose_device_is_not_known_has_no_margin_and_leaves_no_all_clear() -> None:
    one = {"0": left("0.93")["0"]}
    verdict = judge(measured=one)
    assert verdict.ranks["1"].margin_now is None
    assert verdict.ranks["1"].margin_high_water is None
    assert "measured_margin" not in verdict.knife_edge
    assert judge(measured={"0": left("0.10")["0"]}).knife_edge["measured_margin"] is True


def test_the_contract_may_be_the_engine_s_own_length() -> None:
    auto = replace(SHAPE, max_model_len=None)
    assert judge(auto).contract_tokens == WINDOW
    assert judge(auto, replace(BOOTED, max_model_len=None)).contract_tokens is None
    silent = judge(report=replace(BOOTED, kv_tokens=None))
    assert silent.contract_tokens == WINDOW
    assert "kv_below_contract" not in silent.knife_edge


def test_without_a_limit_or_a_utilization_nothing_is_said_of_it() -> None:
    blind = ledger(SHAPE, said(PLAN_G), free=None)
    assert "utilization_limit" not in judge(known=blind, phase="starting").knife_edge
    unstated = replace(ledger(SHAPE, BOOTED), utilization_ratio=None)
    assert "utilization_limit" not in judge(known=unstated, phase="starting").knife_edge


def test_a_measured_limit_has_no_rounding_to_be_certain_of() -> None:
    known = ledger(replace(SHAPE, utilization=1.0), free=None)
    ranks = {name: replace(rank, bootable=False, limit=ledger().ranks["0"].limit) for name, rank in known.ranks.items()}
    exact = {name: _exact(rank) for name, rank in ranks.items()}
    verdict = judge(phase="starting", known=replace(known, ranks=exact), measured={})
    assert verdict.ranks["0"].why["utilization_limit"].endswith("enough for 0.982 at most")


def _exact(rank: RankLedger) -> RankLedger:
    assert rank.limit is not None
    return replace(rank, limit=replace(rank.limit, low=0.982, high=0.982, source="measured"))


@given(
    st.sampled_from(PHASES),
    st.integers(min_value=0, max_value=SIZE),
    st.integers(min_value=0, max_value=SIZE),
    st.booleans(),
)
def test_every_reason_that_holds_has_one_sentence_and_some_rank_says_why(
    phase: Phase, used: int, more: int, with_report: bool
) -> None:
    worst = min(SIZE, used + more)
    measured = {name: Measured(SIZE, used, worst) for name in ("0", "1")}
    verdict = judge(report=BOOTED if with_report else None, phase=phase, measured=measured)
    holding = [reason for reason, holds in verdict.knife_edge.items() if holds]
    assert len(verdict.sentences) == len(holding)
    for reason in holding:
        assert reason == "kv_below_contract" or any(reason in rank.why for rank in verdict.ranks.values())
    assert verdict.ranks["0"].margin_now == SIZE - used
    assert verdict.ranks["0"].margin_high_water == SIZE - worst
