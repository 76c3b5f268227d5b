"""
What is running, with which flags, on which device, and who restarts it.

An engine finder is loaded by its module's name and offers ``source(roots) -> EngineSource``; a supervisor offers
``supervisor(roots) -> Supervisor``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from budget_exporter.facts.engine import EngineSighting, Supervision

__all__ = ["EngineSource", "Supervisor"]


class EngineSource(Protocol):
    """Find engines; blocking, so it is run in a thread of its own."""

    name: str
    interval: float

    def find(self) -> tuple[list[EngineSighting], list[str]]:
        """
        Return the engines running now and one sentence per fault (an engine that could only be read in part).

        A fault makes the run a failed one, the sightings are used all the same.
        Raise SourceError when nothing can be read.
        """
        ...


class Supervisor(Protocol):
    """Follow one unit or container; asynchronous."""

    name: str

    def watch(self, unit: str) -> AsyncIterator[Supervision]:
        """
        Yield the present state at once, then each change, until cancelled.

        Raise SourceError where the supervisor cannot be reached; the caller tries again later.
        """
        ...
