"""
Follow a log file through rotation, truncation and copytruncate.

A missing file is waited for as long as its directory can be read; a missing or unreadable directory is a SourceError,
so that a mistyped path is seen. Only regular files are read: opening a FIFO would take another reader's lines.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from budget_exporter.errors import SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.followed import BEAT, Followed
from budget_exporter.evidence.tail import Tail
from budget_exporter.evidence.zone import Zoned
from budget_exporter.roots import Roots

__all__ = ["FileSource", "source"]


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
    beat: float | None = BEAT

    def __init__(self, rootfs: Path, poll: float, limit: int, clock: Callable[[], float]) -> None:
        self._rootfs = rootfs
        self._poll = poll
        self._limit = limit
        self._clock = clock

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the file's lines from its start, or after ``cursor``, as many in a record as one read brought.

        A line that comes once the file has been read to its end was written just now, so it has our time: its own stamp
        has neither a zone nor a fraction. Carriage returns end a line as newlines do: a progress bar is many short
        lines, not one long one. Parts of one line that docker or podman wrote to a file of theirs are put together.
        Raise SourceError where ``target.path`` is missing from the target or its directory cannot be read, SourceDenied
        where the file may not be read.
        """
        if target.path is None:
            raise SourceError(f"no path given for the log of {target.engine}")
        path = self._rootfs / target.path.lstrip("/")
        tail = Zoned(path, Tail(path, cursor, self._limit))
        follower = Followed(tail, f"file:{path.name}", self._poll, self._limit, self._clock)
        follower.start()
        try:
            while True:
                yield await follower.next()
        finally:
            follower.stop()
