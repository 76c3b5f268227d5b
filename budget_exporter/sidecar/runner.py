"""Run a blocking source in a thread of its own, for ever, and keep what it said and how it fared."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from budget_exporter.errors import SourceError
from budget_exporter.sidecar.outcome import Outcome, StateLog

__all__ = ["Runner", "StateLog"]

T = TypeVar("T")
A = TypeVar("A")


class Runner(Outcome[T, A]):
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
        super().__init__(name, interval, fold, timeout, clock, monotonic)
        self._run = run
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"source-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its present run; never waits for one that hangs."""
        self._stop.set()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end, at most ``timeout`` seconds; return whether it ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        due = self._monotonic()
        while not self._stop.is_set():
            began = self._monotonic()
            self.once()
            # Where it keeps its interval, by a grid that does not drift with the time that a run takes.
            due = began + self.pace if self.pace > self._interval else max(due + self._interval, self._monotonic())
            self._stop.wait(max(0.0, due - self._monotonic()))

    def once(self) -> None:
        """Make one run, in the caller's thread."""
        began = self._begin()
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
