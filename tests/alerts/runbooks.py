"""Where the runbooks are, and the queries in them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.alerts.promtools import ALERTS

__all__ = ["RUNBOOKS", "queries"]

RUNBOOKS = ALERTS / "runbooks"
_BLOCK = re.compile(r"```promql\n(.*?)```", re.DOTALL)


def queries(path: Path) -> list[str]:
    """Return the queries of one runbook, one a line."""
    return [line for block in _BLOCK.findall(path.read_text()) for line in block.splitlines()]
