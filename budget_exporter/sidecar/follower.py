"""Follow the log of one engine: read and parsed off the event loop, tried again when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from budget_exporter.evidence import LogSource, LogTarget, Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import BootReport, Failure
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.sidecar.health import Health
from budget_exporter.sidecar.watcher import again_and_again

__all__ = ["Follower", "Reading", "Resumed", "Told"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine's log has said so far."""

    report: BootReport
    boots: int = 0
    """Boot starts seen in this log since the follower began."""
    began: float | None = None
    """Unix time at which the newest of them began, at the latest; None where that is not known."""
    main_pid: int | None = None
    unparsed: int = 0
    """Budget lines that did not parse, since the follower began."""
    caught_up: bool = False
    failing: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where an earlier exporter was in the log, and what it knew of the boot of the process ``main``."""

    cursor: str
    main: ProcessKey | None
    report: BootReport | None


@dataclass(frozen=True, slots=True)
class Told:
    """A death that the log told of; ``newest`` where it is that of the newest boot."""

    failure: Failure
    newest: bool


class Follower:
    """One engine's log; ``written`` tells when it was last written to, where that can be told."""

    def __init__(
        self,
        target: LogTarget,
        source: LogSource,
        health: Health,
        wake: Callable[[], None],
        *,
        resumed: Resumed | None = None,
        written: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.target = target
        self.source_name = source.name
        self.resumed = resumed
        self.cursor = resumed.cursor if resumed else None
        self.past_failure: Failure | None = None
        """The newest death of a log that was there before us."""
        self._source = source
        self._health = health
        self._wake = wake
        self._written = written
        self._clock = clock
        initial = (resumed.report if resumed else None) or BootReport()
        self._reader = BootReader(initial, clock)
        self._unparsed_before = initial.unparsed
        self._told: list[Told] = []
        self._told_boot = 0 if initial.failure else -1
        self._feeding = False
        self.reading = Reading(initial)
        # A thread of its own: one log that hangs must not hold up another's.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"log-{target.engine}")

    @property
    def heard(self) -> bool:
        """Return whether all that the log has said is known now."""
        return self.reading.caught_up and not self.reading.failing and not self._health.overdue(self)

    @property
    def troubled(self) -> bool:
        """Return whether the log may still tell of a death: it is not read yet, or one is not told to its end."""
        reading = self.reading
        return not reading.caught_up or (reading.report.failure is not None and self._told_boot != reading.boots)

    def take_told(self) -> list[Told]:
        """Return the deaths told since the last call, once the log's past has been read."""
        if not self.reading.caught_up:
            return []
        if not self._feeding:
            # Some deaths count as told when nothing more is said of them.
            self._note(self.reading, self._reader.take_failures())
        told, self._told = self._told, []
        return told

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            await again_and_again(self._follow, self._failed)
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _follow(self, connected: Callable[[], None]) -> str:
        # Closed here and not by the garbage collector: a child may hang on it.
        async with contextlib.aclosing(self._source.batches(self.target, self.cursor)) as batches:  # type: ignore[type-var]  # generators
            async for batch in batches:
                connected()
                await self._take(batch)
        return "the log ended"

    def _failed(self, error: str) -> None:
        self.reading = replace(self.reading, failing=True)
        self._health.ran(self, f"{self.target.engine}: {error}")
        self._wake()

    async def _take(self, batch: Sequence[Record]) -> None:
        old, started = self.reading, time.monotonic()
        if batch:
            self._note(*await self._off_the_loop(self._feed, batch, old))
            self.cursor = batch[-1].cursor
        elif not old.caught_up:
            written = await self._off_the_loop(self._written)
            self._past_is_read(written)
        elif old.failing:
            self.reading = replace(old, failing=False)
        more, took = not self.reading.caught_up, time.monotonic() - started
        self._health.ran(self, duration=took, more=more, beat=self._source.beat)
        if self.reading.caught_up and (_stage(old) != _stage(self.reading) or self._told):
            self._wake()

    async def _off_the_loop(self, work: Callable[..., T], *arguments: object) -> T:
        self._feeding = True
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        except Exception:
            self._feeding = False
            raise
        # Not where this was cancelled: then the thread still works with the reader.
        self._feeding = False
        return result

    def _feed(self, batch: Sequence[Record], old: Reading) -> tuple[Reading, list[Failure]]:
        began = old.began
        for record in batch:
            boots = self._reader.boots
            self._reader.feed([record])
            if self._reader.boots != boots:
                # Of lines that were there before us it is not known when they were written, if they do not say so.
                began = record.at if record.at is not None else self._clock() if old.caught_up else None
        report = self._reader.report()
        reading = Reading(
            report=report,
            boots=self._reader.boots,
            began=began,
            main_pid=self._reader.main_pid,
            unparsed=report.unparsed - self._unparsed_before,
            caught_up=old.caught_up,
        )
        return reading, list(self._reader.take_failures())

    def _note(self, reading: Reading, failures: Sequence[Failure]) -> None:
        self.reading = reading
        self._told += [Told(failure, newest=failure == reading.report.failure) for failure in failures]
        if failures and self._told[-1].newest:
            self._told_boot = reading.boots

    def _past_is_read(self, written: float | None) -> None:
        if self.resumed is None and self._told:
            # Read for the first time: these deaths are history. The newest is remembered, none is counted.
            self.past_failure = self._told[-1].failure
            self._told = []
        began = self.reading.began
        if began is None and self.reading.boots:
            began = self._clock() if written is None else written
        self.reading = replace(self.reading, began=began, caught_up=True, failing=False)


def _stage(reading: Reading) -> tuple[str, int, bool, bool]:
    return reading.report.phase, reading.boots, reading.caught_up, reading.failing
