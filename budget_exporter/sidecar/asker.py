"""Ask one engine's endpoint for as long as the engine lives: its health often, its metrics now and then."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from budget_exporter.engines.address import Address
from budget_exporter.engines.endpoint import Endpoint, EndpointSource
from budget_exporter.errors import SourceError
from budget_exporter.facts.endpoint import Answer, EndpointState
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.sidecar.health import Health
from budget_exporter.sidecar.watcher import again_and_again

__all__ = ["Asker"]

UNKNOWN_EVERY = 2
KNOWN_EVERY = 6
"""Intervals between two looks at the metrics, while their figures are wanting and later: rendering them is work."""
TROUBLED = 30.0
"""Seconds after an engine was last well in which it is asked every second: what dies does not wait."""
TROUBLED_PAUSE = 1.0


class Asker:
    """What the endpoint at ``address`` says of the engine with the main process ``main``; ``state`` is the newest."""

    def __init__(
        self,
        engine: str,
        main: ProcessKey | None,
        address: Address,
        source: EndpointSource,
        health: Health,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked = (main, address)
        self.state = EndpointState()
        self._engine = engine
        self._source = source
        self._health = health
        self._wake = wake
        self._clock = clock
        self._monotonic = monotonic
        self._answered = False
        self._well: float | None = None
        """When it was last well."""
        self._due = 0.0
        self._length_asked = False
        self._soon = asyncio.Event()
        self._seen: frozenset[int] | None = None

    def see(self, processes: frozenset[int]) -> None:
        """Take the engine's processes; where they are others than before it is asked at once."""
        if self._seen is not None and processes != self._seen:
            self._soon.set()
        self._seen = processes

    async def run(self) -> None:
        """Ask until cancelled."""
        await again_and_again(self._ask, self._failed)

    async def _ask(self, connected: Callable[[], None]) -> str:
        async with self._source.opened(self.asked[1]) as endpoint:
            while True:
                await self._round(endpoint)
                connected()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._soon.wait(), self._pause())
                self._soon.clear()

    def _pause(self) -> float:
        ailing = self.state.health != "ok" and self._well is not None
        if ailing and self._monotonic() - (self._well or 0.0) < TROUBLED:
            return min(TROUBLED_PAUSE, self._source.interval)
        return self._source.interval

    async def _round(self, endpoint: Endpoint) -> None:
        started = self._monotonic()
        answer = await endpoint.health()
        self._note(answer)
        self._ran(answer.why, started)
        if answer.health == "ok" and started >= self._due:
            started = self._monotonic()
            self._ran(await self._facts(endpoint), started)

    def _note(self, answer: Answer) -> None:
        old = self.state
        if answer.health == "ok":
            self._well = self._monotonic()
        changed = answer.health != old.health
        since = old.since
        if changed:
            # Since when it has been what it was at the first question is not known.
            since = self._clock() if self._answered else None
        facts = old.facts if answer.health == "ok" or old.facts is None else old.facts.quiet()
        self.state = replace(old, health=answer.health, why=answer.why, since=since, facts=facts)
        self._answered = True
        if changed:
            self._wake()

    async def _facts(self, endpoint: Endpoint) -> str:
        """Ask for the figures; return what went wrong."""
        old = self.state.facts
        try:
            facts = replace(await endpoint.facts(), max_model_len=old.max_model_len if old is not None else None)
            if facts.complete and not self._length_asked:
                facts = replace(facts, max_model_len=await endpoint.max_model_len())
                self._length_asked = True
        except SourceError as error:
            self._due = self._monotonic() + self._source.interval * UNKNOWN_EVERY
            if old is not None:
                self.state = replace(self.state, facts=old.quiet())
            return str(error)
        self._due = self._monotonic() + self._source.interval * (KNOWN_EVERY if facts.complete else UNKNOWN_EVERY)
        self.state = replace(self.state, facts=facts, told_at=self._clock())
        if old is None:
            self._wake()
        return ""

    def _ran(self, error: str, started: float) -> None:
        told = f"{self._engine}: {error}" if error else ""
        self._health.ran(self, told, duration=self._monotonic() - started, beat=self._source.beat)

    def _failed(self, error: str) -> None:
        self._note(Answer(why=error))
        self._health.ran(self, f"{self._engine}: {error}")
