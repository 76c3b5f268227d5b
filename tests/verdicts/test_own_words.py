"""What an engine says that misleads, and why it died where figures leave no choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import verdicts
from budget_exporter.facts.boot import BootReport, Cause, Failure, Phase, RankFacts
from budget_exporter.facts.endpoint import EndpointFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.verdict import Finding, Floors, Policy, Verdict
from budget_exporter.units import MIB
from budget_exporter.verdicts.cause import deduced, doomed
from budget_exporter.verdicts.own_words import unclosed_said
from tests.budget.offload import gib

POLICY = Policy(Floors(critical=256 * MIB, warning=768 * MIB), graph_drift_tolerance=128 * MIB)
CLOSED = RankFacts(
    requested=gib("14.20"),
    weights=gib("7.51"),
    non_torch=gib("0.39"),
    activation=gib("2.53"),
    kv_available=gib("3.76"),
)


def judged(report: BootReport | None, shape: Shape | None = None, endpoint: EndpointFacts | None = None) -> Verdict:
    phase: Phase = "unknown" if report is None else report.phase
    return verdicts.judge(
        ledger=None, report=report, shape=shape, phase=phase, measured={}, policy=POLICY, endpoint=endpoint
    )


def found(report: BootReport | None, shape: Shape | None = None) -> dict[Finding, bool]:
    return dict(judged(report, shape).findings)


def died(cause: Cause, phase: Phase = "allocating_kv") -> Failure:
    return Failure(at=0.0, phase=phase, cause=cause)


@pytest.mark.parametrize(
    ("tokens", "concurrency", "misleading"),
    [
        (188_640, 5.23, True),
        (467_520, 3.5669, False),
        (467_520, 3.57, False),
        (700_000, 1.07, False),
        (None, 5.23, None),
        (188_640, 0.0, None),
        (188_640, None, None),
    ],
)
def test_tokens_that_understate_what_concurrency_tells(
    tokens: int | None, concurrency: float | None, misleading: bool | None
) -> None:
    report = BootReport(phase="serving", kv_tokens=tokens, kv_concurrency=concurrency, max_model_len=131_072)

    assert found(report).get("kv_report_misleading") == misleading


def test_tokens_without_a_length_say_nothing() -> None:
    assert "kv_report_misleading" not in found(BootReport(kv_tokens=188_640, kv_concurrency=5.23))


@pytest.mark.parametrize(
    ("weights", "non_torch", "misleading"),
    [("0.93", "32.40", True), ("33.00", "32.40", False), ("0.93", "10.00", False), ("0.93", "2.90", False)],
)
def test_memory_outside_of_torch_that_can_not_be_the_engines(weights: str, non_torch: str, misleading: bool) -> None:
    facts = RankFacts(requested=gib("65.32"), weights=gib(weights), non_torch=gib(non_torch))

    assert found(BootReport(ranks={0: facts}))["kv_report_misleading"] == misleading


@pytest.mark.parametrize("gap", ["weights", "non_torch", "requested"])
def test_memory_outside_of_torch_is_judged_only_against_known_terms(gap: str) -> None:
    assert "kv_report_misleading" not in found(BootReport(common=replace(CLOSED, **{gap: None})))


@pytest.mark.parametrize(
    ("facts", "utilization", "misread"),
    [
        (RankFacts(requested=gib("1.50"), weights=gib("5.20")), 0.1, True),
        (RankFacts(requested=gib("5.60"), weights=gib("5.20"), size_at_init=gib("8.00")), 0.3, False),
        (RankFacts(requested=gib("5.60"), size_at_init=gib("8.00")), 0.3, None),
        (RankFacts(), 0.1, True),
        (RankFacts(), 0.7, False),
        (RankFacts(), None, None),
    ],
)
def test_a_share_too_small_for_an_engine_was_meant_for_its_kv(
    facts: RankFacts, utilization: float | None, misread: bool | None
) -> None:
    report = BootReport(phase="failing", common=facts, failure=died("no_kv_room"))

    assert found(report, Shape(utilization=utilization)).get("util_misread") == misread


def test_a_share_without_flags_is_judged_by_figures_alone() -> None:
    assert "util_misread" not in found(BootReport(phase="failing", failure=died("no_kv_room")))


@pytest.mark.parametrize(
    ("report", "misread"),
    [
        (None, None),
        (BootReport(phase="serving"), False),
        (BootReport(phase="profiling"), None),
        (BootReport(phase="failing", failure=died("weights_oom")), None),
    ],
)
def test_a_share_is_misread_only_where_there_was_no_room(report: BootReport | None, misread: bool | None) -> None:
    assert found(report, Shape(utilization=0.1)).get("util_misread") == misread


@pytest.mark.parametrize(
    ("report", "under"),
    [
        (BootReport(phase="capturing", common=CLOSED), True),
        (BootReport(phase="serving", common=CLOSED), None),
        (BootReport(phase="serving", common=replace(CLOSED, graph_capture=gib("1.21"))), True),
        (BootReport(phase="serving", common=replace(CLOSED, graph_capture=gib("0.10"))), False),
        (BootReport(phase="capturing", common=replace(CLOSED, kv_available=gib("3.00"))), None),
        (BootReport(phase="capturing", common=replace(CLOSED, requested=None)), None),
        (BootReport(phase="capturing", common=replace(CLOSED, activation=None)), None),
        (BootReport(phase="capturing", common=replace(CLOSED, graph_estimate=gib("0.50"))), None),
        (BootReport(phase="capturing", common=CLOSED, graph_charge_applied=True), None),
    ],
)
def test_graphs_come_on_top_of_a_budget_that_closes_without_them(report: BootReport, under: bool | None) -> None:
    assert found(report).get("graph_charge_under") == under


@pytest.mark.parametrize(
    ("version", "applied", "estimate", "capture", "over", "under"),
    [
        ("0.26.0", None, "4.20", "0.10", True, False),
        ("0.26.0", None, "0.50", "1.10", False, True),
        ("0.26.0", False, "4.20", "0.10", None, None),
        ("0.19.0", None, "4.20", "0.10", None, None),
        ("0.19.0", True, "4.20", "0.10", True, False),
        (None, None, "4.20", "0.10", None, None),
        ("0.26.0", None, "0.00", "0.10", None, None),
        ("0.26.0", None, "4.20", None, None, None),
        ("0.26.0", None, None, "0.10", None, None),
    ],
)
def test_drift_by_the_engines_words_where_no_law_is_known(
    version: str | None,
    applied: bool | None,
    estimate: str | None,
    capture: str | None,
    over: bool | None,
    under: bool | None,
) -> None:
    facts = RankFacts(
        graph_estimate=gib(estimate) if estimate else None, graph_capture=gib(capture) if capture else None
    )
    findings = found(BootReport(version=version, graph_charge_applied=applied, ranks={0: facts}))

    assert (findings.get("graph_charge_over"), findings.get("graph_charge_under")) == (over, under)


@pytest.mark.parametrize(
    ("report", "above"),
    [
        (BootReport(phase="serving", kv_concurrency=0.97), True),
        (BootReport(phase="serving", kv_concurrency=1.07, kv_tokens=10, max_model_len=100), False),
        (BootReport(phase="serving", kv_tokens=3_792, max_model_len=4_096), True),
        (BootReport(phase="serving", kv_tokens=4_096, max_model_len=4_096), False),
        (BootReport(phase="serving", kv_tokens=4_096), None),
        (BootReport(phase="serving", max_model_len=4_096), None),
        (BootReport(phase="allocating_kv", kv_concurrency=0.97), None),
        (BootReport(phase="failing", kv_concurrency=0.97, failure=died("kv_below_max_len")), None),
        (None, None),
    ],
)
def test_a_length_is_advertised_that_the_pool_does_not_serve(report: BootReport | None, above: bool | None) -> None:
    assert found(report).get("advertised_above_servable") == above


BLOCKS = BootReport(phase="failing", common=RankFacts(kv_blocks=378))
DRIFTED = BootReport(common=RankFacts(kv_bytes_per_token_planned=8937, kv_bytes_per_token_measured=10125))


@pytest.mark.parametrize(
    ("report", "shape", "cause"),
    [
        (BLOCKS, Shape(max_model_len=8192), "kv_below_max_len"),
        (BLOCKS, Shape(max_model_len=8192, block_size=32), None),
        (BLOCKS, Shape(max_model_len=6048), None),
        (BLOCKS, Shape(), None),
        (BLOCKS, None, None),
        (replace(BLOCKS, max_model_len=8192), None, "kv_below_max_len"),
        (replace(BLOCKS, max_model_len=8192, phase="capturing"), None, None),
        (BootReport(max_model_len=8192, common=RankFacts(kv_blocks=0)), None, None),
        (BootReport(max_model_len=8192), None, None),
        (DRIFTED, None, "kv_below_max_len"),
        (DRIFTED, Shape(), "kv_below_max_len"),
        (DRIFTED, Shape(kv_cache_memory_bytes=1 << 30), None),
        (replace(DRIFTED, common=replace(DRIFTED.common, kv_bytes_per_token_measured=9302)), None, None),
        (replace(DRIFTED, common=RankFacts(kv_bytes_per_token_planned=8937)), None, None),
        (BootReport(common=RankFacts(kv_available=gib("-1.05"))), None, "no_kv_room"),
        (BootReport(common=RankFacts(kv_available=gib("1.05"))), None, None),
    ],
)
def test_figures_that_leave_an_engine_no_choice(report: BootReport, shape: Shape | None, cause: Cause | None) -> None:
    assert doomed(report, shape) == cause


@pytest.mark.parametrize(
    ("failure", "report", "cause", "phase"),
    [
        (died("unknown", "unknown"), DRIFTED, "kv_below_max_len", "allocating_kv"),
        (died("unknown", "serving"), DRIFTED, "unknown", "serving"),
        (died("unknown", "starting"), BootReport(), "unknown", "starting"),
        (died("unknown", "starting"), None, "unknown", "starting"),
        (died("weights_oom", "loading"), DRIFTED, "weights_oom", "loading"),
    ],
)
def test_only_a_death_without_a_cause_before_the_pool_gets_one(
    failure: Failure, report: BootReport | None, cause: Cause, phase: Phase
) -> None:
    known = deduced(failure, report, None)

    assert (known.cause, known.phase) == (cause, phase)


POOL = EndpointFacts(replicas=1, kv_blocks=1024, block_size=128, kv_tokens=131_072)


@pytest.mark.parametrize(
    ("changed", "asked", "misleading", "said"),
    [
        ({}, None, False, None),
        ({}, 128, False, None),
        # Layers that keep a window share the blocks with those that keep all.
        ({"kv_tokens": 39_384}, None, True, "its blocks times their size are 131,072 tokens, its pool holds 39,384"),
        # The blocks of both replicas, the tokens of one.
        ({"replicas": 2, "kv_tokens": 65_536}, None, False, None),
        ({"kv_blocks": 341, "kv_tokens": 42_625}, None, False, None),
        ({"block_size": 528}, 16, True, None),
        (
            {"block_size": 528, "kv_tokens": 540_672},
            16,
            True,
            "its blocks hold 528 tokens, --block-size asked for 16",
        ),
        ({"kv_tokens": None}, None, None, None),
        ({"kv_tokens": 0}, None, None, None),
        ({"replicas": 0}, None, None, None),
        ({"kv_blocks": None}, 128, False, None),
        ({"block_size": None}, 128, None, None),
    ],
)
def test_blocks_that_are_not_what_they_seem(
    changed: dict[str, int], asked: int | None, misleading: bool | None, said: str | None
) -> None:
    verdict = judged(None, Shape(block_size=asked), replace(POOL, **changed))  # type: ignore[arg-type]
    assert verdict.findings.get("kv_report_misleading") is misleading
    if said is not None or not misleading:
        assert verdict.said.get("kv_report_misleading") == said


@pytest.mark.parametrize(
    ("facts", "applied", "apart"),
    [
        (CLOSED, None, False),
        (replace(CLOSED, kv_available=gib("3.70")), None, True),
        (replace(CLOSED, kv_available=gib("3.80")), None, True),
        (replace(CLOSED, kv_available=gib("3.26"), multimodal=gib("0.50")), None, False),
        (replace(CLOSED, kv_available=gib("3.26"), graph_estimate=gib("0.50")), True, False),
        (replace(CLOSED, kv_available=gib("3.26"), graph_estimate=gib("0.50")), False, True),
        (replace(CLOSED, graph_estimate=gib("0.50")), True, True),
        (replace(CLOSED, graph_estimate=gib("0.50")), None, False),
        (replace(CLOSED, kv_available=gib("3.26"), graph_estimate=gib("0.50")), None, False),
        (replace(CLOSED, kv_available=gib("2.00"), graph_estimate=gib("0.50")), None, True),
        (replace(CLOSED, kv_available=gib("3.70")), True, True),
        (replace(CLOSED, weights=None), None, None),
        (replace(CLOSED, requested=None), None, None),
        (replace(CLOSED, kv_available=gib("1.00"), kv_reserved=gib("1.00")), None, None),
        (replace(CLOSED, kv_available=gib("1.00"), free_after_load=gib("5.00")), None, None),
    ],
)
def test_printed_terms_that_do_not_sum_to_the_request(
    facts: RankFacts, applied: bool | None, apart: bool | None
) -> None:
    verdict = judged(BootReport(phase="serving", ranks={1: facts}, graph_charge_applied=applied))
    assert verdict.findings.get("model_mismatch") is apart
    assert ("model_mismatch" in verdict.said) is (apart is True)


def test_what_the_printed_terms_leave_open_is_said() -> None:
    less, more = replace(CLOSED, kv_available=gib("3.70")), replace(CLOSED, kv_available=gib("4.00"))
    assert judged(BootReport(common=less)).said["model_mismatch"] == (
        "rank 0: the terms the engine printed do not close: 0.07 GiB are missing from the 14.20 GiB it asked for"
    )
    assert judged(BootReport(common=more)).said["model_mismatch"] == (
        "rank 0: the terms the engine printed do not close: 0.23 GiB are more than the 14.20 GiB it asked for"
    )
    assert unclosed_said(replace(less, requested=None), None) == ""
