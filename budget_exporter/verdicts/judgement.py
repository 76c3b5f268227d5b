"""All that follows for one engine, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from budget_exporter.budget.terms import facts_of
from budget_exporter.facts.boot import BootReport, Phase, RankFacts
from budget_exporter.facts.endpoint import EndpointFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.history import Past
from budget_exporter.facts.ledger import Ledger, RankLedger
from budget_exporter.facts.verdict import Finding, KnifeEdgeReason, Measured, Policy, RankVerdict, Verdict
from budget_exporter.verdicts import knife_edge, margin
from budget_exporter.verdicts.advice import advise
from budget_exporter.verdicts.advice_case import Case
from budget_exporter.verdicts.drift import Drift, drift, drift_said, suggested_charge
from budget_exporter.verdicts.findings import findings
from budget_exporter.verdicts.knife_edge import Answer
from budget_exporter.verdicts.logic import any_of
from budget_exporter.verdicts.own_words import blocks_said, unclosed_said
from budget_exporter.verdicts.past import of_past, said_of_past, sentences_of_past

__all__ = ["judge"]

Answers = Mapping[KnifeEdgeReason, Answer]
OF_RANKS: tuple[KnifeEdgeReason, ...] = (
    "measured_margin",
    "predicted_margin",
    "utilization_limit",
    "capture_over_charge",
    "kv_minimum",
    "compile_cap",
)
"""Reasons that are asked of every rank, what was measured before what is predicted."""


def judge(
    *,
    ledger: Ledger | None,
    report: BootReport | None,
    shape: Shape | None,
    phase: Phase,
    measured: Mapping[str, Measured],
    policy: Policy,
    past: Past | None = None,
    endpoint: EndpointFacts | None = None,
) -> Verdict:
    """
    Return the verdict on one engine.

    ``measured`` is what the device of each rank holds (bytes, by rank), ``phase`` where the engine is, ``policy`` what
    its operator accepts, ``endpoint`` what its metrics say. Whatever is unknown may be None or missing: what depends on
    it is then absent from the verdict.
    """
    ranks = {} if ledger is None else ledger.ranks
    names = list(dict.fromkeys((*ranks, *measured)))
    facts = {name: RankFacts() if report is None else facts_of(report, name) for name in names}
    drifts = {name: drift(ranks.get(name), facts[name]) for name in names}
    answers = {
        name: _rank_answers(ranks.get(name), measured.get(name), facts[name], drifts[name], ledger, phase, policy)
        for name in names
    }
    contract = _contract(policy, shape, report)
    tokens = None if report is None else report.kv_tokens
    whole: Answers = {
        "kv_below_contract": knife_edge.kv_below_contract(tokens, contract),
        "kv_minimum": knife_edge.kv_minimum_tokens(ledger, tokens, phase),
    }
    reasons, sentences = _reasons(answers, whole)
    spoken = facts or _spoken(report)
    verdict = Verdict(
        ranks={
            name: RankVerdict(
                rank=name,
                margin_now=margin.now(measured.get(name)),
                margin_high_water=margin.at_high_water(measured.get(name)),
                drift=_bytes(drifts[name]),
                estimator_gap=margin.estimator_gap(ranks.get(name), measured.get(name), phase),
                floor_reached=_floor_reached(past, name, measured.get(name), policy),
                why={reason: answer.sentence for reason, answer in answers[name].items() if answer.holds},
            )
            for name in names
        },
        knife_edge=reasons,
        findings=findings(
            ledger=ledger,
            report=report,
            facts=spoken,
            drifts=list(drifts.values()) or _drifts_said(report),
            tolerance=policy.graph_drift_tolerance,
            knife_edge=reasons,
            shape=shape,
            endpoint=endpoint,
        )
        | of_past(past),
        contract_tokens=contract,
        graph_charge_suggested=None if report is None else _suggested(report),
        sentences=(*sentences, *sentences_of_past(past)),
        said=_said(spoken, report, endpoint, shape) | said_of_past(past),
    )
    return replace(verdict, advice=advise(Case(verdict, policy, ledger, report, shape)))


def _floor_reached(past: Past | None, rank: str, measured: Measured | None, policy: Policy) -> float | None:
    trend = None if past is None else past.trends.get(rank)
    if trend is None or measured is None:
        return None
    return trend.seconds_to(measured.size - measured.used - policy.floors.critical)


def _spoken(report: BootReport | None) -> dict[str, RankFacts]:
    """Return the facts of the ranks an engine spoke of, where no other rank of it is known."""
    if report is None:
        return {}
    return {str(rank): report.of(rank) for rank in sorted(report.ranks)} or {"0": report.common}


def _said(
    facts: Mapping[str, RankFacts], report: BootReport | None, endpoint: EndpointFacts | None, shape: Shape | None
) -> dict[Finding, str]:
    """Return what there is to say of the engine's own words beyond what each finding means."""
    open_ends = ((name, unclosed_said(fact, report)) for name, fact in facts.items())
    told: dict[Finding, str] = {
        "kv_report_misleading": blocks_said(endpoint, shape),
        "model_mismatch": next((f"rank {name}: {text}" for name, text in open_ends if text), ""),
    }
    return {finding: text for finding, text in told.items() if text}


def _drifts_said(report: BootReport | None) -> list[Drift | None]:
    return [] if report is None else [drift_said(report, facts) for facts in _spoken(report).values()]


def _rank_answers(
    rank: RankLedger | None,
    measured: Measured | None,
    facts: RankFacts,
    drifted: Drift | None,
    ledger: Ledger | None,
    phase: Phase,
    policy: Policy,
) -> Answers:
    return {
        "predicted_margin": knife_edge.predicted_margin(rank, policy),
        "measured_margin": knife_edge.measured_margin(margin.at_high_water(measured), phase, policy),
        "utilization_limit": knife_edge.utilization(rank, ledger, phase),
        "capture_over_charge": knife_edge.capture_over_charge(drifted, policy),
        "kv_minimum": knife_edge.kv_minimum_bytes(rank, facts, ledger, phase),
        "compile_cap": knife_edge.compile_cap(rank, facts),
    }


def _reasons(answers: Mapping[str, Answers], whole: Answers) -> tuple[dict[KnifeEdgeReason, bool], tuple[str, ...]]:
    """
    Return the reasons that could be evaluated, and one sentence for each that holds: its tightest rank's.

    ``answers`` are those of each rank, ``whole`` those of the engine.
    """
    reasons: dict[KnifeEdgeReason, bool] = {}
    sentences: list[str] = []
    for reason in OF_RANKS:
        holds = any_of(of_rank[reason].holds for of_rank in answers.values())
        if holds is not None:
            reasons[reason] = holds
        holding = [(of_rank[reason].room, name) for name, of_rank in answers.items() if of_rank[reason].holds]
        if holding:
            _, name = min(holding)
            sentences.append(f"rank {name}: {answers[name][reason].sentence}")
    for reason, answer in whole.items():
        if answer.holds is not None:
            reasons[reason] = answer.holds or reasons.get(reason, False)
        if answer.holds:
            sentences.append(answer.sentence)
    return reasons, tuple(sentences)


def _contract(policy: Policy, shape: Shape | None, report: BootReport | None) -> int | None:
    """
    Return the tokens promised: what the configuration says, else one request of ``max_model_len``.

    Never ``max_num_seqs`` times it: a pool that holds fewer full windows than sequences may be meant to.
    """
    if policy.contract_tokens is not None:
        return policy.contract_tokens
    if shape is not None and shape.max_model_len is not None:
        return shape.max_model_len
    return None if report is None else report.max_model_len


def _suggested(report: BootReport) -> int | None:
    return suggested_charge(facts.graph_capture for facts in (report.common, *report.ranks.values()))


def _bytes(drifted: Drift | None) -> int | None:
    return None if drifted is None else drifted.bytes
