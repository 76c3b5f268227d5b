"""Figures as people read them: GiB with two decimals, ages, UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from budget_exporter.units import GIB, KIB, MIB, gib_text

__all__ = ["NOTHING", "age", "count", "gib", "ratio", "signed_gib", "size_text", "utc"]

NOTHING = "\N{EN DASH}"
"""What stands where a fact is unknown; never a zero."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def gib(size: int | None) -> str:
    """Return ``size`` bytes in GiB without the unit, as table cells have it."""
    return NOTHING if size is None else f"{size / GIB:.2f}"


def signed_gib(size: int | None) -> str:
    """Return a difference of ``size`` bytes in GiB with its sign, none where it rounds to nothing."""
    if size is None:
        return NOTHING
    text = f"{size / GIB:+.2f}"
    return "0.00" if text in {"+0.00", "-0.00"} else text


def count(number: int | None) -> str:
    """Return a whole number with thousands set apart."""
    return NOTHING if number is None else f"{number:,}"


def size_text(size: int) -> str:
    """Return ``size`` bytes in the unit the engine prints it in: 50 MiB would read 0.05 GiB, and 2 MiB nothing."""
    if abs(size) >= GIB:
        return gib_text(size)
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


def ratio(share: float) -> str:
    """Return a share as flags have it: ``0.982``, ``1.0``."""
    return str(round(share, 4))


def age(seconds: float) -> str:
    """Return a duration in its two largest units: ``12 s``, ``2 h 46 min``; a clock that ran back reads ``0 s``."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def utc(at: float) -> str:
    """Return a Unix time as UTC; a figure no calendar has is shown as it is."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{at} s"
