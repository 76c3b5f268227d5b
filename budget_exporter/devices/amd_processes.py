"""
Which processes hold an AMD card's memory: the compute driver's list of the host, and what each has open.

Two views that are never added. KFD (``class/kfd/kfd/proc``) lists every compute process of the host by the host's PID
and counts what each allocated itself, so that a buffer which several ranks map is counted once. The fdinfo of a render
descriptor counts what is resident, graphics too, and system memory apart, but only of processes we may look at, and a
shared buffer with each that maps it. So a figure of KFD goes before that of fdinfo; the rest is fdinfo's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from budget_exporter.devices._amd_fdinfo import DrmClient, drm_clients, holds_card
from budget_exporter.devices._amd_kfd import kfd_gpus
from budget_exporter.devices._amd_kfd_processes import KfdProcesses, KfdUse, kfd_processes
from budget_exporter.devices._amd_pools import Pools
from budget_exporter.devices._pid_namespace import shows_host_pids
from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport, Holders, ProcessMemory
from budget_exporter.roots import Roots

__all__ = ["AmdProcesses", "source"]

_LOOK_EVERY = 15.0
"""Seconds between two looks at all processes: 10 ms for 400 of them."""
_LOG = logging.getLogger("budget_exporter.source.amd_processes")


def source(
    roots: Roots,
    interval: float = 1.0,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> AmdProcesses:
    """
    Return the source of the processes on the amdgpu cards under ``roots.sysfs``, seen in ``roots.procfs``.

    ``interval`` is the seconds between two reads, ``clock`` gives Unix time and ``monotonic`` a time that never jumps.
    """
    return AmdProcesses(roots, interval, clock, monotonic)


@dataclass(slots=True)
class _Held:
    """What fdinfo says of one process on one card, in bytes over all its clients."""

    vram: int | None = None
    gtt: int | None = None
    evicted: int | None = None

    def add(self, client: DrmClient) -> None:
        self.vram = _sum(self.vram, client.vram)
        self.gtt = _sum(self.gtt, client.gtt)
        self.evicted = _sum(self.evicted, client.evicted)


@dataclass(slots=True)
class _Run:
    """What one run found out: the faults, and by process and card what fdinfo says."""

    faults: list[str] = field(default_factory=list)
    open: dict[tuple[int, str], _Held] = field(default_factory=dict)


class AmdProcesses:
    """List the holders of every amdgpu card; not for use by two threads at once."""

    name = "amd_processes"

    def __init__(
        self, roots: Roots, interval: float, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self.interval = interval
        self._sysfs = roots.sysfs
        self._procfs = roots.procfs
        self._clock = clock
        self._monotonic = monotonic
        self._others: frozenset[int] = frozenset()
        self._looked: float | None = None
        self._said = False

    def read(self, interest: frozenset[int]) -> DeviceReport:
        """
        Return the holders of each card of which any can be told.

        A list is complete where KFD lists the host's processes, by PIDs that ours are, and every figure of that card
        was read. A host without an amdgpu card is an empty report and no fault.
        """
        run = _Run()
        pools = Pools(self._sysfs)
        gpus = self._gpus(run)
        if not pools.cards and not gpus:
            return DeviceReport()
        at = self._clock()
        kfd = self._kfd(gpus, run)
        self._read_open(interest, run)
        devices = {pci for _, pci in run.open}
        if kfd is not None:
            devices |= set(gpus.values())
        uses = {} if kfd is None else kfd.uses
        return DeviceReport(
            faults=tuple(run.faults),
            holders=tuple(
                Holders(
                    device,
                    at,
                    self._processes(device, uses, run.open, pools),
                    complete=kfd is not None and device in gpus.values() and device not in kfd.unread,
                )
                for device in sorted(devices)
            ),
        )

    def close(self) -> None:
        """Nothing stays open between two reads."""

    def _gpus(self, run: _Run) -> Mapping[int, str]:
        try:
            return kfd_gpus(self._sysfs)
        except SourceError as error:
            run.faults.append(str(error))
            return {}

    def _kfd(self, gpus: Mapping[int, str], run: _Run) -> KfdProcesses | None:
        """Return KFD's list where its PIDs are those of our procfs."""
        kfd = kfd_processes(self._sysfs, gpus) if gpus else None
        if kfd is None:
            return None
        if not shows_host_pids(self._procfs):
            if not self._said:
                _LOG.warning(
                    "%s shows a PID namespace of its own, KFD counts by the host's PIDs: memory by process is from "
                    "fdinfo, and nothing can be called foreign (run with the host's PIDs to change that)",
                    self._procfs,
                )
            self._said = True
            return None
        run.faults += kfd.faults
        return kfd

    def _read_open(self, interest: frozenset[int], run: _Run) -> None:
        """Read fdinfo; a client that several processes share (a fork's) is counted with the first of them."""
        now = self._monotonic()
        if self._looked is None or now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._others = frozenset(pid for pid in _pids(self._procfs) if holds_card(self._procfs, pid))
        counted: set[tuple[str, int]] = set()
        refused = 0
        for pid in [*sorted(interest), *sorted(self._others - interest)]:
            try:
                clients, faults = drm_clients(self._procfs, pid)
            except PermissionError:
                refused += pid in interest
                continue
            run.faults += faults
            for client in clients:
                if (client.pci, client.client) not in counted:
                    counted.add((client.pci, client.client))
                    run.open.setdefault((pid, client.pci), _Held()).add(client)
        if refused:
            run.faults.append(
                f"fdinfo of {refused} of the engines' processes: permission denied (CAP_SYS_PTRACE grants it)"
            )

    def _processes(
        self,
        device: str,
        uses: Mapping[tuple[int, str], KfdUse],
        held: Mapping[tuple[int, str], _Held],
        pools: Pools,
    ) -> tuple[ProcessMemory, ...]:
        pids = {pid for pid, pci in [*uses, *held] if pci == device}
        return tuple(self._process(pid, device, uses.get((pid, device)), held, pools) for pid in sorted(pids))

    def _process(
        self, pid: int, device: str, use: KfdUse | None, held: Mapping[tuple[int, str], _Held], pools: Pools
    ) -> ProcessMemory:
        opened = held.get((pid, device), _Held())
        name, state = _name_and_state(self._procfs, pid)
        return ProcessMemory(
            pid=pid,
            used=use.used if use is not None else opened.gtt if pools.unified(device) else opened.vram,
            gtt_used=opened.gtt,
            evicted=opened.evicted,
            evicted_seconds=None if use is None or use.evicted_ms is None else use.evicted_ms / 1000,
            name=name,
            state=state,
        )


def _pids(procfs: Path) -> Iterable[int]:
    try:
        return [int(path.name) for path in procfs.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _name_and_state(procfs: Path, pid: int) -> tuple[str, str]:
    """Return a process's name and the letter of its state, empty where it has vanished."""
    try:
        stat = read_text(procfs / str(pid) / "stat")
    except OSError:
        return "", ""
    # The name is in parentheses and may hold both blanks and parentheses.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return name, rest.strip()[:1]


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
