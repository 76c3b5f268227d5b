"""Follow what the supervisor says of one unit, and try again when that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from budget_exporter.engines import Supervisor
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import Supervision
from budget_exporter.sidecar.health import Health

__all__ = ["Watcher", "again_and_again"]

RETRY = (1.0, 2.0, 5.0, 10.0)
"""Seconds between tries; the last one for ever."""


async def again_and_again(
    follow: Callable[[Callable[[], None]], Awaitable[str]], failed: Callable[[str], None]
) -> None:
    """
    Run ``follow`` for ever; each time it raises, or returns why it ended, tell ``failed`` and wait a while.

    ``follow`` is given a function to call when it is connected, so that the next failure is waited for briefly again.
    """
    tries = 0

    def connected() -> None:
        nonlocal tries
        tries = 0

    while True:
        try:
            error = await follow(connected)
        except SourceError as raised:
            error = str(raised)
        except Exception as raised:  # noqa: BLE001 - what is watched must never end the watcher
            error = f"{type(raised).__name__}: {raised}"
        failed(error)
        await asyncio.sleep(RETRY[min(tries, len(RETRY) - 1)])
        tries += 1


class Watcher:
    """What the supervisor says of one unit; ``latest`` is None while it cannot be heard."""

    def __init__(self, unit: str, supervisor: Supervisor, health: Health, wake: Callable[[], None]) -> None:
        self.unit = unit
        self.latest: Supervision | None = None
        self._supervisor = supervisor
        self._health = health
        self._wake = wake

    async def run(self) -> None:
        """Watch until cancelled."""
        await again_and_again(self._watch, self._failed)

    async def _watch(self, connected: Callable[[], None]) -> str:
        # Closed here and not by the garbage collector: a child may hang on it.
        async with contextlib.aclosing(self._supervisor.watch(self.unit)) as changes:  # type: ignore[type-var]  # generators
            async for supervision in changes:
                connected()
                self.latest = supervision
                self._health.ran(self)
                self._wake()
        return "the supervisor ended its answer"

    def _failed(self, error: str) -> None:
        self.latest = None
        self._health.ran(self, error)
        self._wake()
