"""Tell whether a procfs shows the PIDs by which the kernel itself knows processes."""

from __future__ import annotations

from pathlib import Path

from budget_exporter.devices._sysfs import read_text

__all__ = ["shows_host_pids"]

# PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h: the namespace that was there before all others.
_INITIAL = "pid:[4026531836]"
# PF_KTHREAD of include/linux/sched.h, in the ninth field of stat; kernel threads are in the initial namespace only.
_KERNEL_THREAD = 0x00200000
_KTHREADD = 2


def shows_host_pids(procfs: Path) -> bool:
    """
    Return whether the PIDs of ``procfs`` are those of the initial namespace, the host's.

    A procfs belongs to the namespace it was mounted in, which need not be ours (a container with the host's /proc). So
    its own process 1 is asked; where that may not be read, ourselves: who is in the initial namespace sees no other.
    Last, kthreadd: no other namespace has it, and anyone may see it.
    """
    init = _namespace(procfs / "1")
    if init:
        return init == _INITIAL
    return _namespace(procfs / "self") == _INITIAL or _has_kthreadd(procfs)


def _namespace(process: Path) -> str:
    try:
        return str((process / "ns/pid").readlink())
    except OSError:
        return ""


def _has_kthreadd(procfs: Path) -> bool:
    try:
        stat = read_text(procfs / str(_KTHREADD) / "stat")
        return stat.startswith("2 (kthreadd) ") and bool(int(stat.split()[8]) & _KERNEL_THREAD)
    except (OSError, ValueError, IndexError):
        return False
