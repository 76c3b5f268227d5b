"""
The record in which the framework of a Gaudi process tells the use inside its own memory pool.

Source: Habana's ``hlml_shm.h`` and the PyTorch bridge (``synapse_helpers/mem_hlml.cpp``, 1.19): every second each
process writes three packed little-endian u64 to ``/dev/shm/mem_usage_accel<N>``: version 1, Unix time in seconds,
bytes in use; after 10 s the record is old. The write is not atomic, so a record counts once two reads agree.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["folders", "pool_use"]

_RECORD = struct.Struct("<QQQ")
_VERSION = 1
_OLD_AFTER = 10.0
_TRIES = 3
_LARGEST = (1 << 63) - 1
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ELOOP})
# A pipe of that name must not hang the open, and a link in another's folder must not lead elsewhere.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def folders(rootfs: Path, procfs: Path, pids: Iterable[int]) -> list[Path]:
    """Return where records may lie: the host's ``/dev/shm`` and, for containers, that of each process in ``pids``."""
    return [rootfs / "dev/shm", *(procfs / str(pid) / "root/dev/shm" for pid in sorted(pids))]


def pool_use(places: Sequence[Path], minor: int, size: int, now: float) -> int | None:
    """
    Return the bytes in use inside the pool on the card ``accel<minor>`` of ``size`` bytes, None where none says so.

    ``now`` is Unix time in seconds. Of several live records the youngest counts. A record that is not there or old (its
    process ended) is no fault, nor is a process whose own folder may not be looked into (CAP_SYS_PTRACE grants it).
    Raise SourceError for a record that cannot be true, SourceDenied where the host's may not be read.
    """
    name = f"mem_usage_accel{minor}"
    youngest: tuple[int, int] | None = None
    failed: SourceError | None = None
    for place, folder in enumerate(places):
        try:
            record = _read(folder / name)
        except SourceError as error:
            if failed is None and (place == 0 or not isinstance(error, SourceDenied)):
                failed = error
            continue
        if record is not None and abs(now - record[0]) <= _OLD_AFTER and (youngest is None or record > youngest):
            youngest = record
    if youngest is None:
        if failed is not None:
            raise failed
        return None
    if youngest[1] > size:
        raise SourceError(f"{name}: {youngest[1]} bytes, and the card has {size}")
    return youngest[1]


def _read(path: Path) -> tuple[int, int] | None:
    """Return Unix time and bytes of the record, None where there is none."""
    try:
        descriptor = os.open(path, _FLAGS)
    except PermissionError as error:
        raise SourceDenied(f"{path.name}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise SourceError(f"{path.name}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError(f"{path.name}: not a regular file")
        return _parsed(path.name, _settled(descriptor))
    except OSError as error:
        raise SourceError(f"{path.name}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _settled(descriptor: int) -> bytes | None:
    """Return what two reads in a row found, None where the writer was met each time."""
    before = os.pread(descriptor, _RECORD.size + 1, 0)
    for _ in range(_TRIES):
        after = os.pread(descriptor, _RECORD.size + 1, 0)
        if after == before:
            return after
        before = after
    return None


def _parsed(name: str, data: bytes | None) -> tuple[int, int] | None:
    if data is None:
        return None
    if not data.strip(b"\0"):
        return None  # made by shm_open and ftruncate, not written yet
    if len(data) < _RECORD.size:
        raise SourceError(f"{name}: {len(data)} bytes, not a record of {_RECORD.size}")
    version, at, used = _RECORD.unpack_from(data)
    if version != _VERSION:
        raise SourceError(f"{name}: version {version}, not {_VERSION}")
    if used > _LARGEST:
        raise SourceError(f"{name}: out of range: {used} bytes")
    return at, used
