"""Follow an asynchronous witness of one engine (its supervisor or its log) and try again when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from budget_exporter.engines import Supervisor
from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogSource, LogTarget, Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import BootReport, Failure
from budget_exporter.facts.engine import Supervision
from budget_exporter.facts.source import SourceHealth
from budget_exporter.sidecar.runner import StateLog

__all__ = ["Follower", "Health", "Reading", "Watcher"]

RETRY = (1.0, 2.0, 5.0, 10.0)
"""Seconds between tries; the last one for ever."""


class Health:
    """Health of one event-driven source: it succeeds for as long as all its tasks are connected."""

    def __init__(self, name: str, interval: float, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self._interval = interval
        self._clock = clock
        self._errors: dict[str, str] = {}
        self._runs = 0
        self._failures = 0
        self._last_success: float | None = None
        self._duration = 0.0
        self._log = StateLog(f"source.{name}")

    def ran(self, who: str, error: str = "", duration: float = 0.0) -> None:
        """Note a run of the task ``who``: a batch or a change taken in, or a failure."""
        self._runs += 1
        self._failures += bool(error)
        self._duration = duration
        self._errors[who] = error
        self._log.note(self._error())

    def left(self, who: str) -> None:
        """Forget the task ``who``."""
        self._errors.pop(who, None)

    def _error(self) -> str:
        return "; ".join(sorted({error for error in self._errors.values() if error}))

    def health(self) -> SourceHealth:
        """Return the health; without an error in any task the source is succeeding now."""
        error = self._error()
        if not error:
            self._last_success = self._clock()
        return SourceHealth(
            self.name,
            self._interval,
            success=not error,
            duration=self._duration,
            last_success=self._last_success,
            runs=self._runs,
            failures=self._failures,
            error=error,
            settled=True,
        )


class Watcher:
    """What the supervisor says of one unit, newest first."""

    def __init__(self, unit: str, supervisor: Supervisor, health: Health, wake: Callable[[], None]) -> None:
        self.unit = unit
        self.latest: Supervision | None = None
        self._supervisor = supervisor
        self._health = health
        self._wake = wake

    async def run(self) -> None:
        """Watch until cancelled."""
        tries = 0
        try:
            while True:
                try:
                    async for supervision in self._supervisor.watch(self.unit):
                        self.latest = supervision
                        tries = 0
                        self._health.ran(self.unit)
                        self._wake()
                    error = "the supervisor ended its answer"
                except SourceError as failed:
                    error = str(failed)
                self.latest = None
                self._health.ran(self.unit, error)
                await asyncio.sleep(RETRY[min(tries, len(RETRY) - 1)])
                tries += 1
        finally:
            self._health.left(self.unit)


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine's log has said so far."""

    report: BootReport
    boots: int
    """Boot starts seen in this log since the follower began."""
    main_pid: int | None
    caught_up: bool = False


class Follower:
    """One engine's log, read and parsed off the event loop."""

    def __init__(
        self,
        target: LogTarget,
        source: LogSource,
        health: Health,
        wake: Callable[[], None],
        *,
        cursor: str | None = None,
        initial: BootReport | None = None,
    ) -> None:
        self.target = target
        self.source_name = source.name
        self.cursor = cursor
        self._source = source
        self._health = health
        self._wake = wake
        self._reader = BootReader(initial)
        self._failures: list[Failure] = []
        self._resumed = cursor is not None
        self.past_failure: Failure | None = None
        """The newest death of a log that was there before us."""
        self.reading = Reading(initial or BootReport(), 0, None)
        # A thread of its own: one log that hangs must not hold up another's.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"log-{target.engine}")

    def take_failures(self) -> list[Failure]:
        """Return the failures found since the last call, once the log's past has been read."""
        if not self.reading.caught_up:
            return []
        failures, self._failures = self._failures, []
        return failures

    async def run(self) -> None:
        """Follow until cancelled."""
        tries = 0
        try:
            while True:
                try:
                    async for batch in self._source.batches(self.target, self.cursor):
                        tries = 0
                        await self._take(batch)
                    error = f"{self.target.engine}: the log ended"
                except SourceError as failed:
                    error = f"{self.target.engine}: {failed}"
                self._health.ran(self.target.engine, error)
                await asyncio.sleep(RETRY[min(tries, len(RETRY) - 1)])
                tries += 1
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._health.left(self.target.engine)

    async def _take(self, batch: Sequence[Record]) -> None:
        old = self.reading
        began = time.monotonic()
        if batch:
            loop = asyncio.get_running_loop()
            self.reading, failures = await loop.run_in_executor(self._executor, self._feed, batch, old.caught_up)
            self._failures += failures
            self.cursor = batch[-1].cursor
        elif not old.caught_up:
            self.reading = Reading(old.report, old.boots, old.main_pid, caught_up=True)
            if not self._resumed and self._failures:
                # Read for the first time: these deaths are history. The newest is remembered, none is counted.
                self.past_failure = self._failures[-1]
                self._failures = []
        self._health.ran(self.target.engine, duration=time.monotonic() - began)
        if (old.report.phase, old.boots, old.caught_up) != self._stage() or self._failures:
            self._wake()

    def _stage(self) -> tuple[str, int, bool]:
        return self.reading.report.phase, self.reading.boots, self.reading.caught_up

    def _feed(self, batch: Sequence[Record], caught_up: bool) -> tuple[Reading, list[Failure]]:
        self._reader.feed(batch)
        failures = list(self._reader.take_failures())
        return Reading(self._reader.report(), self._reader.boots, self._reader.main_pid, caught_up), failures
