"""A synthetic /sys with Neuron devices, laid out as aws-neuronx-dkms 2.24.7.0 does; files are rewritten in place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from budget_exporter.units import GIB, MIB

__all__ = ["CORES", "PARTS", "add_device", "build", "clear", "core_file", "device_directory", "hold", "remove_device"]

CORES = {"Inferentia2": 2, "Trainium1": 2, "Trainium2": 8, "Trainium3": 8}
_ARCHITECTURES = {"Inferentia2": "NDv3", "Trainium1": "NDv2", "Trainium2": "NDv3", "Trainium3": "NDv4"}
PARTS = {
    "model_code": 96 * MIB,
    "tensors": 0,
    "constants": 2 * MIB,
    "model_shared_scratchpad": 576 * MIB,
    "nonshared_scratchpad": 0,
    "runtime_memory": 4 * MIB,
    "driver_memory": 2 * MIB,
    "collectives": 64 * MIB,
    "notifications": 8 * MIB,
    "dma_rings": 128 * MIB,
    "uncategorized": 0,
}
"""What every core holds besides tensors."""


def build(sysfs: Path, name: str = "Trainium2", devices: int = 1, version: str | None = "2.24.7.0") -> None:
    """Lay ``devices`` devices called ``name`` under ``sysfs``, each even core with 14 GiB of tensors (trn1: all, 9)."""
    (sysfs / "devices/virtual").mkdir(parents=True, exist_ok=True)
    if version is not None:
        _write(sysfs / "module/neuron/version", f"{version}\n")
    for number in range(devices):
        add_device(sysfs, number, name)


def add_device(sysfs: Path, number: int, name: str = "Trainium2") -> None:
    """Lay one device."""
    device = device_directory(sysfs, number)
    # Without a newline, and for root only before 2.28: nothing reads it.
    _write(device / "core_count", str(CORES.get(name, 2)))
    (device / "core_count").chmod(0o400)
    _write(device / "info/serial_number", f"{0x0123456789ABCDEF + number:016x}\n")
    _write(device / "info/architecture/arch_type", f"{_ARCHITECTURES.get(name, 'NDv9')}\n")
    _write(device / "info/architecture/device_name", f"{name}\n")
    for core in range(CORES.get(name, 2)):
        pairs = CORES.get(name, 2) > 2
        tensors = (0 if core % 2 else 14 * GIB) if pairs else 9 * GIB
        hold(sysfs, number, core, {**PARTS, "tensors": tensors}, peak=sum(PARTS.values()) + tensors + 32 * MIB)


def hold(
    sysfs: Path, device: int, core: int, parts: Mapping[str, int], *, peak: int | None = None, total: int | None = None
) -> None:
    """Have a core hold ``parts``; ``total`` is their sum and ``peak`` the larger of it and what it was unless given."""
    used = sum(parts.values()) if total is None else total
    for name, count in parts.items():
        _counters(core_file(sysfs, device, core, name).parent, count, count)
    before = core_file(sysfs, device, core, "peak")
    was = int(before.read_text()) if before.exists() else 0
    _counters(before.parent, used, max(was, used) if peak is None else peak)


def core_file(sysfs: Path, device: int, core: int, name: str) -> Path:
    """Return ``total``, ``peak`` or ``present`` of a core, or a category's ``total``."""
    memory = device_directory(sysfs, device) / f"neuron_core{core}/stats/memory_usage/device_mem"
    return memory / name if name in {"total", "peak", "present"} else memory / name / "total"


def clear(sysfs: Path, device: int, core: int) -> None:
    """Do to the core's total what a write to it does."""
    _write(core_file(sysfs, device, core, "total"), "0\n")


def device_directory(sysfs: Path, number: int) -> Path:
    """Return the directory of a device."""
    return sysfs / f"devices/virtual/neuron_device/neuron{number}"


def remove_device(sysfs: Path, number: int) -> None:
    """Take a device away, as an unloading driver does."""
    shutil.rmtree(device_directory(sysfs, number))


def _counters(directory: Path, total: int, peak: int) -> None:
    _write(directory / "total", f"{total}\n")
    # The size of the last allocation or release: never the use.
    _write(directory / "present", "4096\n")
    _write(directory / "peak", f"{peak}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In place, as sysfs is: a descriptor that is kept open sees it.
    with path.open("w", encoding="ascii") as file:
        file.write(text)
