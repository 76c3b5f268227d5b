"""
One exception tree.

BudgetExporterError
├── ConfigError        a file, key, line or flag the operator gave is wrong; the message names it
├── SourceError        a source's run failed; the message says what was read and how it failed
│   └── SourceDenied   the run lacked a permission; the message names the capability that grants it
└── LawError           a law was given an impossible input (negative size, unknown flavour)
"""

from __future__ import annotations

__all__ = ["BudgetExporterError", "ConfigError", "LawError", "SourceDenied", "SourceError"]


class BudgetExporterError(Exception):
    """Base of everything raised on purpose."""


class ConfigError(BudgetExporterError):
    """A configuration, registry or flag is wrong; one line names file, key and line."""


class SourceError(BudgetExporterError):
    """A source's run failed."""


class SourceDenied(SourceError):  # noqa: N818 - reads as what happened: the source was denied
    """A source lacks a permission; the message names the capability that grants it."""


class LawError(BudgetExporterError):
    """A law was given an impossible input."""
