"""
What is running, with which flags, on which device, and who restarts it.

An engine finder is loaded by its module's name and offers ``source(roots) -> EngineSource``; a supervisor offers
``supervisor(roots) -> Supervisor``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from budget_exporter.facts.container import Container
from budget_exporter.facts.engine import EngineSighting, Supervision

__all__ = ["ContainerSource", "EngineSource", "Supervisor"]


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


class ContainerSource(Protocol):
    """Hear of containers from the daemons that run them; asynchronous."""

    name: str

    async def sockets(self) -> list[Path]:
        """Return the sockets of the daemons that there are now; none is no fault."""
        ...

    def watch(self, socket: Path) -> AsyncIterator[tuple[tuple[Container, ...], list[str]]]:
        """
        Yield the containers of one daemon at once and after each change, and one sentence per fault, until cancelled.

        Raise SourceError where the daemon cannot be reached; the caller tries again later.
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
