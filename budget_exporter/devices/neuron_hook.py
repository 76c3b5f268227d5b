"""
What the Neuron runtime says of its memory inside the engines, as the hook in them (deploy/neuron-hook) writes it down.

The runtime's ledger can only be asked by the process that owns the core. It is that process's own account of one
logical core: without other processes, the driver's memory and the firmware's; where two logical cores share a bank,
both have the whole bank for a limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from budget_exporter.devices._hook_folders import Writers, opened, told
from budget_exporter.devices._hook_record import NAME, Record, parse, read
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, RuntimeMemory
from budget_exporter.roots import Roots

__all__ = ["NeuronHookSource", "source"]

_MOST = 512
"""Records of one folder that are read: no host has as many logical cores."""


def source(roots: Roots, interval: float = 5.0, clock: Callable[[], float] = time.time) -> NeuronHookSource:
    """
    Return the source of the hooks' records, to be read every ``interval`` seconds.

    They are read from ``roots.neuron_hook``, where that is given, and from the folder that BUDGET_NEURON_HOOK_DIR names
    in an engine's environment, inside that engine's root. ``clock`` gives Unix time.
    """
    return NeuronHookSource(roots, interval, clock)


class NeuronHookSource:
    """Read the records of all hooks; blocking, not for use by two threads at once."""

    name = "neuron_hook"

    def __init__(self, roots: Roots, interval: float, clock: Callable[[], float]) -> None:
        self.interval = interval
        self._procfs = roots.procfs
        self._folder = roots.neuron_hook
        self._clock = clock
        self._told: dict[tuple[int, int], str | None] = {}
        """The folder in a process's environment, by PID and start: it is set before the process is there."""

    def read(self, interest: frozenset[int]) -> DeviceReport:
        """
        Return what the runtimes of the workers among ``interest`` say.

        Records that are old, or whose writer does not live, tell nothing and are no fault; nor is a host without hooks.
        A record that is garbage or tells of a failure is a fault. Raise SourceError where the configured folder cannot
        be read.
        """
        writers = Writers(self._procfs, interest)
        self._told = {
            (pid, ticks): self._told[pid, ticks] if (pid, ticks) in self._told else told(self._procfs, pid)
            for pid, ticks in writers.started.items()
        }
        boot_id, now, seen = _boot_id(self._procfs), self._clock(), set[tuple[int, int]]()
        faults: list[str] = []
        found: dict[int, RuntimeMemory] = {}
        for path, below in self._places():
            for name, record in self._records(path, below, seen, faults):
                if not record.fresh(now) or (boot_id and record.boot_id and record.boot_id != boot_id):
                    continue
                pid = writers.find(record.pid, record.start_ticks, record.namespace)
                if pid is None:
                    continue
                if record.used is None:
                    faults.append(f"{name}: the runtime told nothing: {record.failure}")
                    continue
                found[pid] = RuntimeMemory(pid, record.at, record.used, record.limit, record.rank, record.replica)
        return DeviceReport(runtime=tuple(found.values()), faults=tuple(faults))

    def close(self) -> None:
        """Nothing stays open."""

    def _places(self) -> Iterator[tuple[Path, str]]:
        if self._folder is not None:
            yield self._folder, ""
        for (pid, _), folder in sorted(self._told.items()):
            if folder is not None:
                yield self._procfs / str(pid) / "root", folder

    def _records(
        self, path: Path, below: str, seen: set[tuple[int, int]], faults: list[str]
    ) -> Iterator[tuple[str, Record]]:
        """Yield the records in one folder, which several paths may lead to; ``seen`` are the folders that were read."""
        try:
            with opened(path, below) as folder:
                if folder is None:
                    self._missing(path, below)
                    return
                status = os.fstat(folder)
                if (status.st_dev, status.st_ino) in seen:
                    return
                seen.add((status.st_dev, status.st_ino))
                yield from _parsed(folder, below or str(path), faults)
        except PermissionError as error:
            if not below:
                raise SourceDenied(f"{path}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
        except OSError as error:
            if not below:
                raise SourceError(f"{path}: {error.strerror}") from error

    def _missing(self, path: Path, below: str) -> None:
        if not below:
            raise SourceError(f"{path}: no such directory")


def _parsed(folder: int, where: str, faults: list[str]) -> Iterator[tuple[str, Record]]:
    names = sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
    if len(names) > _MOST:
        faults.append(f"{where}: {len(names)} records, {_MOST} of them read")
    for name in names[:_MOST]:
        try:
            data = read(folder, name)
            if data is not None:
                yield name, parse(data)
        except ValueError as error:
            faults.append(f"{name}: {error}")
        except OSError as error:
            faults.append(f"{name}: {error.strerror}")


def _boot_id(procfs: Path) -> str:
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
