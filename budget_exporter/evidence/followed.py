"""A file followed in a daemon thread of its own: one that hangs in the kernel blocks its own follower only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from budget_exporter.evidence import Record
from budget_exporter.evidence.partials import Partials

__all__ = ["BEAT", "Followed", "Readable"]

BEAT = 2.0
"""Seconds after which a look that found nothing new is told too: a file system that hangs must not seem quiet."""
_AHEAD = 2
"""Batches read ahead of the consumer: with the chunk of a tail this bounds what a follower holds."""


class Readable(Protocol):
    """What is followed."""

    def read(self) -> list[Record]:
        """Return what is new, nothing where nothing is."""
        ...

    @property
    def opened(self) -> bool:
        """Return whether there is something to be read from."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class Followed:
    """
    Hand what is read to the event loop.

    ``poll`` are the seconds between two looks, ``clock`` gives the time of what comes once the end has been reached,
    None where the lines have a time of their own.
    """

    def __init__(self, what: Readable, name: str, poll: float, limit: int, clock: Callable[[], float] | None) -> None:
        self._what = what
        self._poll = poll
        self._partials = Partials(limit)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._batches: deque[Sequence[Record] | BaseException] = deque()
        self._room = threading.Semaphore(_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end; it is not waited for, as it may hang in the kernel."""
        self._stopped.set()
        self._room.release()

    async def next(self) -> Sequence[Record]:
        """Return the next batch, or raise what reading raised."""
        while not self._batches:
            self._ready.clear()
            await self._ready.wait()
        batch = self._batches.popleft()
        self._room.release()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def _run(self) -> None:
        try:
            caught_up = live = False
            told = time.monotonic()
            while not self._stopped.is_set():
                batch = self._partials.join(self._what.read())
                if batch or not caught_up or time.monotonic() - told >= BEAT:
                    told = time.monotonic()
                    caught_up = not batch
                    self._hand(self._timed(batch) if live else batch)
                else:
                    self._stopped.wait(self._poll)
                live = live or (not batch and self._what.opened)
        except Exception as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._hand(error)
        finally:
            self._what.close()

    def _timed(self, batch: Sequence[Record]) -> Sequence[Record]:
        if self._clock is None:
            return batch
        now = self._clock()
        return [replace(record, at=now) for record in batch]

    def _hand(self, batch: Sequence[Record] | BaseException) -> None:
        self._room.acquire()
        if self._stopped.is_set():
            return
        self._batches.append(batch)
        with contextlib.suppress(RuntimeError):  # the loop was closed without stopping us
            self._loop.call_soon_threadsafe(self._ready.set)
