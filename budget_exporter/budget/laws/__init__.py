"""One file per budget law; ``budget/choose.py`` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput
from budget_exporter.facts.model import ModelFiles

__all__ = ["Law", "Version"]

Version = tuple[int, ...]


class Law(Protocol):
    """The arithmetic of one flavour of engine over a range of versions."""

    @property
    def name(self) -> str:
        """Return the law's name, the ``law`` label."""
        ...

    @property
    def flavour(self) -> str:
        """Return the kind of engine; the laws of one flavour share out its versions."""
        ...

    @property
    def since(self) -> Version:
        """Return the first version it holds for."""
        ...

    @property
    def until(self) -> Version | None:
        """Return the first version it holds for no longer; None for the newest law."""
        ...

    @property
    def examined_until(self) -> Version | None:
        """Return the first version nobody has examined: from there on the newest law is an assumption."""
        ...

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks: one call, since the KV pool is a minimum over ranks.

        ``model`` is what the model's files say, None where nobody has looked. Raise LawError for an impossible input.
        """
        ...
