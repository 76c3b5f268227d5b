"""What one process holds of the host's memory, what its container may hold, and what it is called."""

from __future__ import annotations

import os
import re
from pathlib import Path

from budget_exporter.devices._sysfs import text_or_empty
from budget_exporter.facts.device import ProcessMemory
from budget_exporter.units import KIB

__all__ = ["container_limit", "process_memory", "short_name"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = re.compile(r"[0-9]{1,15} ([0-9]{1,15}) ([0-9]{1,15}) ", re.ASCII)
"""Pages: size, resident, shared."""
_PSS = re.compile(r"^Pss: +([0-9]{1,15}) kB$", re.MULTILINE)
_UNLIMITED = 1 << 62
"""Version 1 of control groups writes a number of pages close to this where there is no limit."""
_CGROUPS = "root/sys/fs/cgroup"


def process_memory(procfs: Path, pid: int) -> ProcessMemory | None:
    """
    Return what a process holds, None where there is no such process (any more).

    Its proportional share (Pss), so that memory shared by several processes is counted once; where that may not be
    read, what is resident without what is shared. None bytes where neither can be read.
    """
    folder = procfs / str(pid)
    share = _PSS.search(text_or_empty(folder / "smaps_rollup"))
    used = _private(folder) if share is None else int(share[1]) * KIB
    return ProcessMemory(pid, used, name=short_name(procfs, pid)) if folder.is_dir() else None


def _private(folder: Path) -> int | None:
    match = _STATM.match(text_or_empty(folder / "statm"))
    if match is None:
        return None
    resident, shared = int(match[1]), int(match[2])
    # The kernel adds both up from counters of each CPU and may be a little behind with one of them.
    return None if shared > resident else (resident - shared) * _PAGE


def container_limit(procfs: Path, pid: int) -> int | None:
    """
    Return the bytes that the container of a process lets it have, None without one or where it may not be looked at.

    Read where vLLM itself looks, in the process's own file system: the limit of a unit outside of containers is not
    there, and then vLLM does not know of it. Source: vLLM 0.24 to 0.33 ``utils/cpu_resource_utils.py``
    ``get_cgroup_memory_limit``.
    """
    groups = procfs / str(pid) / _CGROUPS
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = text_or_empty(groups / name)
        if text.isascii() and text.isdecimal() and len(text) <= len(str(_UNLIMITED)):
            limit = int(text)
            return limit if 0 < limit < _UNLIMITED else None
    return None


def short_name(procfs: Path, pid: int) -> str:
    """Return the short name of a process, for people; empty where it may not be read."""
    return text_or_empty(procfs / str(pid) / "comm")[:64]
