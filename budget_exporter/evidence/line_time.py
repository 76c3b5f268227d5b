"""When a line was written, from the best of five clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

__all__ = ["line_time"]

_OLDEST = 366 * 86400.0
_AHEAD = 60.0
_ZONES = 26 * 3600.0
"""From UTC-12 to UTC+14: how far apart two local clocks can be."""


def line_time(
    record: float | None, outer: float | None, stamp: str, clock: Callable[[], float], zone: int | None = None
) -> float:
    """
    Return the Unix time of a line.

    ``record`` is the log source's own time, ``outer`` that of an outer stamp with a zone, ``stamp`` the engine's
    ``MM-DD HH:MM:SS``, ``zone`` by how many seconds it is ahead of UTC, where the log tells that. The engine prints
    neither year nor zone: the stamp is taken as the latest such moment that is not in the future, of our own zone where
    none is told. One that is ahead by no more than zones differ was printed in another zone (a container's own), and
    there ``clock`` decides, as it does without a stamp.
    """
    if record is not None:
        return record
    if outer is not None:
        return outer
    now = clock()
    return _stamped(stamp, now, None if zone is None else timezone(timedelta(seconds=zone))) or now


def _stamped(stamp: str, now: float, zone: tzinfo | None) -> float | None:
    year = datetime.fromtimestamp(now, UTC).year
    for candidate in (year + 1, year, year - 1):
        try:
            naive = datetime.strptime(f"{candidate}-{stamp}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - ours if none is told
            moment = naive.replace(tzinfo=zone).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
        if -_ZONES <= now - moment < -_AHEAD:
            return None
        if -_AHEAD <= now - moment <= _OLDEST:
            return moment
    return None
