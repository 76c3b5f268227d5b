"""
What the compute driver (KFD) says of each process of the host: bytes by card, and how long its queues were stopped.

Facts of the kernel's ``kfd_process.c`` and ``kfd_chardev.c`` (6.12, 7.2): ``proc/PID/vram_GPUID`` is a counter in
memory that every allocation of the process raises by its size and every free lowers, so it counts what was asked for,
also while that is evicted, and nothing that was imported from another process. PID is the one of the initial
namespace. Every card the process was given has its file, opened or not. ``stats_GPUID/evicted_ms`` sums the time in
which the process's queues on that card were stopped. Contexts beside the first are in ``context_N`` (7.2).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from budget_exporter.devices._sysfs import read_count

__all__ = ["KfdProcesses", "KfdUse", "kfd_processes"]

_PROC = "class/kfd/kfd/proc"
_CONTEXT = re.compile("context_[0-9]+")
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR})
_HINT = {errno.EACCES: " (CAP_DAC_READ_SEARCH grants it)"}


@dataclass(frozen=True, slots=True)
class KfdUse:
    """What one process has allocated on one card in bytes, and the milliseconds its queues there were stopped."""

    used: int
    evicted_ms: int | None


@dataclass(slots=True)
class KfdProcesses:
    """Every process KFD lists, by PID and PCI address; on the cards in ``unread`` some figure could not be read."""

    uses: dict[tuple[int, str], KfdUse] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def kfd_processes(sysfs: Path, gpus: Mapping[int, str]) -> KfdProcesses | None:
    """
    Return what the processes of the host hold of ``gpus`` (PCI address by KFD's id), None where KFD lists none.

    A process that vanishes while it is read holds nothing any more.
    """
    root = f"{sysfs}/{_PROC}"
    result = KfdProcesses()
    try:
        pids = sorted(int(name) for name in os.listdir(root) if name.isdecimal())  # noqa: PTH208 - names, no paths
    except OSError as error:
        if error.errno in _GONE:
            return None
        return KfdProcesses(unread=set(gpus.values()), faults=[f"kfd/proc: {_said(error)}"])
    for pid in pids:
        _read_process(result, Path(root, str(pid)), pid, gpus)
    return result


def _read_process(result: KfdProcesses, process: Path, pid: int, gpus: Mapping[int, str]) -> None:
    try:
        names = os.listdir(process)  # noqa: PTH208 - names, no paths
    except OSError as error:
        if error.errno not in _GONE:
            result.unread.update(gpus.values())
            result.faults.append(f"kfd/proc/{pid}: {_said(error)}")
        return
    folders = [process, *(process / name for name in names if _CONTEXT.fullmatch(name))]
    for gpu_id, pci in gpus.items():
        try:
            used = _total(folders, f"vram_{gpu_id}")
        except (OSError, ValueError) as error:
            result.unread.add(pci)
            result.faults.append(f"kfd/proc/{pid}/vram_{gpu_id}: {_said(error)}")
            continue
        if used is not None:
            before = result.uses.get((pid, pci), KfdUse(0, None))
            evicted = _evicted(result, folders, pid, gpu_id)
            result.uses[pid, pci] = KfdUse(before.used + used, _sum(before.evicted_ms, evicted))


def _evicted(result: KfdProcesses, folders: list[Path], pid: int, gpu_id: int) -> int | None:
    try:
        return _total(folders, f"stats_{gpu_id}/evicted_ms")
    except (OSError, ValueError) as error:
        result.faults.append(f"kfd/proc/{pid}/stats_{gpu_id}/evicted_ms: {_said(error)}")
        return None


def _total(folders: list[Path], name: str) -> int | None:
    """Return the sum of a counter over all contexts, None where none has it."""
    total: int | None = None
    for folder in folders:
        try:
            total = _sum(total, read_count(folder / name))
        except OSError as error:
            if error.errno not in _GONE:
                raise
    return total


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _said(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror}{_HINT.get(error.errno or 0, '')}"
    return str(error)
