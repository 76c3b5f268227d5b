"""
What the engine says of itself: log sources, envelopes, patterns, and the boot they add up to.

A log source is loaded by its module's name and offers ``source(roots) -> LogSource``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LogSource", "LogTarget", "Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """
    One line as a log source delivers it, or whole lines of which nothing more is known than of one (a file's).

    ``at`` is the source's own Unix time or None (a file has none), ``cursor`` where to go on after this record and
    ``data`` the bytes without the last line end. ``cut`` says that the last line was longer than the limit and its rest
    was dropped. ``zone`` are the seconds by which the stamps in the lines are ahead of UTC, None where nothing tells.
    Of a batch only the last record needs a cursor.
    """

    data: bytes
    cursor: str = ""
    at: float | None = None
    pid: int | None = None
    stream: str = ""
    cut: bool = False
    zone: int | None = None


@dataclass(frozen=True, slots=True)
class LogTarget:
    """
    Whose log: a path for a file, a unit or container for the journal, a container for its daemon, a pod for kubelet's.

    ``container`` is a name, ``container_id`` a whole id, ``socket`` the daemon's as a path of ours, ``pod`` a
    ``NAMESPACE/POD/CONTAINER`` of shell patterns or a pod's UID; ``since`` is the engine's start.
    """

    engine: str
    path: str | None = None
    unit: str | None = None
    container: str | None = None
    since: float | None = None
    container_id: str | None = None
    socket: str | None = None
    pod: str | None = None


class LogSource(Protocol):
    """Follow one engine's log; asynchronous, in batches so that parsing can leave the event loop."""

    name: str
    beat: float | None
    """Seconds within which a batch comes, empty or not, if the source does not hang; None where it cannot tell."""

    def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield what is there at once, then what is added, until cancelled; go on after ``cursor`` where one is given.

        An empty batch means "nothing more for now" and lets the caller know that it has caught up.
        Raise SourceError where the log cannot be read; the caller tries again later.
        """
        ...
