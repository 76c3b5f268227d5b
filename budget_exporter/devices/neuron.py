"""
AWS Neuron devices through the driver's sysfs files: no library, no tool, no device node, no permission needed.

A runtime owns the cores it is initialised for, so asking it from outside would take them from the engine; the driver's
files only tell. They cover all processes and are read-only here: a write zeroes a counter. Facts they rest on:
aws-neuronx-dkms 2.24.7.0 ``neuron_sysfs_metrics.c`` and ``neuron_mempool.c``; never read on a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from budget_exporter.devices._neuron_device import NeuronDevice
from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots

__all__ = ["NeuronSource", "source"]

_RESTAT_SECONDS = 1.0
_PARTS_SECONDS = 10.0
"""Between two looks at the categories: eleven files a core, of which a large host has 128."""
_PREFIX = "neuron"


def source(
    roots: Roots,
    interval: float = 0.2,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    forget_after: float = 600.0,
) -> NeuronSource:
    """
    Return the source of the Neuron devices under ``roots.sysfs``.

    ``interval`` is the seconds between two reads, ``clock`` gives Unix time and ``monotonic`` a time that never jumps.
    A device that was seen and is gone makes the source fail for ``forget_after`` seconds.
    """
    return NeuronSource(roots, interval, clock, monotonic, forget_after)


class NeuronSource:
    """Sample every bank of every Neuron device; not for use by two threads at once."""

    name = "neuron"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        forget_after: float,
    ) -> None:
        self.interval = interval
        self._sysfs = roots.sysfs
        self._clock = clock
        self._monotonic = monotonic
        self._forget_after = forget_after
        self._devices: dict[int, NeuronDevice] = {}
        self._refreshed: float | None = None
        self._parts_read: float | None = None
        self._part_faults: list[str] = []

    def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - the driver counts cores, not processes
        """
        Return one sample of every bank, as ``nd0/hbm1``.

        A host without the driver is an empty report and no fault. A bank whose cores do not all tell a figure that can
        be right is a fault, and so is a device that vanished while others answer. Raise SourceError where every
        device that was seen is gone, or the list of devices cannot be read.
        """
        now = self._monotonic()
        if self._refreshed is None or now - self._refreshed >= _RESTAT_SECONDS:
            self._refresh(now)
            self._refreshed = now
        if self._parts_read is None or now - self._parts_read >= _PARTS_SECONDS:
            self._part_faults = [fault for device in self._devices.values() for fault in device.read_parts()]
            self._parts_read = now
        faults: list[str] = list(self._part_faults)
        samples: list[DeviceSample] = []
        for device in self._devices.values():
            if device.gone_since is not None:
                faults.append(f"{device.key}: no longer listed in {_PREFIX}_device")
            else:
                samples += device.samples(self._clock(), faults)
        if self._devices and all(device.gone_since is not None for device in self._devices.values()):
            raise SourceError("; ".join(faults))
        return DeviceReport(tuple(samples), tuple(faults))

    def close(self) -> None:
        """Release every descriptor."""
        for device in self._devices.values():
            device.close()
        self._devices.clear()

    def _refresh(self, now: float) -> None:
        """Look which devices there are, and whether the kept descriptors still lead to their files."""
        found = _listed(self._sysfs / "devices/virtual/neuron_device")
        driver = self._driver() if found else ""
        for number, directory in found.items():
            if number not in self._devices:
                self._devices[number] = NeuronDevice(number)
                self._parts_read = None
            if self._devices[number].refresh(directory, driver):
                self._parts_read = None
        for number in self._devices.keys() - found.keys():
            self._devices[number].lose(now)
        self._devices = {
            number: device
            for number, device in sorted(self._devices.items())
            if device.gone_since is None or now - device.gone_since < self._forget_after
        }

    def _driver(self) -> str:
        try:
            return read_text(self._sysfs / "module/neuron/version") or "neuron"
        except OSError:
            return "neuron"


def _listed(path: Path) -> Mapping[int, Path]:
    """Return the directories of the devices by number; none where the driver is not loaded."""
    try:
        entries = list(path.iterdir())
    except FileNotFoundError:
        if not path.parents[2].is_dir():
            raise SourceError(f"{path.parents[2]}: no such directory") from None
        return {}
    except PermissionError as error:
        raise SourceDenied(f"{path}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    numbers = ((entry.name.removeprefix(_PREFIX), entry) for entry in entries if entry.name.startswith(_PREFIX))
    return {int(number): entry for number, entry in numbers if number.isascii() and number.isdecimal()}
