"""
Whether there are TPU chips on this host and of which kind, from the list of PCI functions and the names in ``/dev``.

Sources: the official client (PyPI tpu-info 0.14.2, ``device.py``: PCI ids, devices a chip). Google's vendor id alone is
no sign of a TPU: the network card of every virtual machine at Google has it too. No device node is ever opened.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.devices._sysfs import read_text, text_or_empty
from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["TpuHost", "found"]

_GOOGLE = "0x1ae0"
_MODELS = {
    ("0x0027", "0x004e"): "TPU v2",
    ("0x0027", "0x004f"): "TPU v3",
    ("0x005e", ""): "TPU v4",
    ("0x0063", ""): "TPU v5e",
    ("0x0062", ""): "TPU v5p",
    ("0x006f", ""): "TPU v6e",
    ("0x0076", ""): "TPU7x",
}
_ACCELERATOR = "0x12"
"""Base class of the PCI code for processing accelerators: a chip that is newer than the table."""
_NODE = re.compile("accel[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class TpuHost:
    """What is there: the number of chips, their model and the driver they are bound to."""

    chips: int
    model: str
    driver: str


def found(sysfs: Path, rootfs: Path) -> TpuHost | None:
    """
    Return what TPU there is, None on a host without.

    A host has chips where a PCI function is one, or, in a container without such a list, where ``/dev`` holds the
    nodes ``accel0``, ``accel1``, … of Google's driver (those of other drivers are in ``/dev/accel``). Raise SourceError
    where there is no ``sysfs`` or the list cannot be read.
    """
    chips: dict[str, tuple[str, str]] = {}
    for function in _functions(sysfs):
        try:
            model = _model(function)
        except OSError:
            continue
        if model is not None:
            # A chip with two cores may show as two functions of one device.
            chips.setdefault(function.name.rpartition(".")[0], (model, _driver(function)))
    if chips:
        model, driver = chips[min(chips)]
        return TpuHost(len(chips), model, driver)
    nodes = _nodes(rootfs / "dev")
    return TpuHost(nodes, "TPU", "accel") if nodes else None


def _functions(sysfs: Path) -> list[Path]:
    path = sysfs / "bus/pci/devices"
    try:
        return sorted(path.iterdir())
    except FileNotFoundError:
        if not sysfs.is_dir():
            raise SourceError(f"{sysfs}: no such directory") from None
        return []
    except PermissionError as error:
        raise SourceDenied(f"{path}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error


def _model(function: Path) -> str | None:
    """Return the kind of chip, None for any other function; raise OSError where its files cannot be read."""
    if read_text(function / "vendor") != _GOOGLE:
        return None
    device = read_text(function / "device")
    known = _MODELS.get((device, "")) or _MODELS.get((device, text_or_empty(function / "subsystem_device")))
    if known is None and text_or_empty(function / "class").startswith(_ACCELERATOR):
        return f"TPU {device}"
    return known


def _driver(function: Path) -> str:
    try:
        return (function / "driver").readlink().name
    except OSError:
        return "unknown"


def _nodes(dev: Path) -> int:
    try:
        return sum(_NODE.fullmatch(entry.name) is not None and _is_device(entry) for entry in dev.iterdir())
    except OSError:
        return 0


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False
