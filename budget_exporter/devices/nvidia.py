"""
NVIDIA cards and their MIG instances through NVML, by nvidia-ml-py, in a process that has no CUDA context.

NVML takes no notice of CUDA_VISIBLE_DEVICES and tells of every card. Where NVIDIA's driver is not loaded nothing is
imported and nothing reported. Facts of the library this rests on: its header ``nvml.h`` and NVML API Reference 12 and
13. The library has no root directory to point elsewhere: a host under ``roots`` with the driver must be this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from budget_exporter.devices._nvml_card import NvmlDevice, devices_of, key_of, processes_of, sample_of
from budget_exporter.devices._nvml_library import NoDriverError, has_driver, opened, said
from budget_exporter.devices._pid_namespace import shows_host_pids
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample, Holders
from budget_exporter.roots import Roots

__all__ = ["NvidiaSource", "source"]

_LIST_SECONDS = 10.0
"""Between two listings of the cards, and two attempts to open the library."""
_PROCESSES_SECONDS = 1.0


def source(
    roots: Roots,
    interval: float = 1.0,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    forget_after: float = 600.0,
    own_procfs: Path = Path("/proc"),
) -> NvidiaSource:
    """
    Return the source of this host's NVIDIA cards; ``roots`` tell whether their driver is loaded.

    ``interval`` is the seconds between two reads, ``clock`` gives Unix time and ``monotonic`` a time that never jumps.
    A card that was seen and is gone is a fault for ``forget_after`` seconds. NVML gives PIDs as they are in our own
    namespace, which is that of ``own_procfs``.
    """
    return NvidiaSource(roots, interval, clock, monotonic, forget_after, own_procfs)


class NvidiaSource:
    """Sample every card; not for use by two threads at once."""

    name = "nvidia"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        forget_after: float,
        own_procfs: Path,
    ) -> None:
        self.interval = interval
        self._roots = roots
        self._clock = clock
        self._monotonic = monotonic
        self._forget_after = forget_after
        self._own_procfs = own_procfs
        self._nvml: Any = None
        self._trouble: str | None = None
        """Why the library could not be opened; empty where there is simply no driver."""
        self._tried: float | None = None
        self._listed: float | None = None
        self._devices: list[NvmlDevice] = []
        self._faults: dict[str, str] = {}
        """What is wrong with cards since they were listed, by PCI address or place."""
        self._last_seen: dict[str, float] = {}
        self._keys: dict[int, str] = {}
        self._holders: tuple[Holders, ...] = ()
        self._held_at: float | None = None

    def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - the driver lists all processes
        """
        Return one sample of every card that answers and what its processes hold; a card that fails alone is a fault.

        A host without NVIDIA's driver is an empty report and no fault. Raise SourceError where there is a driver but
        its library cannot be used, or every card that was seen is gone.
        """
        now = self._monotonic()
        if not self._ready(now):
            self._complain_of_loss(now)
            return DeviceReport()
        if self._listed is None or now - self._listed >= _LIST_SECONDS:
            self._list(now)
        at, samples, faults = self._clock(), list[DeviceSample](), dict(self._faults)
        for device in self._devices:
            try:
                samples.append(DeviceSample(*sample_of(self._nvml, device, at, self._roots.procfs)))
            except (self._nvml.NVMLError, SourceError) as error:
                faults[device.identity.device] = self._said(error)
                self._listed = None
        told = tuple(f"{key}: {why}" for key, why in sorted(faults.items()))
        if told and not samples and self._last_seen:
            raise SourceError("; ".join(told))
        self._hold(now, at, {sample.identity.device for sample in samples})
        return DeviceReport(tuple(samples), told, self._holders)

    def close(self) -> None:
        """Let go of the library, so that the driver can be unloaded."""
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return

    def _ready(self, now: float) -> bool:
        """Return whether the library is open; raise SourceError where it should be and cannot."""
        if self._nvml is not None:
            return True
        if self._tried is None or now - self._tried >= _LIST_SECONDS:
            self._tried = now
            try:
                self._trouble = ""
                self._nvml = opened() if has_driver(self._roots) else None
            except NoDriverError:
                return False
            except SourceError as error:
                self._trouble = str(error)
        if self._trouble:
            raise SourceError(self._trouble)
        return self._nvml is not None

    def _complain_of_loss(self, now: float) -> None:
        gone = sorted(key for key, seen in self._last_seen.items() if now - seen < self._forget_after)
        if gone:
            raise SourceError(f"{', '.join(gone)}: gone, and the driver is not loaded any more")

    def _list(self, now: float) -> None:
        """Look which cards there are; where the library itself fails, open it anew the next time."""
        nvml = self._nvml
        self._listed = now
        try:
            driver, count = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.close()
            self._listed, self._devices, self._holders = None, [], ()
            raise SourceError(f"NVML: {said(nvml, error)}") from error
        self._devices, self._faults = [], {}
        for order in range(count):
            place = self._keys.get(order, f"card {order}")
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(order)
                place = self._keys[order] = key_of(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
                self._devices += devices_of(nvml, handle, place, order, driver)
                self._last_seen[place] = now
            except (nvml.NVMLError, SourceError, ValueError) as error:
                self._faults[place] = self._said(error)
        self._last_seen = {key: seen for key, seen in self._last_seen.items() if now - seen < self._forget_after}
        for key in (key for key, seen in self._last_seen.items() if seen != now):
            self._faults.setdefault(key, "no longer listed by the driver")

    def _hold(self, now: float, at: float, sampled: set[str]) -> None:
        """List the processes now and then; a card whose list fails has none until the next time."""
        if self._held_at is not None and now - self._held_at < _PROCESSES_SECONDS:
            return
        self._held_at = now
        complete = shows_host_pids(self._own_procfs)
        holders = []
        for device in self._devices:
            key = device.identity.device
            if key not in sampled:
                continue
            try:
                found = processes_of(self._nvml, device, self._own_procfs)
            except self._nvml.NVMLError:
                continue
            known = all(process.used is not None for process in found)
            holders.append(Holders(key, at, found, complete=complete and known))
        self._holders = tuple(holders)

    def _said(self, error: Exception) -> str:
        return said(self._nvml, error) if isinstance(error, self._nvml.NVMLError) else str(error)


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
