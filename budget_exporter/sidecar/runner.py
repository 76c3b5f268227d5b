"""Run a blocking source in a thread of its own, for ever, and keep what it said and how it fared."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from budget_exporter.errors import SourceError
from budget_exporter.facts.source import SourceHealth

__all__ = ["Runner", "StateLog"]

T = TypeVar("T")
A = TypeVar("A")


class StateLog:
    """Log what is wrong with ``name`` when that changes, not every time it is noticed."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(f"budget_exporter.{name}")
        self._last = ""

    def note(self, error: str) -> None:
        """Log ``error`` where it differs from the last one; an empty text means that the source works."""
        if error == self._last:
            return
        if error:
            self._log.warning(error)
        else:
            self._log.info("works again")
        self._last = error


class Runner(Generic[T, A]):
    """
    Call ``run`` every ``interval`` seconds in one daemon thread, fold the results until they are taken.

    A run that hangs in the kernel cannot be stopped: its thread is left alone, no second one is started, the source
    turns stale after ``timeout`` seconds and recovers by itself when the call returns. ``run`` returns its result and
    the faults that make the run a failed one.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        run: Callable[[], tuple[T, list[str]]],
        fold: Callable[[A | None, T], A],
        *,
        timeout: float = 5.0,
        wake: Callable[[T], None] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._interval = interval
        self._run = run
        self._fold = fold
        self._timeout = timeout
        self._wake = wake
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._taken: A | None = None
        self._began: float | None = None
        self._gave: float | None = None
        self._health = SourceHealth(name, interval, success=False, duration=0.0, last_success=None, runs=0, failures=0)
        self._log = StateLog(f"source.{name}")
        self._thread = threading.Thread(target=self._loop, name=f"source-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its present run; never waits for one that hangs."""
        self._stop.set()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end, at most ``timeout`` seconds; return whether it ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def take(self) -> A | None:
        """Return what was folded since the last call, None where no run gave a result."""
        with self._lock:
            taken, self._taken = self._taken, None
            return taken

    @property
    def fresh(self) -> bool:
        """Return whether the newest result is no older than one run may take after the one before it."""
        with self._lock:
            gave = self._gave
        return gave is not None and self._monotonic() - gave <= self._interval + self._timeout

    def health(self) -> SourceHealth:
        """Return the source's health; a run in flight for longer than the time limit is a failure."""
        with self._lock:
            health, began = self._health, self._began
        if began is None or self._monotonic() - began <= self._timeout:
            return health
        stuck = f"no answer for {self._monotonic() - began:.0f} s"
        self._log.note("no answer within the time limit; the thread is left alone")
        return SourceHealth(
            health.name,
            health.interval,
            success=False,
            duration=health.duration,
            last_success=health.last_success,
            runs=health.runs,
            failures=health.failures,
            error=stuck,
            settled=True,
        )

    def _loop(self) -> None:
        due = self._monotonic()
        while not self._stop.is_set():
            self._once()
            due = max(due + self._interval, self._monotonic())
            self._stop.wait(due - self._monotonic())

    def _once(self) -> None:
        began = self._monotonic()
        with self._lock:
            self._began = began
        result: T | None = None
        try:
            result, faults = self._run()
        except SourceError as error:
            faults = [str(error)]
        except Exception as error:  # what is watched must never end the watcher
            logging.getLogger(f"budget_exporter.source.{self.name}").debug("run failed", exc_info=True)
            faults = [f"{type(error).__name__}: {error}"]
        self._settle(result, "; ".join(faults), self._monotonic() - began)
        if self._wake is not None and result is not None:
            self._wake(result)

    def _settle(self, result: T | None, error: str, duration: float) -> None:
        with self._lock:
            old = self._health
            self._began = None
            if result is not None:
                self._taken = self._fold(self._taken, result)
                self._gave = self._monotonic()
            self._health = SourceHealth(
                self.name,
                self._interval,
                success=not error,
                duration=duration,
                last_success=old.last_success if error else self._clock(),
                runs=old.runs + 1,
                failures=old.failures + bool(error),
                error=error,
                settled=True,
            )
        self._log.note(error)
