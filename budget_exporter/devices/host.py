"""
Host memory as the device: that of each NUMA node, for engines that run on the CPU.

A node's figures are those vLLM's CPU worker budgets by: MemTotal is the size, and what is neither free nor page cache
nor reclaimable is used (``_host_memory``). The device is the node as it is, whatever a container lets an engine have of
it: such limits are told beside it, since only from 0.24 on does vLLM take them for the node's size.

Where the kernel has no NUMA nodes, ``/proc/meminfo`` is the one node ``cpu/node0``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from budget_exporter.devices._host_memory import NodeMemory, memory_of_host, memory_of_node
from budget_exporter.devices._host_processes import container_limit, process_memory
from budget_exporter.devices._sysfs import read_text, text_or_empty
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import (
    DeviceIdentity,
    DeviceReport,
    DeviceSample,
    Holders,
    MemoryLimit,
    MemorySample,
)
from budget_exporter.roots import Roots

__all__ = ["HostSource", "source"]

_ONLY = "cpu/node0"
_PROCESSES_EVERY = 10.0
"""Seconds between two looks at processes: a proportional share takes the kernel a walk through all their pages."""


def source(
    roots: Roots,
    interval: float = 1.0,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    processes_every: float = _PROCESSES_EVERY,
) -> HostSource:
    """
    Return the source of the host's memory under ``roots.sysfs`` and ``roots.procfs``.

    ``interval`` and ``processes_every`` are the seconds between two reads of the nodes and of the processes, ``clock``
    gives Unix time and ``monotonic`` a time that never jumps.
    """
    return HostSource(roots, interval, clock, monotonic, processes_every)


class HostSource:
    """Sample the memory of every NUMA node; not for use by two threads at once."""

    name = "host"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        processes_every: float,
    ) -> None:
        self.interval = interval
        self._nodes = roots.sysfs / "devices/system/node"
        self._procfs = roots.procfs
        self._clock = clock
        self._monotonic = monotonic
        self._processes_every = processes_every
        self._has_nodes = False
        self._model = ""
        self._kernel = ""
        self._looked: tuple[float, frozenset[int]] | None = None
        self._holders: tuple[Holders, ...] = ()
        self._limits: tuple[MemoryLimit, ...] = ()

    def read(self, interest: frozenset[int]) -> DeviceReport:
        """
        Return one sample of every node with memory, and what the processes ``interest`` hold of it.

        With several nodes it is not told what a process holds: its share is not divided by nodes. A host without any
        meminfo is an empty report and no fault. Raise SourceError where nodes that were there are all gone.
        """
        at = self._clock()
        faults: list[str] = []
        samples = [
            DeviceSample(self._identity(device, sampler), MemorySample(at, memory.size, memory.used))
            for device, sampler, memory in self._memories(faults)
        ]
        self._look_at(interest, [sample.identity.device for sample in samples])
        return DeviceReport(tuple(samples), tuple(faults), self._holders, limits=self._limits)

    def close(self) -> None:
        """Do nothing: no descriptor stays open."""

    def _memories(self, faults: list[str]) -> Iterator[tuple[str, str, NodeMemory]]:
        """Yield key, counters and memory of each node; append one sentence to ``faults`` for each that fails."""
        numbers = self._numbers()
        self._has_nodes = self._has_nodes or bool(numbers)
        if not numbers and self._has_nodes:
            raise SourceError(f"{self._nodes}: no longer any node")
        files = [(f"cpu/node{n}", self._nodes / f"node{n}/meminfo", memory_of_node, "node_meminfo") for n in numbers]
        for device, path, parse, sampler in files or [(_ONLY, self._procfs / "meminfo", memory_of_host, "meminfo")]:
            memory = _read(device, path, parse, faults)
            if memory is not None:
                yield device, sampler, memory

    def _numbers(self) -> list[int]:
        """Return the numbers of the nodes; none where the kernel has none or none of them tells of its memory."""
        try:
            listed = [entry for entry in self._nodes.iterdir() if entry.name.startswith("node")]
            found = [entry.name.removeprefix("node") for entry in listed if (entry / "meminfo").exists()]
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise SourceDenied(f"{self._nodes}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
        except OSError as error:
            raise SourceError(f"{self._nodes}: {error.strerror}") from error
        return sorted(int(number) for number in found if number.isascii() and number.isdecimal() and len(number) < 6)  # noqa: PLR2004 - a kernel has 1024 nodes at most

    def _identity(self, device: str, sampler: str) -> DeviceIdentity:
        # A fixed identity of its own: memory that is plugged in or out makes no other device of it.
        self._model = self._model or _processor(text_or_empty(self._procfs / "cpuinfo"))
        self._kernel = self._kernel or text_or_empty(self._procfs / "sys/kernel/osrelease") or "linux"
        return DeviceIdentity(
            device,
            platform="host",
            model=self._model,
            driver=self._kernel,
            sampler=sampler,
            uuid=device,
            order=int(device.removeprefix("cpu/node")),
            cpus=text_or_empty(self._nodes / device.removeprefix("cpu/") / "cpulist"),
        )

    def _look_at(self, interest: frozenset[int], devices: list[str]) -> None:
        """Read what processes hold and may hold, now and then, and when others are of interest."""
        now = self._monotonic()
        if self._looked is not None and self._looked[1] == interest and now - self._looked[0] < self._processes_every:
            return
        self._looked = (now, interest)
        at = self._clock()
        limits = ((pid, container_limit(self._procfs, pid)) for pid in sorted(interest))
        self._limits = tuple(MemoryLimit(pid, at, limit) for pid, limit in limits if limit is not None)
        self._holders = ()
        if len(devices) == 1 and interest:
            held = (process_memory(self._procfs, pid) for pid in sorted(interest))
            self._holders = (Holders(devices[0], at, tuple(process for process in held if process is not None)),)


def _read(device: str, path: Path, parse: Callable[[str], NodeMemory | None], faults: list[str]) -> NodeMemory | None:
    """Return a node's memory; None where there is none (any more), or after a sentence where it fails."""
    try:
        return parse(read_text(path))
    except FileNotFoundError:
        return None
    except PermissionError:
        faults.append(f"{device}: meminfo: permission denied (CAP_DAC_READ_SEARCH grants it)")
    except OSError as error:
        faults.append(f"{device}: meminfo: {error.strerror}")
    except SourceError as error:
        faults.append(f"{device}: meminfo: {error}")
    return None


def _processor(cpuinfo: str) -> str:
    """Return the processor's name; machines that are no x86 may not have one."""
    for line in cpuinfo.splitlines():
        name, _, text = line.partition(":")
        if name.strip() == "model name" and text.strip():
            return text.strip()
    return "unknown"
