"""
Where in a container's log a reader is, and how it finds that place again.

A daemon can be asked for the lines since a moment, not for those after a line; podman prints whole seconds. So the
lines since the second before the last one are counted, and the last few of them are known by a checksum.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime

from budget_exporter.evidence.container_frames import Said

__all__ = ["Finder", "Place", "Seconds"]

_LAST = 4
"""Lines in the checksum: enough to tell one place from another where a program repeats itself."""
_BACK = 1
"""Seconds before the last line's from which lines are counted: two streams' lines may be that much out of order."""
_DIGITS = 16


class Seconds:
    """Turn stamps to Unix time; all stamps of a second are read once."""

    def __init__(self) -> None:
        self._second = self._zone = b"none"
        self._unix = 0

    def of(self, stamp: bytes) -> float | None:
        """Return the Unix time of an RFC 3339 stamp, None for what is none."""
        second, rest = stamp[:19], stamp[19:]
        fraction, zone = (rest[:-1], b"Z") if rest.endswith(b"Z") else (rest[:-6], rest[-6:])
        if (second, zone) != (self._second, self._zone):
            try:
                self._unix = int(datetime.fromisoformat((second + zone).decode()).timestamp())
            except (ValueError, OverflowError):
                return None
            self._second, self._zone = second, zone
        return self._unix + float(b"0" + fraction) if fraction else float(self._unix)


class Place:
    """A place in the log of the container ``container``; it moves on with every line that is passed."""

    def __init__(self, container: str) -> None:
        self.container = container
        self._counts: Counter[int] = Counter()
        self._last: deque[tuple[int, bytes]] = deque(maxlen=_LAST)
        self._second: int | None = None
        self._unended = 0

    def passed(self, said: Said, at: float | None) -> None:
        """Move on behind a line."""
        second = self._second if at is None else int(at)
        if second is None:
            return
        line = said.stamp + said.data
        self._last.append((second, line))
        self._unended = 0 if said.ended else len(line)
        if second != self._second:
            self._second = second
            for old in [each for each in self._counts if each < second - _BACK]:
                del self._counts[old]
        self._counts[second] += 1

    @property
    def since(self) -> int:
        """Return the Unix second from which lines are counted, 0 where there is none."""
        return 0 if self._second is None else self._second - _BACK

    def __str__(self) -> str:
        """Return the cursor that stands for it."""
        since = self.since
        counted = sum(count for second, count in self._counts.items() if second >= since)
        last = [line for second, line in self._last if second >= since]
        return f"{self.container}:{since}:{counted}:{len(last)}:{_checksum(last)}:{self._unended}"


class Finder:
    """
    Find the place a cursor stands for in the lines since ``since``.

    Lines are fed from the first one on. ``skip`` is how many of them were passed before: those up to the place that
    has the right lines before it and the right count; where the log's head is gone and the count is off, up to the
    first that has the right lines before it; where there is none, none, as a line told twice is better than one lost.
    ``rest`` is what has been added since to the last of them, which had no end yet.
    """

    def __init__(self, container: str, since: int, counted: int, last: int, checksum: int, unended: int) -> None:
        self.container = container
        self.since = since
        self._counted = counted
        self._checksum = checksum
        self._unended = unended
        self._last: deque[bytes] = deque(maxlen=max(1, min(last, _LAST)))
        self.seen = 0
        self._in_time = 0
        self._first = self._right = (0, b"")

    @classmethod
    def of(cls, cursor: str | None) -> Finder | None:
        """Return a finder for a cursor, None for one that makes no sense."""
        container, *numbers = (cursor or "").split(":")
        if len(numbers) != 5 or not all(part.isdecimal() and len(part) <= _DIGITS for part in numbers):  # noqa: PLR2004
            return None
        since, counted, last, checksum, unended = map(int, numbers)
        return cls(container, since, counted, last, checksum, unended)

    def passed(self, said: Said, at: float | None) -> None:
        """Take in the next line."""
        self.seen += 1
        if at is not None and at < self.since:
            return
        self._in_time += 1
        line = said.stamp + said.data
        kept = line[: self._unended] if self._unended else line
        if (
            len(self._last) + 1 >= (self._last.maxlen or 0)
            and _checksum((*self._last, kept)[-_LAST:]) == self._checksum
        ):
            found = (self.seen, line[len(kept) :])
            self._first = self._first if self._first[0] else found
            self._right = found if self._in_time == self._counted else self._right
        self._last.append(line)

    @property
    def skip(self) -> int:
        """Return how many of the lines fed so far had been passed."""
        return self._right[0] or self._first[0]

    @property
    def rest(self) -> bytes:
        """Return what the last of them goes on with."""
        return self._right[1] if self._right[0] else self._first[1]


def _checksum(lines: Iterable[bytes]) -> int:
    return zlib.crc32(b"\n".join(lines))
