"""Pure: the arithmetic of budgets on ints and floats, no I/O and no clock."""

from __future__ import annotations

from budget_exporter.budget.ledger import compute

__all__ = ["compute"]
