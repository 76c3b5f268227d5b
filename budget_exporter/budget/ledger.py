"""The budget of an engine: the law chosen for it, applied to all of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from budget_exporter.budget.batch_defaults import note_of
from budget_exporter.budget.choose import choose
from budget_exporter.budget.version import parse_version
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput
from budget_exporter.facts.model import ModelFiles

__all__ = ["compute"]

_UPSTREAM = ("vllm_gpu", "vllm_cpu")
"""Flavours whose defaults are vLLM's own."""


def compute(
    shape: Shape,
    ranks: Sequence[RankInput],
    report: BootReport | None,
    constants: Constants | None,
    model: ModelFiles | None = None,
) -> Ledger:
    """
    Return the ledger of ``ranks`` (sizes in bytes) under the law that ``choose`` gives the engine.

    ``report`` is what the engine has said so far, ``constants`` the fitted figures that fit it, ``model`` what its
    model's files say; each may be None, then fewer terms are known. Raise LawError, naming the field, for an impossible
    size, ratio or length, and for an engine on a device that no law is for.
    """
    choice = choose(shape, report, ranks)
    ledger = choice.law.ledger(shape, ranks, report if report is not None else BootReport(), constants, model)
    notes = list(ledger.notes)
    default = note_of(shape, parse_version(choice.version), ranks) if choice.law.flavour in _UPSTREAM else None
    notes += [] if default is None else [default]
    if choice.assumed:
        version = f"version {choice.version}" if choice.version else "an unknown version"
        notes.append(f"law {choice.name} is assumed for {version}")
    return replace(ledger, version=choice.version, assumed=choice.assumed, notes=tuple(notes))
