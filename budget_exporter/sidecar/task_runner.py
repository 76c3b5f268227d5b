"""Run an asynchronous source in a task of its own, each run within a time limit, and keep what it said."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from budget_exporter.errors import SourceError
from budget_exporter.sidecar.outcome import Outcome

__all__ = ["TaskRunner"]

T = TypeVar("T")
A = TypeVar("A")


class TaskRunner(Outcome[T, A]):
    """
    Await ``run`` every ``interval`` seconds in one task, fold the results until they are taken.

    A run that takes longer than ``timeout`` seconds is cancelled and has failed; the next one is made in its turn.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        run: Callable[[], Awaitable[tuple[T, list[str]]]],
        fold: Callable[[A | None, T], A],
        *,
        timeout: float = 5.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, interval, fold, timeout, clock, monotonic)
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; called in the event loop."""
        self._task = asyncio.create_task(self._loop(), name=f"source {self.name}")

    def stop(self) -> None:
        """Cancel the task; the event loop ends it."""
        if self._task is not None:
            self._task.cancel()

    async def _loop(self) -> None:
        while True:
            began = self._begin()
            await self._once(began)
            await asyncio.sleep(max(0.0, began + self.pace - self._monotonic()))

    async def _once(self, began: float) -> None:
        result: T | None = None
        try:
            async with asyncio.timeout(self._timeout):
                result, faults = await self._run()
        except SourceError as error:
            faults = [str(error)]
        except TimeoutError:
            faults = [f"no answer within {self._timeout:g} s"]
        except Exception as error:  # what is watched must never end the watcher
            logging.getLogger(f"budget_exporter.source.{self.name}").debug("run failed", exc_info=True)
            faults = [f"{type(error).__name__}: {error}"]
        self._settle(result, "; ".join(faults), self._monotonic() - began)
