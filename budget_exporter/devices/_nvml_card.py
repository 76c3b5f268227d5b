"""One card, or one MIG instance of a card, as NVIDIA's library tells of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from budget_exporter.devices._host_memory import memory_of_host
from budget_exporter.devices._host_processes import short_name
from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceIdentity, MemorySample, ProcessMemory

__all__ = ["NvmlDevice", "devices_of", "key_of", "processes_of", "sample_of"]

_LARGEST = (1 << 63) - 1
_INTEGRATED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)
"""Chips whose memory is the host's; the library tells no memory of them."""


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A memory domain and the library's handle of it; ``card`` is the PCI address of the card it is of."""

    handle: Any
    card: str
    identity: DeviceIdentity


def key_of(bus_id: str) -> str:
    """
    Return a PCI address as the kernel writes it: ``00000000:0A:00.0`` is ``0000:0a:00.0``.

    Raise SourceError for what is no address.
    """
    match = re.fullmatch(r"([0-9A-Fa-f]{1,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])", bus_id)
    if match is None:
        raise SourceError(f"no PCI address: {bus_id[:40]!r}")
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def devices_of(nvml: Any, handle: Any, card: str, order: int, driver: str) -> list[NvmlDevice]:
    """
    Return the memory domains of one card: the card, or where MIG is on its instances, which may be none.

    ``order`` is the library's index: the place in the order of PCI addresses, which is CUDA's own only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all cards are of one model. An instance has none: CUDA lists one instance
    only, unless told its UUID.
    """
    model = nvml.nvmlDeviceGetName(handle)
    uuid = nvml.nvmlDeviceGetUUID(handle) or None
    integrated = bool(_INTEGRATED.search(model))
    identity = DeviceIdentity(card, "nvidia", model, driver, "nvml", uuid=uuid, order=order, integrated=integrated)
    if not _has_mig(nvml, handle):
        return [NvmlDevice(handle, card, identity)]
    found = []
    for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            inside = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
        except nvml.NVMLError_NotFound:
            continue
        key = nvml.nvmlDeviceGetUUID(inside)
        named = replace(identity, device=key, model=nvml.nvmlDeviceGetName(inside), uuid=key, order=None)
        found.append(NvmlDevice(inside, card, named))
    return found


def _has_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_InvalidArgument):
        return False


def sample_of(nvml: Any, device: NvmlDevice, at: float, procfs: Path) -> tuple[DeviceIdentity, MemorySample]:
    """
    Return a device's memory at Unix time ``at``, and its identity with the counters that are behind it.

    With the library's second version the size is what programs can have, total without what the driver reserves, as
    is what CUDA calls total: public boots of vLLM print 79.11 GiB on cards of 81559 MiB. The first version counts the
    reserve as used. Raise SourceError for figures that cannot be right, the library's errors as they are.
    """
    identity = device.identity
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(device.handle, version=nvml.nvmlMemory_v2)
        sampler, reserved = "nvml_v2", int(memory.reserved)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
        memory, sampler, reserved = nvml.nvmlDeviceGetMemoryInfo(device.handle), "nvml_v1", None
    except nvml.NVMLError_NotSupported:
        return replace(identity, sampler="meminfo"), _of_the_host(identity, at, procfs)
    total, used = int(memory.total), int(memory.used)
    size = total - (reserved or 0)
    if size <= 0:
        raise SourceError(f"a size of {total} bytes of which {reserved or 0} are reserved")
    if used > _LARGEST or total > _LARGEST:
        raise SourceError(f"out of range: {used} of {total} bytes used")
    return replace(identity, sampler=sampler), MemorySample(at, size, used, reserved=reserved)


def _of_the_host(identity: DeviceIdentity, at: float, procfs: Path) -> MemorySample:
    """Return the host's memory where the card has none of its own; raise SourceError for any other card."""
    if not identity.integrated:
        raise SourceError("the driver tells no memory of it")
    try:
        memory = memory_of_host(read_text(procfs / "meminfo"))
    except OSError as error:
        raise SourceError(f"its memory is the host's, and meminfo: {error.strerror}") from error
    if memory is None:
        raise SourceError("its memory is the host's, and meminfo tells of none")
    return MemorySample(at, memory.size, memory.used)


def processes_of(nvml: Any, device: NvmlDevice, procfs: Path) -> tuple[ProcessMemory, ...]:
    """
    Return the processes that have the device open, by PID; None bytes where the driver does not tell them.

    One that computes and draws is in both lists with the same figure. Raise the library's errors as they are.
    """
    held: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for process in _listed(nvml, kind, device.handle):
            used = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            known = held.get(process.pid)
            held[process.pid] = used if known is None else max(known, used or 0)
    return tuple(ProcessMemory(pid, used, name=short_name(procfs, pid)) for pid, used in sorted(held.items()))


def _listed(nvml: Any, kind: str, handle: Any) -> list[Any]:
    """Return one of the lists; empty where the driver has no such list."""
    for version in (3, 2):
        ask: Callable[[Any], list[Any]] = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v{version}")
        try:
            return ask(handle)
        except nvml.NVMLError_FunctionNotFound:
            continue
        except nvml.NVMLError_NotSupported:
            break
    return []
