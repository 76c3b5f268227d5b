"""Which endpoints are asked: one task for each engine that runs and whose endpoint may be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budget_exporter import sources
from budget_exporter.engines.address import Address, configured
from budget_exporter.facts.endpoint import EndpointState
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.sidecar.health import Health

if TYPE_CHECKING:
    from budget_exporter.engines.endpoint import EndpointSource
    from budget_exporter.sidecar.asker import Asker

__all__ = ["NAME", "Endpoints"]

NAME = "endpoint"
CLOSE = 0.3
"""Seconds the tasks have to end when the exporter stops."""


@dataclass(frozen=True, slots=True)
class _Asked:
    asker: Asker
    task: asyncio.Task[None]


class Endpoints:
    """Start and end the tasks as engines come, change and go; ``interval`` are the seconds between two questions."""

    def __init__(
        self, roots: Roots, off: frozenset[str], wake: Callable[[], None], interval: float | None = None
    ) -> None:
        self._roots = roots
        self._on = NAME not in off
        self._wake = wake
        self._interval = interval
        self._source: EndpointSource | None = None
        self._health: Health | None = None
        self._asked: dict[str, _Asked] = {}
        self._ended: set[asyncio.Task[None]] = set()

    def attend(self, engines: Iterable[Engine]) -> None:
        """See to it that the right endpoints are asked, and give each engine what its endpoint says."""
        present = {engine.name: engine for engine in engines}
        for name in self._asked.keys() - present.keys():
            self._end(name)
        for name, engine in present.items():
            address = _address(engine) if self._on else None
            askable = address is not None and not address.why
            asked = self._asked.get(name)
            if asked is not None and (not askable or asked.asker.asked != (engine.main, address)):
                self._end(name)
            if address is None:
                engine.endpoint = None
            elif address.why:
                engine.endpoint = EndpointState(why=address.why)
            else:
                engine.endpoint = self._ask(engine, address)

    def _ask(self, engine: Engine, address: Address) -> EndpointState:
        asked = self._asked.get(engine.name)
        if asked is None:
            # Only now: the client costs nothing where nobody is asked.
            from budget_exporter.sidecar.asker import Asker  # noqa: PLC0415

            source = self._source = self._source or sources.load(NAME, self._roots, self._interval)
            health = self._health = self._health or Health(NAME, source.interval)
            asker = Asker(engine.name, engine.main, address, source, health, self._wake)
            health.joined(asker)
            task = asyncio.create_task(asker.run(), name=f"endpoint {engine.name}")
            asked = self._asked[engine.name] = _Asked(asker, task)
        if engine.running is not None:
            asked.asker.see(frozenset(worker.pid for worker in engine.running.sighting.workers))
        return asked.asker.state

    def _end(self, name: str) -> None:
        asked = self._asked.pop(name)
        if self._health is not None:
            self._health.left(asked.asker)
        asked.task.cancel()
        self._ended.add(asked.task)
        asked.task.add_done_callback(self._ended.discard)

    def health(self) -> list[SourceHealth]:
        """Return the health of the source, if it is in use."""
        return [self._health.health()] if self._health is not None and self._health.used else []

    async def close(self) -> None:
        """End all tasks; those that do not end in time are left to the end of the process."""
        for name in list(self._asked):
            self._end(name)
        if self._ended:
            await asyncio.wait(set(self._ended), timeout=CLOSE)


def _address(engine: Engine) -> Address | None:
    """Return where the engine is to be asked: where its configuration says, else where its flags do."""
    if engine.running is None:
        return None
    endpoint = engine.config.endpoint if engine.config is not None else True
    if isinstance(endpoint, str):
        return configured(endpoint, engine.config.endpoint_ca if engine.config is not None else None)
    return engine.running.address if endpoint else None
