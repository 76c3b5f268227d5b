"""What is worth saying of an engine beyond its knife edge; a finding that could not be evaluated is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.endpoint import EndpointFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger
from budget_exporter.facts.verdict import Finding, KnifeEdgeReason
from budget_exporter.verdicts.drift import Drift
from budget_exporter.verdicts.logic import all_of, any_known, any_of
from budget_exporter.verdicts.mismatch import mismatch, of_tokens
from budget_exporter.verdicts.own_words import above_servable, kv_misleading, uncharged, unclosed, utilization_misread

__all__ = ["PRICE_DRIFT", "findings"]

PRICE_DRIFT = 0.05
"""Share by which the measured price of a token may differ from the planned one."""


def findings(
    *,
    ledger: Ledger | None,
    report: BootReport | None,
    facts: Mapping[str, RankFacts],
    drifts: Sequence[Drift | None],
    tolerance: int,
    knife_edge: Mapping[KnifeEdgeReason, bool],
    shape: Shape | None = None,
    endpoint: EndpointFacts | None = None,
) -> dict[Finding, bool]:
    """
    Return the findings that could be evaluated.

    ``facts`` are by rank, ``drifts`` in the same order, bytes; ``shape`` what the flags say, ``endpoint`` what the
    engine's metrics do.
    """
    ranks = {} if ledger is None else ledger.ranks
    answers: dict[Finding, bool | None] = {
        # The heavier rank binds: an over-charge is one only where no rank needs it.
        "graph_charge_over": all_of(None if drift is None else drift.below(tolerance) for drift in drifts),
        "graph_charge_under": any_known(
            [
                any_of(None if drift is None else drift.above(tolerance) for drift in drifts),
                any_known(uncharged(fact, report, tolerance) for fact in facts.values()),
            ]
        ),
        "graph_charge_negative": any_of(_negative(fact) for fact in facts.values()),
        "graph_estimate_not_charged": any_of(_not_charged(fact, report) for fact in facts.values()),
        "kv_price_drift": None if ledger is None else _price_drift(ledger.kv_bytes_per_token),
        "model_mismatch": any_known(
            [
                *(mismatch(ranks[name], fact) for name, fact in facts.items() if name in ranks),
                of_tokens(ledger, None if report is None else report.kv_tokens),
                *(unclosed(fact, report) for fact in facts.values()),
            ]
        ),
        "mlock_failed": _mlock_failed(report),
        "kv_report_misleading": kv_misleading(report, facts.values(), endpoint, shape),
        "util_misread": utilization_misread(report, facts.values(), shape),
        "advertised_above_servable": above_servable(report),
        "law_assumed": None if ledger is None else ledger.assumed,
        "knife_edge": any_of(knife_edge.values()),
    }
    return {finding: answer for finding, answer in answers.items() if answer is not None}


def _negative(facts: RankFacts) -> bool | None:
    """Return whether capture gave memory back: it fitted pages that had been counted already."""
    capture = facts.graph_capture
    return None if capture is None else capture.bytes + capture.rounding < 0


def _not_charged(facts: RankFacts, report: BootReport | None) -> bool | None:
    applied = None if report is None else report.graph_charge_applied
    if applied is None or facts.graph_estimate is None:
        return None
    return not applied and facts.graph_estimate.bytes > 0


def _mlock_failed(report: BootReport | None) -> bool | None:
    """Return whether host memory could not be locked, which a missing memlock limit does; None without a word of it."""
    if report is None or (report.ple_locked is None and report.ple_not_locked is None):
        return None
    return report.ple_not_locked is not None and report.ple_not_locked.bytes > 0


def _price_drift(prices: Mapping[str, int]) -> bool | None:
    planned, measured = prices.get("registry"), prices.get("measured")
    if not planned or measured is None:
        return None
    return abs(measured - planned) > PRICE_DRIFT * planned
