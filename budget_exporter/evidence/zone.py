"""
The zone of the stamps in a log file, where the file's own time tells it.

vLLM stamps ``MM-DD HH:MM:SS`` in the zone of its process, which in a container is mostly UTC, whatever the host's is.
The last line of a file was written when the file was written to last; if it has a stamp, the two differ by the zone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from budget_exporter.evidence import Record
from budget_exporter.evidence.tail import Tail

__all__ = ["Zoned", "zone_of"]

_END = 1 << 14
"""Bytes at the end of a file that are looked at."""
_STAMP = re.compile(
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:\x1b\[[\d;]*m)* (?:\x1b\[[\d;]*m)*(\d\d-\d\d \d\d:\d\d:\d\d)[ .,\x1b]"
)
_QUARTER = 900
"""All zones of today are whole quarters of an hour."""
_LATE = 2.0
"""Seconds a line may be older than the file says: the stamp has none below a second, and a pipe takes its time."""
_ZONES = range(-12 * 3600, 14 * 3600 + 1)


class Zoned:
    """A tail whose records say in which zone their stamps are, if the file tells when it is read first."""

    def __init__(self, path: Path, tail: Tail, zone: Callable[[Path], int | None] | None = None) -> None:
        self._path = path
        self._tail = tail
        self._look = zone or zone_of
        self._zone: int | None = None
        self._looked = False

    @property
    def opened(self) -> bool:
        """Return whether there is a file under the path that is being read."""
        return self._tail.opened

    def read(self) -> list[Record]:
        """Return what is new."""
        if not self._looked:
            self._zone = self._look(self._path)
        records = self._tail.read()
        self._looked = self._looked or self._tail.opened
        return records if self._zone is None else [replace(record, zone=self._zone) for record in records]

    def close(self) -> None:
        """Release the tail."""
        self._tail.close()


def zone_of(path: Path) -> int | None:
    """
    Return by how many seconds the stamps in the file at ``path`` are ahead of UTC.

    None where the last line has no stamp, or the two times do not differ by anything a zone could be.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        state = os.fstat(descriptor)
        end = os.pread(descriptor, _END, max(0, state.st_size - _END))
        # Written to meanwhile: which line is of which time is not known.
        if os.fstat(descriptor).st_mtime_ns != state.st_mtime_ns:
            return None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    last = re.split(rb"[\r\n]+", end.rstrip(b"\r\n"))[-1]
    stamp = _STAMP.search(last)
    return None if stamp is None else _zone(stamp[1].decode(), state.st_mtime)


def _zone(stamp: str, written: float) -> int | None:
    year = datetime.fromtimestamp(written, UTC).year
    for candidate in (year, year - 1, year + 1):
        try:
            moment = datetime.strptime(f"{candidate}-{stamp}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
        zone = round((moment - written) / _QUARTER) * _QUARTER
        if zone in _ZONES and -1.0 <= written + zone - moment <= 1.0 + _LATE:
            return zone
    return None
