"""When a line was written, from the best of four clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

__all__ = ["line_time"]

_OLDEST = 366 * 86400.0
_AHEAD = 60.0


def line_time(record: float | None, outer: float | None, stamp: str, clock: Callable[[], float]) -> float:
    """
    Return the Unix time of a line.

    ``record`` is the log source's own time, ``outer`` that of an outer stamp with a zone, ``stamp`` the engine's
    ``MM-DD HH:MM:SS``. The engine prints neither year nor zone: the stamp is taken as the latest such moment of our
    own zone that is not in the future; where there is none, ``clock`` decides.
    """
    if record is not None:
        return record
    if outer is not None:
        return outer
    now = clock()
    return _stamped(stamp, now) or now


def _stamped(stamp: str, now: float) -> float | None:
    year = time.localtime(now).tm_year
    for candidate in (year, year - 1):
        try:
            moment = datetime.strptime(f"{candidate}-{stamp}", "%Y-%m-%d %H:%M:%S").timestamp()  # noqa: DTZ007 - no zone
        except (ValueError, OverflowError, OSError):
            continue
        if -_AHEAD <= now - moment <= _OLDEST:
            return moment
    return None
