"""Pure: compare plan, the engine's own words and measurement, and judge."""

from __future__ import annotations

from budget_exporter.verdicts.judgement import judge

__all__ = ["judge"]
