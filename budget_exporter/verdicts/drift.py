"""Graph capture against the charge that was applied for it; bytes, signed: positive is under-charged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.ledger import RankLedger, Term

__all__ = ["Drift", "charge_of", "drift", "drift_said", "suggested_charge"]

_CHARGES = re.compile(r"0\.[2-9]\d\b|[1-9]")
"""Releases whose default is to charge the estimate."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Capture minus charge; ``rounding`` is how far printed figures leave it open."""

    bytes: int
    rounding: int
    capture: Printed
    charge: int

    def above(self, tolerance: int) -> bool:
        """Return whether the capture certainly exceeds the charge by more than ``tolerance``."""
        return self.bytes - self.rounding > tolerance

    def below(self, tolerance: int) -> bool:
        """Return whether the charge certainly exceeds the capture by more than ``tolerance``."""
        return self.bytes + self.rounding < -tolerance


def charge_of(ledger: RankLedger | None) -> Term | None:
    """Return the graph charge that was applied, None where nothing was charged or nothing is known."""
    charges = () if ledger is None else ledger.charges
    return next((term for term in charges if term.name == "cuda_graphs" and term.bytes > 0), None)


def drift(ledger: RankLedger | None, facts: RankFacts) -> Drift | None:
    """Return the drift of one rank; None without a charge above 0 or without a capture."""
    charge = charge_of(ledger)
    return None if charge is None else _drift(facts.graph_capture, charge.bytes, charge.rounding)


def drift_said(report: BootReport, facts: RankFacts) -> Drift | None:
    """
    Return the drift of one rank by the engine's words alone; None where it did not say that it charged its estimate.

    From vLLM 0.20 on an estimate that is printed is charged unless a line says otherwise.
    """
    applied, estimate = report.graph_charge_applied, facts.graph_estimate
    if applied is None:
        applied = _CHARGES.match(report.version or "") is not None
    if not applied or estimate is None or estimate.bytes <= 0:
        return None
    return _drift(facts.graph_capture, estimate.bytes, estimate.rounding)


def _drift(capture: Printed | None, charge: int, rounding: int) -> Drift | None:
    return None if capture is None else Drift(capture.bytes - charge, capture.rounding + rounding, capture, charge)


def suggested_charge(captures: Iterable[Printed | None]) -> int | None:
    """Return the charge that would have covered the heaviest rank; 0 where every capture is negative."""
    known = [capture.bytes for capture in captures if capture is not None]
    return max(0, *known) if known else None
