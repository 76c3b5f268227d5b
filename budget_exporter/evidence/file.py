"""
Follow a log file through rotation, truncation and copytruncate.

A missing file is waited for as long as its directory can be read; a missing or unreadable directory is a SourceError,
so that a mistyped path is seen. Only regular files are read: opening a FIFO would take another reader's lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.tail import Tail
from budget_exporter.roots import Roots

__all__ = ["FileSource", "source"]

_BEAT = 2.0
"""Seconds after which a look that found nothing new is told too: a file system that hangs must not seem quiet."""
_AHEAD = 2
"""Batches read ahead of the consumer: with the chunk of a tail this bounds what a follower holds."""


def source(roots: Roots, poll: float = 0.25, limit: int = 65536, clock: Callable[[], float] = time.time) -> FileSource:
    """
    Return the log source of plain files.

    ``roots.rootfs`` is put before every path, ``poll`` are the seconds between two looks at a file that has not grown,
    ``limit`` the bytes of a line that are kept, ``clock`` gives Unix seconds.
    """
    return FileSource(roots.rootfs, poll, limit, clock)


class FileSource:
    """Follow files, each in a thread of its own: a file system that hangs blocks its own follower only."""

    name = "file"
    beat: float | None = _BEAT

    def __init__(self, rootfs: Path, poll: float, limit: int, clock: Callable[[], float]) -> None:
        self._rootfs = rootfs
        self._poll = poll
        self._limit = limit
        self._clock = clock

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the file's lines from its start, or after ``cursor`` (``device:inode:offset``).

        A line that comes once the file has been read to its end was written just now, so it has our time: its own stamp
        has neither a zone nor a fraction. Carriage returns end a line as newlines do: a progress bar is many short
        lines, not one long one.
        Raise SourceError where ``target.path`` is missing from the target or its directory cannot be read, SourceDenied
        where the file may not be read.
        """
        if target.path is None:
            raise SourceError(f"no path given for the log of {target.engine}")
        path = self._rootfs / target.path.lstrip("/")
        follower = _Follower(Tail(path, cursor, self._limit), self._poll, self._clock)
        follower.start()
        try:
            while True:
                yield await follower.next()
        finally:
            follower.stop()


class _Follower:
    """One tail in one daemon thread, handing batches to the event loop."""

    def __init__(self, tail: Tail, poll: float, clock: Callable[[], float]) -> None:
        self._tail = tail
        self._poll = poll
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._batches: deque[Sequence[Record] | BaseException] = deque()
        self._room = threading.Semaphore(_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"file:{tail.path.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end; it is not waited for, as it may hang in the kernel."""
        self._stopped.set()
        self._room.release()

    async def next(self) -> Sequence[Record]:
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
                batch = self._tail.read()
                if batch or not caught_up or time.monotonic() - told >= _BEAT:
                    told = time.monotonic()
                    caught_up = not batch
                    self._hand([replace(record, at=self._clock()) for record in batch] if live else batch)
                else:
                    self._stopped.wait(self._poll)
                live = live or (not batch and self._tail.opened)
        except Exception as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._hand(error)
        finally:
            self._tail.close()

    def _hand(self, batch: Sequence[Record] | BaseException) -> None:
        self._room.acquire()
        if self._stopped.is_set():
            return
        self._batches.append(batch)
        with contextlib.suppress(RuntimeError):  # the loop was closed without stopping us
            self._loop.call_soon_threadsafe(self._ready.set)
