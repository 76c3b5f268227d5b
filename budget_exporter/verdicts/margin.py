"""What is left on a device, now and at its worst, and what no flag can reach; bytes, signed."""

from __future__ import annotations

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.ledger import RankLedger
from budget_exporter.facts.verdict import Measured

__all__ = ["at_high_water", "estimator_gap", "now"]


def now(measured: Measured | None) -> int | None:
    """Return size minus use."""
    return None if measured is None else measured.size - measured.used


def at_high_water(measured: Measured | None) -> int | None:
    """Return size minus the largest use."""
    return None if measured is None else measured.size - measured.high_water


def estimator_gap(ledger: RankLedger | None, measured: Measured | None, phase: Phase) -> int | None:
    """
    Return ``(size - used) - (size - requested)``: free memory measured minus the free memory the plan predicted.

    Only while serving, since a boot has not taken its memory yet and a sleeping engine has given it back. None also
    where an explicit KV pool replaces the utilization and the rest of the request is not known.
    """
    if ledger is None or measured is None or phase != "serving":
        return None
    if ledger.size != measured.size or (ledger.pool is None and ledger.kv_pool is not None):
        return None
    return (measured.size - measured.used) - (ledger.size - ledger.requested)
