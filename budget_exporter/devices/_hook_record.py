"""One record of the in-engine hook: read with care, since whoever may write to its folder may write anything."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LARGEST", "NAME", "Record", "parse", "read"]

SCHEMA = "budget_exporter_neuron_hook/1"
NAME = re.compile(r"vnc-[0-9]{1,20}-[0-9]{1,10}\.json")
LARGEST = 4096
"""Bytes of a record; some 400 are usual."""
_LIMIT = 1 << 50
_KEPT_PERIODS = 3.0
_SHORTEST, _LONGEST = 1.0, 300.0
_LATEST = 1 << 40
_AHEAD = 60.0
"""Seconds by which a record may be from the future: the clock may have been set."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_FAILURE = re.compile(r"[A-Za-z_][A-Za-z0-9_. ]{0,60}")


@dataclass(frozen=True, slots=True)
class Record:
    """What one worker wrote: who it is in its own PID namespace, and bytes of its ledger or why there are none."""

    pid: int
    start_ticks: int
    namespace: int | None
    boot_id: str
    at: float
    interval: float
    rank: int | None
    replica: int | None
    used: int | None
    limit: int | None
    failure: str

    def fresh(self, now: float) -> bool:
        """Return whether it is no older than three periods of its writer."""
        return -_AHEAD <= now - self.at <= _KEPT_PERIODS * self.interval


def read(folder: int, name: str) -> bytes | None:
    """
    Return the bytes of the file ``name`` in an open folder, None where it is gone.

    Raise ValueError for what is no regular file or too large, OSError as the kernel does.
    """
    try:
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = os.pread(descriptor, LARGEST + 1, 0)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST} bytes")
    return data


def parse(data: bytes) -> Record:
    """Return the record in ``data``; raise ValueError that names the key that is wrong."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not JSON" if data.strip() else "empty") from None
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise ValueError("schema: not ours, or of another version")
    failure = fields.get("failure", "")
    if not isinstance(failure, str) or (failure and not _FAILURE.fullmatch(failure)):
        raise ValueError("failure: not a name")
    used, limit = (None, None) if failure else (_count(fields, "used", _LIMIT), _count(fields, "limit", _LIMIT))
    if used is not None and limit is not None and used > limit:
        raise ValueError(f"used: {used} bytes of {limit}")
    boot_id = fields.get("boot_id", "")
    return Record(
        pid=_count(fields, "pid", 1 << 31),
        start_ticks=_count(fields, "start_ticks", 1 << 62),
        namespace=_optional(fields, "pid_namespace", 1 << 62),
        boot_id=boot_id if isinstance(boot_id, str) else "",
        at=_seconds(fields, "at"),
        interval=min(max(_seconds(fields, "interval"), _SHORTEST), _LONGEST),
        rank=_optional(fields, "rank", 1 << 16),
        replica=_optional(fields, "replica", 1 << 16),
        used=used,
        limit=limit,
        failure=failure,
    )


def _count(fields: Mapping[str, Any], key: str, largest: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{key}: {'missing' if value is None else 'not a count'}")
    return value


def _optional(fields: Mapping[str, Any], key: str, largest: int) -> int | None:
    return None if fields.get(key) is None else _count(fields, key, largest)


def _seconds(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    # NaN and infinities are JSON to Python, and an int may be too large for a float.
    number = _float(value)
    if not 0 <= number <= _LATEST:
        raise ValueError(f"{key}: {'missing' if value is None else 'not seconds'}")
    return number


def _float(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
