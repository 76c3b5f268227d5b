"""A version as numbers that can be compared."""

from __future__ import annotations

import re

from budget_exporter.budget.laws import Version
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape

__all__ = ["parse_version", "version_text"]

_NUMBERS = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def parse_version(text: str | None) -> Version | None:
    """Return the numbers a version begins with (``0.11.1rc2+rocm`` is 0.11.1), None where there are none."""
    match = _NUMBERS.match(text or "")
    return tuple(int(part) for part in match[1].split(".")) if match else None


def version_text(shape: Shape, report: BootReport | None) -> str:
    """Return the engine's version as it is printed, else as its installed package says; empty where neither tells."""
    said = None if report is None else report.version
    return said or shape.version or ""
