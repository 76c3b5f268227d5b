"""Graph capture against the charge that was applied for it; bytes, signed: positive is under-charged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from budget_exporter.facts.boot import Printed, RankFacts
from budget_exporter.facts.ledger import RankLedger, Term

__all__ = ["Drift", "charge_of", "drift", "suggested_charge"]


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
    charge, capture = charge_of(ledger), facts.graph_capture
    if charge is None or capture is None:
        return None
    return Drift(capture.bytes - charge.bytes, capture.rounding + charge.rounding, capture, charge.bytes)


def suggested_charge(captures: Iterable[Printed | None]) -> int | None:
    """Return the charge that would have covered the heaviest rank; 0 where every capture is negative."""
    known = [capture.bytes for capture in captures if capture is not None]
    return max(0, *known) if known else None
